"""Runs of url jobs, against a real server: what is sent, what comes of each answer."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cron_leader.core.model import HttpSpec
from cron_leader.core.retry import retry_at
from cron_leader.errors import ConfigError
from cron_leader.jobs import Tick
from cron_leader.runners import needs
from cron_leader.runners.context import LedgerAccess
from cron_leader.runners.failure import Failure
from cron_leader.runners.request import MAX_BODY, MAX_REDIRECTS, send
from cron_leader.runners.url import SEND, request_of
from tests.http_kit import Server, serving
from tests.runners.stage import job, run_of, stage

TOLD = {
    "CRON_LEADER_JOB": "j",
    "CRON_LEADER_SCHEDULED_FOR": "2026-03-01T09:00:00Z",
    "CRON_LEADER_NODE": 'a"ü%',
    "HOME": "/h",
}


@pytest.fixture(scope="module")
def listening() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def server(listening: Server) -> Server:
    listening.seen.clear()
    return listening


def sent(spec: HttpSpec) -> None:
    """Send it from here; what the run's process would do."""
    asked = request_of(run_of(job(spec)), spec, TOLD)
    send(json.loads(json.dumps(asked)), Tick.for_test())


def failure(spec: HttpSpec) -> tuple[int, str]:
    with pytest.raises(Failure) as caught:
        sent(spec)
    return caught.value.code, caught.value.text


# ------------------------------------------------------------------ what is sent


def test_a_request_says_which_slot_it_is_for(server: Server) -> None:
    sent(HttpSpec(server.url("/status/200"), headers=(("X-Team", "ops"),)))
    (seen,) = server.seen
    assert seen["method"] == "GET"
    told = {
        "cron-leader-job": "j",
        "cron-leader-scheduled-for": "2026-03-01T09:00:00Z",
        "cron-leader-node": 'a"%C3%BC%25',
        "idempotency-key": "j/2026-03-01T09:00:00Z",
        "x-team": "ops",
        "user-agent": "cron-leader",
        "accept-encoding": "identity",
    }
    assert seen["headers"].items() >= told.items()
    assert "cron-leader-home" not in seen["headers"]


def test_every_attempt_of_a_slot_has_its_key_and_an_operators_slot_has_its_own() -> None:
    spec = HttpSpec("http://h/")
    first = run_of(job(spec))
    again, manual = (
        replace(first, attempt=2),
        replace(first, slot=replace(first.slot, command_id="c")),
    )
    keys = [
        dict(request_of(run, spec, TOLD)["headers"])["Idempotency-Key"]
        for run in (first, again, manual)
    ]  # type: ignore[call-overload]
    slot = "j/2026-03-01T09:00:00Z"
    assert keys == [slot, slot, f"{slot}/c"]


def test_a_body_has_its_known_words_replaced_and_keeps_its_braces(server: Server) -> None:
    body = '{"of": {"job": "{job}", "by": "{node}"}, "other": "{jobs}"}'
    sent(HttpSpec(server.url("/status/200"), method="POST", body=body))
    (seen,) = server.seen
    assert json.loads(seen["body"]) == {"of": {"job": "j", "by": 'a"ü%'}, "other": "{jobs}"}
    assert seen["headers"]["content-type"] == "application/json"


def test_a_header_of_the_job_beats_what_would_be_sent_otherwise(server: Server) -> None:
    mine = (("content-type", "text/plain"), ("user-agent", "me"))
    sent(HttpSpec(server.url("/status/200"), method="PUT", headers=mine, body="x"))
    headers = server.seen[0]["headers"]
    assert (headers["content-type"], headers["user-agent"]) == ("text/plain", "me")


