"""The error of a pipeline is that of the statement that failed, however its answers arrive."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from cron_leader.fencing.pipelines import cause


def told(first: Exception) -> Exception:
    """As psycopg tells of a later statement of the pipeline."""
    try:
        try:
            raise first
        finally:
            raise errors.PipelineAborted("pipeline aborted")
    except errors.PipelineAborted as error:
        return error


def test_what_came_after_the_failed_statement_is_not_what_failed() -> None:
    refused = psycopg.DatabaseError("refused")
    assert cause(told(refused)) is refused
    assert cause(told(told(refused))) is refused


@pytest.mark.parametrize("first", [psycopg.OperationalError("gone"), ValueError("other")])
def test_any_other_error_is_itself(first: Exception) -> None:
    assert cause(first) is first
    alone = told(ValueError("not the server's"))
    assert cause(alone) is alone
