"""Where a session of pytest, and those below it, keep a Postgres cluster of each version."""

from __future__ import annotations

SHELF = "PG_KIT_SHELF"
"""The environment variable that names the folder."""
