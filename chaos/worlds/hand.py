"""Somebody's hand in etcd: keys, leases, and what its operators may do to it.

Each call is tried on one member after the other, for one of them may be the one that is struck.
"""

from __future__ import annotations

from typing import Any

import etcd3.etcdrpc as rpc
import grpc

CALL_S = 2.0
_DEACTIVATE, _ACTIVATE, _NOSPACE = 2, 1, 1


class Unanswered(OSError):
    """No member did it."""


class Hand:
    """members: name -> endpoint."""

    def __init__(self, members: dict[str, str]) -> None:
        self._members = members

    def leader(self) -> str | None:
        """The member that leads, as any of them has it; None: they have none."""
        ids: dict[int, str] = {}
        leads: list[int] = []
        for name, endpoint in self._members.items():
            try:
                said = self._ask(endpoint, "Maintenance", "Status", rpc.StatusRequest())
            except grpc.RpcError:
                continue
            ids[said.header.member_id] = name
            if said.leader:
                leads.append(said.leader)
        return next((ids[one] for one in leads if one in ids), None)

    def move_leader(self) -> int:
        """To another member that answers."""
        lead = self.leader()
        ids = {name: self._id(endpoint) for name, endpoint in self._members.items()}
        others = [id_ for name, id_ in ids.items() if name != lead and id_ is not None]
        if lead is None or not others:
            raise Unanswered("no leader, or none but it")
        moved = rpc.MoveLeaderRequest(targetID=others[0])
        self._ask(self._members[lead], "Maintenance", "MoveLeader", moved)
        return 1

    def compact(self) -> int:
        """Everything but the present."""
        now = self._any("KV", "Range", rpc.RangeRequest(key=b"\0")).header.revision
        self._any("KV", "Compact", rpc.CompactionRequest(revision=now, physical=True))
        return 1

    def defragment(self, name: str) -> int:
        """The member stands still meanwhile."""
        self._ask(self._members[name], "Maintenance", "Defragment", rpc.DefragmentRequest())
        return 1

    def no_space(self, full: bool) -> int:
        """The alarm that a database beyond its quota raises; or take it back."""
        action = _ACTIVATE if full else _DEACTIVATE
        ids = {self._id(endpoint) for endpoint in self._members.values()} - {None}
        for id_ in ids if full else ids | {0}:
            asked = rpc.AlarmRequest(action=action, memberID=id_, alarm=_NOSPACE)
            self._any("Maintenance", "Alarm", asked)
        return len(ids)

    def revoke(self, lease: int) -> int:
        self._any("Lease", "LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease))
        return 1

    def delete(self, key: bytes) -> int:
        return int(self._any("KV", "DeleteRange", rpc.DeleteRangeRequest(key=key)).deleted)

    def put(self, key: bytes) -> int:
        """Over it, without a lease."""
        self._any("KV", "Put", rpc.PutRequest(key=key, value=b"chaos"))
        return 1

    def keys(self, prefix: str) -> list[str]:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        asked = rpc.RangeRequest(key=prefix.encode(), range_end=end.encode(), keys_only=True)
        return [kv.key.decode() for kv in self._any("KV", "Range", asked).kvs]

    def _id(self, endpoint: str) -> int | None:
        try:
            said = self._ask(endpoint, "Maintenance", "Status", rpc.StatusRequest())
        except grpc.RpcError:
            return None
        return int(said.header.member_id)

    def _any(self, service: str, call: str, request: object) -> Any:
        """By the first member that does it. Raises Unanswered."""
        why = ""
        for endpoint in self._members.values():
            try:
                return self._ask(endpoint, service, call, request)
            except grpc.RpcError as error:
                why = f"{call}: {error}"
        raise Unanswered(why.splitlines()[0] if why else call)

    def _ask(self, endpoint: str, service: str, call: str, request: object) -> Any:
        with grpc.insecure_channel(endpoint) as channel:
            stub = getattr(rpc, f"{service}Stub")(channel)
            return getattr(stub, call)(request, timeout=CALL_S)


def lease_of(key: bytes) -> int:
    """An election key ends with its lease in hex."""
    return int(key.rpartition(b"/")[2], 16)
