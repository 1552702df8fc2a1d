"""The gate: every single condition shuts it, and a late reply never lengthens the term."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cron_leader.core.gate import CloseReason, Gate

S = 1_000_000_000
OPEN = Gate(deadline_ns=10 * S, sent_ns=2 * S, watching=True, raised=True, settled=True)


def test_a_new_gate_is_closed() -> None:
    assert Gate().closed(0) is CloseReason.DEADLINE


def test_the_gate_is_open_when_everything_holds() -> None:
    assert OPEN.closed(10 * S - 1) is None


def test_the_gate_shuts_at_its_deadline_not_after_it() -> None:
    assert OPEN.closed(10 * S) is CloseReason.DEADLINE


@pytest.mark.parametrize(
    ("gate", "reason"),
    [
        (replace(OPEN, watching=False), CloseReason.WATCH),
        (replace(OPEN, raised=False), CloseReason.NOT_RAISED),
        (replace(OPEN, settled=False), CloseReason.NOT_SETTLED),
        (replace(OPEN, jumped_ns=5), CloseReason.CLOCK_JUMP),
        (replace(OPEN, skewed=True), CloseReason.CLOCK_SKEW),
        (replace(OPEN, stopping=True), CloseReason.STOPPING),
        (replace(OPEN, unsupervised=True), CloseReason.SUPERVISOR),
    ],
)
def test_each_condition_alone_shuts_the_gate(gate: Gate, reason: CloseReason) -> None:
    assert gate.closed(0) is reason


def test_the_deadline_counts_from_the_send_whenever_the_reply_came() -> None:
    assert Gate().renewed(3 * S, 10 * S, 2 * S).deadline_ns == 11 * S


def test_a_late_reply_never_lengthens_the_term() -> None:
    renewed = OPEN.renewed(6 * S, 10 * S, 2 * S)
    assert renewed.renewed(4 * S, 99 * S, 2 * S) == renewed


def test_a_newer_reply_with_a_shorter_ttl_shortens_the_term() -> None:
    assert OPEN.renewed(3 * S, 4 * S, 2 * S).deadline_ns == 5 * S


def test_a_clock_jump_ends_only_by_a_read_and_a_renewal_both_sent_after_it() -> None:
    jumped = replace(OPEN, jumped_ns=5 * S)
    assert jumped.verified(6 * S).jumped_ns == 5 * S  # no renewal sent since
    renewed = jumped.renewed(6 * S, 10 * S, 2 * S)
    assert renewed.verified(4 * S).jumped_ns == 5 * S  # the read was sent before it
    assert renewed.verified(5 * S).jumped_ns is None


def test_a_read_without_a_jump_changes_nothing() -> None:
    assert OPEN.verified(6 * S) == OPEN
