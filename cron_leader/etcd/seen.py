"""What etcd has shown of its history, to tell a member that lags behind from one that keeps up.

Every reply says the raft term and the revision of the member that gave it. A member cut from its
peers, or catching up, says less than others said before. Among healthy members the order of replies
is off by milliseconds; so only what was known for a while counts.
"""

from __future__ import annotations

from typing import Any

SETTLED_NS = 1_000_000_000
"""A member that does not show what was known this long ago lags behind."""

_NOTHING = (0, 0)


class Seen:
    """The highest term and revision seen, now and a while ago."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: the store itself went back."""
        self._settled = self._settling = self._latest = _NOTHING
        self._at_ns = 0

    def lag(self, header: Any, now_ns: int) -> str | None:
        """What a reply's header lacks, in words; None if nothing. Its news are noted."""
        if not header.raft_term or not header.revision:
            return None  # a reply that does not say
        if now_ns - self._at_ns >= SETTLED_NS:
            self._settled, self._settling = self._settling, self._latest
            self._at_ns = now_ns
        term, revision = self._settled
        self._latest = max(self._latest[0], header.raft_term), max(self._latest[1], header.revision)
        if header.raft_term < term:
            return f"it lags behind: in raft term {header.raft_term} after {term} was seen"
        if header.revision < revision:
            return f"it lags behind: at revision {header.revision} after {revision} was seen"
        return None
