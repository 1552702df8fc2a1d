"""Each safety line, taken out, turns the test named for it red: a pytest of its own for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from chaos.canaries import CANARIES
from chaos.record import table
from chaos.retest import why_pale

pytestmark = pytest.mark.long_file  # side by side they are by themselves
ROOT = Path(__file__).resolve().parents[1]
AT_ONCE = 3
"""Most of them wait for something that the defect keeps from coming."""


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> Iterator[Mapping[tuple[str, str], Future[str]]]:
    """Of each canary and test that are asked for, why it is pale."""
    asked = [
        (item.callspec.params["name"], item.callspec.params["test"])
        for item in request.session.items
        if getattr(item, "originalname", "") == test_a_defect_turns_its_test_red.__name__
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {(name, test): pool.submit(why_pale, CANARIES[name], test) for name, test in asked}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    ("name", "test"),
    [
        pytest.param(name, test, id=f"{name}-fleet" if test == canary.fleet else name)
        for name, canary in CANARIES.items()
        for test in canary.tests
    ],
)
def test_a_defect_turns_its_test_red(
    name: str, test: str, found: Mapping[tuple[str, str], Future[str]]
) -> None:
    assert found[name, test].result() == ""


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("tests/core/test_value.py::test_values_are_equal_by_type_and_fields", "status 0"),
        ("tests/core/test_value.py::test_that_is_not_there", "status 4"),
        ("tests/core/test_gate.py", "was run"),
    ],
)
def test_a_test_that_does_not_see_the_defect_is_told_from_one_that_does(
    test: str, why: str
) -> None:
    assert why in why_pale(CANARIES["older-reply-counts"], test).partition("\n")[0]


def test_the_track_record_in_the_readme_is_that_of_the_canaries() -> None:
    text = (ROOT / "chaos" / "README.md").read_text(encoding="utf-8")
    rows = "\n".join(table())
    assert f"\n\n{rows}\n\n" in text, "put in what `python -m chaos canary --list` prints"
