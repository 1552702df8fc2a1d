"""When an auth token should be replaced, before etcd forgets it."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import datetime

_S = 1_000_000_000
SIMPLE_TTL_S = 300.0
"""How long etcd keeps a simple token that is not used, unless told otherwise."""
RETRY_NS = 5 * _S
"""Pause after a login ahead of time failed; the token in hand still works."""


def lifetime_ns(token: str, now: datetime) -> int:
    """How long to use a token got now: four fifths of what it lasts.

    A JWT says when it ends, by etcd's clock; one that seems to have ended by ours proves that the
    clocks differ, and lasts as long as a simple token, which does not say.
    """
    end_s = _expiry_s(token)
    left_s = SIMPLE_TTL_S if end_s is None else end_s - now.timestamp()
    return int((left_s if left_s > 0 else SIMPLE_TTL_S) * 0.8 * _S)


def _expiry_s(token: str) -> float | None:
    """The claim `exp` of a JWT; None of any other token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (binascii.Error, ValueError, KeyError, TypeError):
        return None
