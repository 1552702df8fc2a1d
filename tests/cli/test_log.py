"""Log lines: what a machine reads, what a person reads, and what can never reach the terminal."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime

import pytest

from cron_leader.events import VOCABULARY, Emitter
from cron_leader.log import _TEXTS, console_sink, json_sink, node_color, set_title, wants_color
from cron_leader.supervision.log import console_line as supervisors_line

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def console(event: str, *, color: bool = False, level: str = "info", **fields: object) -> str:
    stream = io.StringIO()
    emit = Emitter("a", "default", wall=lambda: AT)
    emit.subscribe(console_sink(stream, color=color, level=level))
    emit(event, **fields)
    return stream.getvalue()


def test_what_the_stream_cannot_encode_is_escaped_and_no_line_lost() -> None:
    """A locale of another age, or half a character in a job's name for its failure."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    emit = Emitter("a", "default", wall=lambda: AT)
    emit.subscribe(json_sink(stream))
    emit.subscribe(console_sink(stream))
    emit("gate.closed", error="na\u00efve \U0001f600 \udcff")
    machine, person = raw.getvalue().decode().splitlines()
    assert json.loads(machine)["error"] == "na\u00efve \U0001f600 \udcff"
    assert "na\\u00efve" in person


def test_json_is_one_object_a_line() -> None:
    stream = io.StringIO()
    emit = Emitter("a", "default", wall=lambda: AT)
    emit.subscribe(json_sink(stream))
    emit("gate.opened", fence=42, error="two\nlines")
    assert stream.getvalue().count("\n") == 1
    assert json.loads(stream.getvalue()) == {
        "ts": "2026-01-02T03:04:05.678901Z",
        "event": "gate.opened",
        "node": "a",
        "fleet": "default",
        "fence": 42,
        "error": "two\nlines",
    }


def test_a_console_line_has_time_node_event_sentence_and_the_other_fields() -> None:
    line = console("gate.opened", fence=42, lease=0x5EAF, skipped=None)
    assert line == ("03:04:05.678 a  gate.opened       leading: fence 42  lease=0000000000005eaf\n")


def test_a_slot_is_called_by_its_time_of_day_and_a_first_attempt_is_not_told() -> None:
    for microsecond, time in ((0, "03:04:00"), (250_000, "03:04:00.250")):
        slot = AT.replace(second=0, microsecond=microsecond)
        line = console("run.started", job="x", scheduled_for=slot, attempt=1, fence=7)
        assert line.endswith(f"  x started  slot={time}  fence=7\n")
    assert "  attempt=2\n" in console("run.started", job="x", attempt=2)
    assert "slot=soon" in console("run.started", job="x", scheduled_for="soon")


def test_why_a_node_stopped_is_left_to_stderr_on_the_console() -> None:
    assert console("node.stopped", error="no such host").endswith("  stopped\n")


def test_a_sentence_that_lacks_a_field_gives_way_to_the_fields() -> None:
    assert console("run.finished", job="x").endswith("  job=x\n")


def test_every_sentence_is_of_an_event_that_exists() -> None:
    assert set(_TEXTS) <= VOCABULARY


def test_renewals_show_at_debug_only() -> None:
    assert console("lease.renewed", lease=1) == ""
    assert "lease.renewed" in console("lease.renewed", level="debug", lease=1)


def test_what_a_job_prints_cannot_steer_the_terminal() -> None:
    line = console("run.finished", job="x", outcome="failed", error="\x1b]2;owned\x07\nnext")
    assert "\x1b" not in line
    assert line.count("\n") == 1
    assert "\\x1b]2;owned" in line


def test_each_node_has_its_colour_and_neighbours_differ() -> None:
    assert len({node_color(name) for name in ("a", "b", "c")}) == 3
    assert len({node_color(f"node-{n}") for n in range(5)}) == 5
    assert node_color("a") == node_color("a")
    assert f"\x1b[{node_color('a')}ma\x1b[0m" in console("node.stopped", color=True)


def test_colour_is_for_terminals_that_want_it() -> None:
    assert wants_color(Terminal(), {})
    assert not wants_color(io.StringIO(), {})
    assert not wants_color(Terminal(), {"NO_COLOR": "1"})
    assert not wants_color(Terminal(), {"TERM": "dumb"})


def test_the_title_is_set_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal, pipe = Terminal(), io.StringIO()
    set_title(terminal, "a")
    set_title(pipe, "a")
    assert (terminal.getvalue(), pipe.getvalue()) == ("\x1b]2;a\x07", "")


def test_a_reader_that_went_away_does_not_stop_the_node() -> None:
    class Gone(io.StringIO):
        def write(self, text: str, /) -> int:
            raise BrokenPipeError

    closed = io.StringIO()
    closed.close()
    line = {"ts": "2026-01-02T03:04:05.678901Z", "event": "node.stopped", "node": "a"}
    for stream in (Gone(), closed):
        json_sink(stream)(line)
        console_sink(stream, color=False)(line)


def test_the_supervisors_lines_look_like_the_daemons() -> None:
    at = "2026-01-02T03:04:05.678901Z"
    for event, fields, line in (
        (
            "supervisor.killed",
            {"runs": 2, "reason": "daemon_died"},
            "03:04:05.678 a  supervisor.killed  killed 2 runs: daemon_died",
        ),
        (
            "supervisor.revoked",
            {"lease": "0000000000005eaf", "ok": True, "duration_ms": 3.1},
            "03:04:05.678 a  supervisor.revoked  gave the daemon's lease back"
            "  lease=0000000000005eaf  duration_ms=3.1",
        ),
        (
            "supervisor.revoked",
            {"lease": "0000000000005eaf", "ok": False, "error": "told to stop"},
            "03:04:05.678 a  supervisor.revoked  could not give the daemon's lease back: "
            "told to stop  lease=0000000000005eaf",
        ),
    ):
        assert supervisors_line(at, "a", event, fields) == line
    ours = console("lease.lost", lease=1).partition("lease.lost")[0]
    assert supervisors_line(at, "a", "lease.lost", {}).startswith(ours)
