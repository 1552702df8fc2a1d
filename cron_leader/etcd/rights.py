"""Which right a user lacks: etcd says "permission denied" and not of what.

Asked of etcd itself, piece by piece, in ways that change nothing: a count of the keys to be read;
a write in the branch of a transaction that is never taken, whose rights are checked all the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from cron_leader.errors import EtcdRefused, EtcdUnavailable
from cron_leader.etcd.codes import Denied
from cron_leader.etcd.stubs import rpc

Ask = Callable[[str, Any], Awaitable[Any]]
Range = tuple[bytes, bytes]
"""First key, and the end (exclusive; empty: this one key only)."""


async def lacking(ask: Ask, method: str, request: Any) -> str:
    """The rights that a denied request lacks, in words; empty if that cannot be told.

    ask: one try of a request, raising as Etcd.call does.
    """
    reads, writes = _needs(method, request)
    probes = [("read", at, "KV/Range", _count(at)) for at in reads]
    probes += [("write", at, "KV/Txn", _never(at)) for at in writes]
    return "; ".join(
        [
            f"it may not {verb} {_shown(at)}"
            for verb, at, how, probe in probes
            if await _denied(ask, how, probe)
        ]
    )


async def _denied(ask: Ask, method: str, probe: Any) -> bool:
    try:
        await ask(method, probe)
    except Denied:
        return True
    except (EtcdUnavailable, EtcdRefused):
        pass
    return False


def _needs(method: str, request: Any) -> tuple[list[Range], list[Range]]:
    """What a request reads and what it writes, each once."""
    reads: dict[Range, None] = {}
    writes: dict[Range, None] = {}
    match method:
        case "KV/Range":
            reads[request.key, request.range_end] = None
        case "KV/Put":
            writes[request.key, b""] = None
        case "KV/DeleteRange":
            writes[request.key, request.range_end] = None
        case "KV/Txn":
            for compare in request.compare:
                reads[compare.key, compare.range_end] = None
            for op in (*request.success, *request.failure):
                its_reads, its_writes = _of(op)
                reads |= dict.fromkeys(its_reads)
                writes |= dict.fromkeys(its_writes)
    return list(reads), list(writes)


def _of(op: Any) -> tuple[list[Range], list[Range]]:
    kind = op.WhichOneof("request")
    methods = {"request_range": "KV/Range", "request_put": "KV/Put"}
    return _needs(methods.get(kind, "KV/DeleteRange"), getattr(op, kind))


def _count(at: Range) -> Any:
    return rpc.RangeRequest(key=at[0], range_end=at[1], count_only=True)


def _never(at: Range) -> Any:
    """Nothing to compare: the other branch is taken, always."""
    delete = rpc.DeleteRangeRequest(key=at[0], range_end=at[1])
    return rpc.TxnRequest(failure=[rpc.RequestOp(request_delete_range=delete)])


def _shown(at: Range) -> str:
    key, end = (part.decode(errors="replace") for part in at)
    if not end:
        return key
    is_prefix = at[1] == at[0][:-1] + bytes([at[0][-1] + 1])
    return f"keys under {key}" if is_prefix else f"keys from {key} to before {end}"
