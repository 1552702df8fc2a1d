"""What a pipeline of statements failed by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def pipeline(connection: Any) -> Iterator[None]:
    """The connection's pipeline, which fails by the statement that failed."""
    from psycopg import Error

    try:
        with connection.pipeline():
            yield
    except Error as error:
        raise cause(error) from None


def cause(error: Exception) -> Exception:
    """The error of the statement that failed. psycopg tells of a later one, which the server did
    not run (PipelineAborted), when their answers reach it one by one."""
    from psycopg import Error, errors

    while isinstance(error, errors.PipelineAborted) and isinstance(error.__context__, Error):
        error = error.__context__
    return error
