"""What a pipeline of statements failed by."""

from __future__ import annotations


def cause(error: Exception) -> Exception:
    """The error of the statement that failed. psycopg tells of a later one, which the server did
    not run (PipelineAborted), when their answers reach it one by one."""
    from psycopg import Error, errors

    while isinstance(error, errors.PipelineAborted) and isinstance(error.__context__, Error):
        error = error.__context__
    return error
