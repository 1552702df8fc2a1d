"""What a Postgres URL says, what we add to it, and how it is named in messages: without secrets."""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg import conninfo

from cron_leader.errors import LedgerUnusable

DEFAULTS: dict[str, Any] = {
    "application_name": "cron_leader",
    "connect_timeout": 3,
    "keepalives": 1,
    "keepalives_idle": 2,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 5000,
}
"""What the URL does not say. A dead path is noticed in about 6 s, idle or busy."""

ISO_TIMES = "SET datestyle = 'ISO'"
"""For a session that would tell times otherwise; one of the few settings that a pooler keeps."""

_AS = "postgresql://user@host:port/database"

_PASSWORDS = (
    (re.compile(r"(//[^:/@\s]*):\S*@"), r"\1:***@"),  # to the last @: it may not be escaped
    # Misspelt or not, quoted or not.
    (re.compile(r"(pass\w*\s*=\s*)('[^']*'|[^&\s]*)", re.IGNORECASE), r"\1***"),
    (re.compile(r"(percent-encoded \w+: ).*"), r"\1***"),  # libpq quotes what it is in
)


def redact(text: str) -> str:
    """Text without the passwords of URLs in it; rather too little of it than too much."""
    for pattern, replacement in _PASSWORDS:
        text = pattern.sub(replacement, text)
    return text


def place(url: str) -> str:
    """user@host:port/database of a URL, for messages. Raises LedgerUnusable if it is none."""
    try:
        parts = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        why = redact(str(error).strip())
        cure = "a % in a password as %25" if "percent" in why else _AS
        raise LedgerUnusable(
            f"database url {redact(url)!r} cannot be read ({why}); write {cure}"
        ) from None
    user = f"{parts['user']}@" if "user" in parts else ""
    host, port = parts.get("host", "local socket"), parts.get("port", 5432)
    database = parts.get("dbname", parts.get("user", ""))
    if "@" in f"{host}{port}{database}":  # half a password, which every message would name
        cure = "write an @ in the password as %40, a / as %2F"
        raise LedgerUnusable(f"database url {redact(url)!r}: {cure}")
    if not all(map(_is_port, str(port).split(","))):
        raise LedgerUnusable(f"database url {redact(url)!r}: no port {port}; write {_AS}")
    return f"{user}{host}:{port}/{database}"


def _is_port(text: str) -> bool:
    """Also nothing, as beside one of several hosts: the default."""
    return not text or (text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 16)


def tells_iso_times(info: psycopg.ConnectionInfo) -> bool:
    """psycopg reads no others. Roles and databases may have German or SQL ones."""
    return (info.parameter_status("DateStyle") or "ISO").startswith("ISO")


def with_defaults(url: str) -> str:
    """The URL as a conninfo, completed by DEFAULTS; in UTF-8, whatever it or the environment says:
    so statements are written, and what they are given."""
    said = conninfo.conninfo_to_dict(url)
    added = {k: v for k, v in DEFAULTS.items() if k not in said}
    return conninfo.make_conninfo(url, **added | {"client_encoding": "UTF8"})
