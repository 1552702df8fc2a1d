"""Faults of an etcd cluster: its members, its keeping, and hands in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from chaos.faults import Stretch, processes
from chaos.worlds.services import EtcdCluster


def killed(cluster: EtcdCluster, names: Sequence[str]) -> Stretch:
    """As a power cut would; started again, on their data, at the end."""

    def begin() -> int:
        for name in names:
            cluster.kill(name)
        return len(names)

    def end() -> None:
        for name in names:
            cluster.launch(name)

    return Stretch("etcd kill", begin, end)


def frozen(cluster: EtcdCluster, names: Sequence[str]) -> Stretch:
    return processes.frozen("etcd freeze", lambda: [cluster.pid(name) for name in names])


def restored(cluster: EtcdCluster, forget: Callable[[], None], mend: Callable[[], None]) -> Stretch:
    """What the cluster holds when it begins is kept, and put back at the end, as a backup of the
    whole is: what came in between is gone, and revisions come again.

    forget: told before the old store serves. mend: what an operator does afterwards.
    """
    names = list(cluster.seats)

    def begin() -> int:
        members = [cluster.pid(name) for name in names]
        processes.STOPS.stop(members)
        for name in names:
            shutil.copytree(cluster.data(name), _kept(cluster, name))
        processes.STOPS.go_on(members)
        return len(names)

    def end() -> None:
        for name in names:
            cluster.kill(name)
            shutil.rmtree(cluster.data(name))
            _kept(cluster, name).rename(cluster.data(name))
        forget()
        for name in names:
            cluster.launch(name)
        mend()

    return Stretch("etcd restore", begin, end)


def _kept(cluster: EtcdCluster, name: str) -> Path:
    data = cluster.data(name)
    return data.with_name(f"{data.name}.kept")
