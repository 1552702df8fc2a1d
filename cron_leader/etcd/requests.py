"""The few requests the election is made of, built from etcd's generated messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cron_leader.etcd.stubs import rpc


def get(key: bytes) -> Any:
    """A linearizable read of one key."""
    return rpc.RangeRequest(key=key)


def get_prefix(prefix: bytes, *, keys_only: bool = False) -> Any:
    """A linearizable read of all keys under `prefix`, which ends in "/"."""
    return rpc.RangeRequest(key=prefix, range_end=_end(prefix), keys_only=keys_only)


def when(compare: Sequence[Any], then: Sequence[Any], otherwise: Sequence[Any] = ()) -> Any:
    return rpc.TxnRequest(compare=compare, success=then, failure=otherwise)


def reads(*ranges: Any) -> Any:
    """Several reads as one, linearizable: all of them see the same revision."""
    return rpc.TxnRequest(success=[rpc.RequestOp(request_range=each) for each in ranges])


def only_reads(txn: Any) -> bool:
    """Whether it changes nothing, whatever it compares."""
    ops = (*txn.success, *txn.failure)
    return all(op.WhichOneof("request") == "request_range" for op in ops)


def read_prefix(prefix: bytes) -> Any:
    """get_prefix, in a transaction."""
    return rpc.RequestOp(request_range=get_prefix(prefix))


def created_at(key: bytes, revision: int) -> Any:
    """revision 0: the key does not exist."""
    return rpc.Compare(
        key=key, target=rpc.Compare.CREATE, result=rpc.Compare.EQUAL, create_revision=revision
    )


def modified_at(key: bytes, revision: int) -> Any:
    return rpc.Compare(
        key=key, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=revision
    )


def put(key: bytes, value: bytes, *, lease: int = 0) -> Any:
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease))


def read(key: bytes) -> Any:
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key))


def delete(key: bytes) -> Any:
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))


def _end(prefix: bytes) -> bytes:
    return prefix[:-1] + bytes([prefix[-1] + 1])
