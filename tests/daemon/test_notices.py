"""Notices, sent by real leaders to a real HTTP server: once, also over a leader that is killed."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cron_leader.config import NotifyConfig, On, Quota
from cron_leader.core.model import Trigger
from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.notices import Bucket, _deliver, filled, text_of
from tests.daemon.test_control import order
from tests.kit import Town, now, town, until

S = 1_000_000_000

JOBS = """
[[job]]
name = "bad"
at = "2999-01-01T00:00:00Z"
command = ["false"]
[[job]]
name = "long"
at = "2999-01-01T00:00:00Z"
command = ["sleep", "60"]
drain = "0s"
grace = "0s"
[[job]]
name = "stubborn"
at = "2999-01-01T00:00:00Z"
command = ["false"]
retries = 2
backoff = "10ms"
[[job]]
name = "mended"
at = "2999-01-01T00:00:00Z"
command = ["test", "-e", "mended"]
"""


class Receiver:
    """What was POSTed to it, parsed; it answers with `status` and `location`."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.status, self.location = 204, ""
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.headers.append(dict(self.headers))
                receiver.got.append(json.loads(body))
                self.send_response(receiver.status)
                if receiver.location:
                    self.send_header("Location", receiver.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def told(self) -> list[tuple[str, str]]:
        return [(got["on"], got["job"]) for got in self.got]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def rule_of(**changes: Any) -> NotifyConfig:
    rule = NotifyConfig(
        frozenset({On.FAILURE}), (), None, ("cat",), None, Quota(10, 60.0), None, "/"
    )
    return replace(rule, **changes)


def told_in(folder: Path) -> list[dict[str, Any]]:
    """What the command of the test has read."""
    return [json.loads(path.read_text()) for path in folder.glob("*.told")]


def trigger(place: Town, key: str, job: str) -> None:
    order(place, Trigger(key, job, now()))


# ------------------------------------------------------------------ fleets


async def test_a_failure_and_the_recovery_from_it_are_told_to_whom_they_concern(
    tmp_path: Path, etcd: EmbeddedEtcd, receiver: Receiver
) -> None:
    notify = f"""
[[notify]]
webhook = "{receiver.url}"
jobs = ["men*"]
body = '{{"on": "{{on}}", "job": "{{job}}", "said": "{{text}}"}}'
[[notify]]
command = ["sh", "-c", "cat > $$.part && mv $$.part $$.told"]
on = ["failure"]
"""
    async with town(tmp_path, etcd.endpoint, jobs=JOBS + notify) as place:
        await place.lead("a")
        for key, job in (("k1", "bad"), ("k2", "mended")):
            trigger(place, key, job)
        await until("the failure is told", lambda: receiver.told() == [("failure", "mended")])
        (tmp_path / "mended").touch()
        trigger(place, "k3", "mended")
        await until("so is the recovery", lambda: len(receiver.got) == 2)
        await until("and the command is told", lambda: len(told_in(tmp_path)) == 2)
        assert receiver.told()[-1] == ("recovery", "mended")
        assert receiver.got[0]["said"].endswith("failed: exit code 1")
        lines = told_in(tmp_path)
        assert {(line["on"], line["job"]) for line in lines} == {
            ("failure", "bad"),
            ("failure", "mended"),
        }
        assert lines[0]["fleet"] == place.name
        since = now()
        trigger(place, "k4", "mended")  # succeeds again: no news
        trigger(place, "k5", "bad")
        await place.says("notice.sent", since=since, job="bad")
        assert len(receiver.got) == 2


async def test_over_a_killed_leader_each_failure_is_told_once(
    tmp_path: Path, etcd: EmbeddedEtcd, receiver: Receiver
) -> None:
    notify = f'[[notify]]\nwebhook = "{receiver.url}"\n'
    async with town(tmp_path, etcd.endpoint, jobs=JOBS + notify) as place:
        await place.lead("a")
        await place.follow("b")
        trigger(place, "k1", "bad")
        await until("a tells of one", lambda: receiver.told() == [("failure", "bad")])
        since = now()
        trigger(place, "k2", "long")
        await place.says("run.started", since=since, job="long")
        place.fleet.kill_daemon("a")
        cost = [("failure", "long")]
        await until("b tells of what a's death cost", lambda: receiver.told()[-1:] == cost)
        assert receiver.got[-1]["outcome"] == "abandoned"
        since = now()
        trigger(place, "k3", "bad")
        await place.says("notice.sent", since=since, job="bad")
        told = Counter((got["job"], got["scheduled_for"]) for got in receiver.got)
        assert Counter(job for job, _ in told) == {"bad": 2, "long": 1}
        assert set(told.values()) == {1}


async def test_a_run_that_takes_long_is_told_while_it_goes_on(
    tmp_path: Path, etcd: EmbeddedEtcd, receiver: Receiver
) -> None:
    notify = f'[[notify]]\non = ["long"]\nlong_after = "200ms"\nwebhook = "{receiver.url}"\n'
    async with town(tmp_path, etcd.endpoint, jobs=JOBS + notify) as place:
        await place.lead("a")
        trigger(place, "k1", "bad")
        trigger(place, "k2", "long")
        await until("it is told", lambda: receiver.told() == [("long", "long")])
        assert [slot.state for slot in place.slots("long")] == ["running"]


async def test_a_failure_that_is_tried_again_is_told_when_it_is_final(
    tmp_path: Path, etcd: EmbeddedEtcd, receiver: Receiver
) -> None:
    notify = f'[[notify]]\nwebhook = "{receiver.url}"\n'
    async with town(tmp_path, etcd.endpoint, jobs=JOBS + notify) as place:
        await place.lead("a")
        trigger(place, "k1", "stubborn")
        await until("it is told", lambda: receiver.told() == [("failure", "stubborn")])
        assert receiver.got[0]["attempt"] == 3
        again = place.fleet.timeline.all("run.finished", job="stubborn")
        assert ["retry_at" in line.fields for line in again] == [True, True, False]


async def test_missed_slots_are_told_by_the_next_leader(
    tmp_path: Path, etcd: EmbeddedEtcd, receiver: Receiver
) -> None:
    notify = f'[[notify]]\non = ["missed"]\nwebhook = "{receiver.url}"\nat_most = "1/h"\n'
    beat = '[[job]]\nname = "beat"\nevery = "100ms"\ncatchup = "none"\ncommand = ["true"]\n'
    async with town(tmp_path, etcd.endpoint, jobs=beat + notify) as place:
        await place.lead("a")
        await place.says("run.finished", since=now(), node="a")
        place.fleet.kill_daemon("a")
        await place.fleet.ended("a")
        await place.lead("b")  # to start takes it longer than from one slot to the next
        await until("it is told", lambda: receiver.told() == [("missed", "beat")])
        assert receiver.got[0]["reason"] == "no_leader"


# ------------------------------------------------------------------ one notice


@pytest.mark.parametrize(("status", "said"), [(204, None), (500, "HTTP 500"), (404, "HTTP 404")])
async def test_a_webhook_is_taken_by_a_2xx_only(
    receiver: Receiver, status: int, said: str | None
) -> None:
    receiver.status = status
    rule = rule_of(webhook=receiver.url, command=())
    assert await _deliver(rule, {"on": "failure", "job": "bad"}) == said
    assert receiver.told() == [("failure", "bad")]


async def test_a_webhooks_headers_are_text_or_the_first_line_of_a_file(
    tmp_path: Path, receiver: Receiver
) -> None:
    token = tmp_path / "token"
    token.write_text("Bearer abc\nnot this\n")
    rule = rule_of(
        webhook=receiver.url,
        command=(),
        headers=(("x-team", "ops"), ("content-type", "application/cloudevents+json")),
        header_files=(("Authorization", str(token)),),
    )
    assert await _deliver(rule, {}) is None
    (got,) = receiver.headers
    assert got["X-Team"] == "ops"
    assert got["Content-Type"] == "application/cloudevents+json"
    assert got["Authorization"] == "Bearer abc"
    token.write_text("\n")
    said = f"headers.Authorization: {token}: its first line must be printable ASCII"
    assert await _deliver(rule, {}) == said
    token.unlink()
    said = f"headers.Authorization: {token}: No such file or directory"
    assert await _deliver(rule, {}) == said
    assert len(receiver.got) == 1


async def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    receiver.status, receiver.location = 302, receiver.url
    rule = rule_of(webhook=receiver.url, command=())
    assert await _deliver(rule, {"on": "failure", "job": "bad"}) == "HTTP 302"
    assert len(receiver.got) == 1


async def test_a_receiver_that_is_away_is_told_in_words_without_its_url() -> None:
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        rule = rule_of(webhook=f"http://127.0.0.1:{taken.getsockname()[1]}/secret", command=())
        said = await _deliver(rule, {})
    assert said is not None
    assert "refused" in said
    assert "secret" not in said


async def test_a_receiver_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cron_leader.notices.SEND_S", 0.3)
    said = await _deliver(rule_of(command=("sleep", "60")), {})
    assert said == "no answer within 0.3 s"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("cat",), None),
        (("sh", "-c", "exit 3"), "exit code 3"),
        (("sh", "-c", "echo no room >&2; exit 1"), "no room"),
        (("no-such-program",), "no-such-program: No such file or directory"),
        (("sh", "-c", 'test -z "$SECRET"'), None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
async def test_a_command_reads_the_notice_and_has_none_of_the_daemons_secrets(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], said: str | None
) -> None:
    monkeypatch.setenv("SECRET", "x")
    assert await _deliver(rule_of(command=command), {"job": "bad"}) == said