def test_a_header_is_read_from_its_file_for_each_request(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "token"
    spec = HttpSpec(server.url("/status/200"), header_files=(("Authorization", str(file)),))
    for token in ("Bearer one", "Bearer two"):
        file.write_text(f"{token}\n# rotated\n")
        sent(spec)
    assert [s["headers"]["authorization"] for s in server.seen] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize("content", [None, b"", b"\nx", b"hunter2\x01", "ü".encode(), b"\xff"])
def test_nothing_is_sent_without_a_header_that_a_file_should_hold(
    server: Server, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    code, text = failure(HttpSpec(server.url("/"), header_files=(("X-Token", str(file)),)))
    assert code == 126
    assert text.startswith(f"headers.X-Token: {file}: ")
    assert "hunter2" not in text
    assert server.seen == []


# ------------------------------------------------------------------ what comes of it


def test_the_status_and_the_body_are_printed(
    server: Server, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    sent(HttpSpec(server.url("/status/201")))
    assert capfdbinary.readouterr().out == b"HTTP/1.1 201 Created\nas asked\n"


@pytest.mark.parametrize(("status", "code"), [(302, 3), (404, 4), (500, 5), (503, 5)])
def test_another_status_fails_with_its_first_digit(server: Server, status: int, code: int) -> None:
    found, text = failure(HttpSpec(server.url(f"/status/{status}")))
    assert (found, text.split()[1]) == (code, str(status))


def test_the_statuses_that_are_expected_are_a_success_and_no_others(server: Server) -> None:
    expected = {"expected_status": (204, 409)}
    sent(HttpSpec(server.url("/status/409"), **expected))
    assert failure(HttpSpec(server.url("/status/200"), **expected))[0] == 2


def test_a_body_without_end_is_read_up_to_its_bound(
    server: Server, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    sent(HttpSpec(server.url("/endless")))
    assert len(capfdbinary.readouterr().out) == len(b"HTTP/1.1 200 OK\n") + MAX_BODY


def test_no_answer_or_half_of_one_is_exit_code_1(server: Server) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unheard.getsockname()[1]}/"
        code, text = failure(HttpSpec(nobody))
    assert (code, text.rpartition("] ")[2]) == (1, "Connection refused")
    code, text = failure(HttpSpec(server.url("/break")))
    assert (code, text[:11]) == (1, "no answer: ")


# ------------------------------------------------------------------ redirects


def test_a_redirect_is_followed_only_if_the_job_says_so(server: Server) -> None:
    url = server.url("/to?/status/200")
    assert failure(HttpSpec(url)) == (3, "HTTP/1.1 302 Found (Location: /status/200)")
    sent(HttpSpec(url, headers=(("X-Token", "t"),), follow_redirects=True))
    assert [seen["path"] for seen in server.seen[1:]] == ["/to?/status/200", "/status/200"]
    assert server.seen[-1]["headers"]["x-token"] == "t"


def test_a_loop_of_redirects_ends(server: Server) -> None:
    code, text = failure(HttpSpec(server.url("/loop"), follow_redirects=True))
    assert (code, text) == (3, "HTTP/1.1 302 Found (Location: /loop)")
    assert len(server.seen) == MAX_REDIRECTS + 1


def test_another_origin_is_given_no_header_of_the_job(server: Server) -> None:
    with serving() as other:
        url = server.url(f"/to?{other.url('/status/200')}")
        sent(HttpSpec(url, headers=(("Authorization", "secret"),), follow_redirects=True))
        headers = other.seen[0]["headers"]
    assert "authorization" not in headers
    assert "idempotency-key" not in headers


@pytest.mark.parametrize(
    ("kind", "method", "then"),
    [("to", "POST", "GET"), ("303", "PUT", "GET"), ("307", "PUT", "PUT")],
)
def test_a_redirect_keeps_or_drops_the_body_as_its_status_says(
    server: Server, kind: str, method: str, then: str
) -> None:
    url = server.url(f"/{kind}?/status/200")
    sent(HttpSpec(url, method=method, body="x", follow_redirects=True))
    last = server.seen[-1]
    assert (last["method"], last["body"]) == (then, "x" if then == "PUT" else "")


def test_a_body_is_not_sent_to_another_origin(server: Server) -> None:
    with serving() as other:
        url = server.url(f"/307?{other.url('/status/200')}")
        assert failure(HttpSpec(url, method="POST", body="x", follow_redirects=True))[0] == 3
        assert other.seen == []


# ------------------------------------------------------------------ TLS


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that vouches for itself, for both ends."""
    if not shutil.which("openssl"):
        if os.environ.get("CRON_LEADER_REQUIRE_ALL") == "1":
            pytest.fail("needs openssl")
        pytest.skip("needs openssl")
    place = tmp_path_factory.mktemp("pki")
    made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout node.key"
    made += " -out node.pem -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(["openssl", *made.split()], cwd=place, check=True, capture_output=True)
    return place


@contextmanager
def secured(pki: Path, *, mutual: bool = False) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "node.pem", pki / "node.key")
    if mutual:
        context.load_verify_locations(pki / "node.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    with serving(context) as server:
        yield server


def test_a_certificate_nobody_vouches_for_is_no_answer(pki: Path) -> None:
    with secured(pki) as server:
        code, text = failure(HttpSpec(server.url("/status/200")))
        assert server.seen == []
    assert code == 1
    assert "CERTIFICATE_VERIFY_FAILED" in text


def test_ca_says_whom_to_trust_and_cert_and_key_who_we_are(pki: Path) -> None:
    ca, pair = str(pki / "node.pem"), {"cert": str(pki / "node.pem"), "key": str(pki / "node.key")}
    with secured(pki, mutual=True) as server:
        sent(HttpSpec(server.url("/status/200"), ca=ca, **pair))
        assert failure(HttpSpec(server.url("/status/200"), ca=ca))[0] == 1
        assert len(server.seen) == 1


def test_from_https_no_redirect_leads_to_http(pki: Path, server: Server) -> None:
    with secured(pki) as secure:
        url = secure.url(f"/to?{server.url('/status/200')}")
        assert failure(HttpSpec(url, ca=str(pki / "node.pem"), follow_redirects=True))[0] == 3
    assert server.seen == []


def test_a_file_that_is_no_certificate_is_said_before_anything_is_sent(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    code, text = failure(HttpSpec(server.url("/"), ca=str(tmp_path / "ca.pem")))
    assert (code, text[:18]) == (126, "ca, cert or key: [")
    assert server.seen == []


# ------------------------------------------------------------------ as runs


async def test_url_runs_end_as_the_answer_says_and_hang_no_longer_than_their_timeout(
    server: Server,
) -> None:
    paths = {"/status/200": 30, "/status/503": 30, "/slow": 30, "/hang": 0.3, "/drip": 0.3}
    ok, down, slow, *stuck = (
        job(HttpSpec(server.url(path)), timeout_s=timeout_s, retries=1, retry_exit_codes=(1, 5))
        for path, timeout_s in paths.items()
    )
    ledger = LedgerAccess("postgresql://u:secret@h/x", 1.0)
    async with stage(ok, ledger=ledger, environ={"HTTP_PROXY": "http://127.0.0.1:1"}) as s:
        succeeded, failed, patient, *late = [await s.play(it) for it in (ok, down, slow, *stuck)]
    assert (succeeded.ok, succeeded.exit_code) == (True, 0)
    assert succeeded.output == "HTTP/1.1 200 OK\nas asked\n"
    assert (failed.exit_code, failed.error) == (5, "HTTP/1.1 503 Service Unavailable")
    assert retry_at(run_of(down), failed) is not None
    assert (patient.ok, patient.output) == (True, "HTTP/1.1 200 OK\nat last\n")
    assert [(run.timed_out, run.exit_code) for run in late] == [(True, 143)] * 2, "by SIGTERM"
    headers = server.seen[0]["headers"]
    assert headers["cron-leader-fence"] == "42"
    assert headers["cron-leader-attempt"] == "1"
    assert headers["idempotency-key"] == "j/" + headers["cron-leader-scheduled-for"]


async def test_without_its_library_no_node_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "_has_httpx", lambda: False)
    with pytest.raises(ConfigError, match=r'"j": url: .*pip install "cron-leader\[http\]"'):
        async with stage(job(HttpSpec("http://h/"))):
            pass


def test_the_function_that_sends_is_where_the_job_host_looks_for_it() -> None:
    assert f"{send.__module__}:{send.__name__}" == SEND
