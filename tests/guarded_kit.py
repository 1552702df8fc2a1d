"""An etcd with authentication on, and users with the rights that the operations page documents."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from cron_leader.etcd.embedded import EmbeddedEtcd, EtcdOptions
from tests.docs.blocks import ROOT, blocks
from tests.etcd_kit import QUICK, etcdctl

SECRET = "s3cret"
"""Of root, and of every user to begin with."""


@contextlib.contextmanager
def guarded_etcd(folder: Path, *extra: str) -> Iterator[EmbeddedEtcd]:
    """root may all. extra: arguments of etcd's."""
    options = EtcdOptions(QUICK.heartbeat_ms, QUICK.election_ms, extra)
    with EmbeddedEtcd(folder / "data", options=options) as etcd:
        for line in (
            f"user add root:{SECRET}",
            "role add root",
            "user grant-role root root",
            "auth enable",
        ):
            etcdctl(etcd, *line.split())
        yield etcd


def grant_as_documented(
    etcd: EmbeddedEtcd, keys: str, *, user: str, kind: str = "readwrite"
) -> None:
    """Role and user are called `user`, the rights are `kind` on what begins with `keys`."""
    instead = {"/cron-leader/default/": keys, "cron-leader": user, "readwrite": kind}
    for words in _documented():
        as_root(etcd, *(instead.get(word, word) for word in words), said=f"{SECRET}\n")


def change_password(etcd: EmbeddedEtcd, user: str, password: str) -> None:
    """etcd forgets the user's tokens."""
    as_root(etcd, "user", "passwd", user, "--interactive=false", said=f"{password}\n")


def as_root(etcd: EmbeddedEtcd, *words: str, said: str = "") -> None:
    etcdctl(etcd, *words, user=f"root:{SECRET}", said=said)


def _documented() -> list[list[str]]:
    """The commands of the operations page."""
    (block,) = (
        b for b in blocks(ROOT / "docs" / "operations.md") if b.text.startswith("etcdctl role add")
    )
    return [line.partition(" < ")[0].split()[1:] for line in block.text.splitlines()]