def test_a_quota_refills_evenly_and_counts_what_it_suppressed() -> None:
    bucket = Bucket(Quota(2, 60.0), 0)
    assert [bucket.take(0) for _ in range(4)] == [True, True, False, False]
    assert not bucket.take(29 * S)
    assert bucket.take(31 * S)
    assert (bucket.told(), bucket.told()) == (3, 0)


def test_a_template_is_json_whatever_it_is_filled_with() -> None:
    nasty = 'a "quote"\n\\ and {job}'
    body = filled(
        '{"text": "{error}", "n": {attempt}, "x": "{last}"}', {"error": nasty, "attempt": 2}
    )
    assert json.loads(body) == {"text": nasty, "n": 2, "x": ""}


@pytest.mark.parametrize(
    ("on", "text"),
    [
        (On.FAILURE, "j t: failed: boom"),
        (On.RECOVERY, "j t: succeeded again"),
        (On.MISSED, "j t: 1 missed (late)"),
        (On.LONG, "j t: still runs since now"),
    ],
)
def test_a_notice_says_in_a_sentence_what_it_is_about(on: On, text: str) -> None:
    line = {"job": "j", "scheduled_for": "t", "ts": "now", "outcome": "failed", "error": "boom"}
    assert text_of(on, line | {"reason": "late"}) == text
