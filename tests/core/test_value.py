"""Values are equal by type and fields, and slotted."""

from __future__ import annotations

import pytest

from cron_leader.core import messages as m


def test_values_are_equal_by_type_and_fields() -> None:
    assert m.KeyDeleted("n") == m.KeyDeleted("n")
    assert m.KeyDeleted("n") != m.KeyDeleted("o")
    assert m.KeyDeleted("n") != m.LeaseLost("n")
    assert hash(m.KeyDeleted("n")) == hash(m.KeyDeleted("n"))


def test_a_value_shows_its_fields() -> None:
    assert repr(m.Go) != repr(m.Kill("r", 0))
    assert repr(m.Kill("r", 0)) == "Kill(run_id='r', grace_s=0)"


def test_a_value_has_no_room_for_anything_else() -> None:
    with pytest.raises(AttributeError):
        m.Woke().surplus = 1  # type: ignore[attr-defined]
