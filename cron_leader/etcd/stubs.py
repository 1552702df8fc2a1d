"""The generated messages and stubs of etcd's API (`rpc`), and gRPC, loaded as cheaply as can be.

`etcd3/__init__` imports a whole client with its dependencies, which nobody here uses: the stubs are
loaded beneath a stand-in for it. A later `import etcd3` by others still gets the real one.

Importing raises ConfigError when the stubs are missing, foreign or unfit for our protobuf.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

from cron_leader.errors import ConfigError

# gRPC's core writes handshake failures to stderr on its own; they are reported here, in one line.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_PACKAGE = "etcd3"
_CURE = "uninstall etcd3, cslab-etcd3 and python3-etcd3, then install python3-etcd3"
_NEEDED = ("KVStub", "LeaseStub", "WatchStub", "AuthStub", "WatchProgressRequest", "Compare")


def load() -> Any:
    """The module etcd3.etcdrpc; ConfigError naming cause and cure if it cannot serve."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise ConfigError("the package etcd3 is missing: install python3-etcd3")
    try:
        rpc = _import_beneath(list(spec.submodule_search_locations))
    except Exception as error:  # generated code of another age fails in any way it likes
        cause = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConfigError(
            f"the installed etcd3 package does not work ({cause}): {_CURE}"
        ) from error
    if missing := [name for name in _NEEDED if not hasattr(rpc, name)]:
        raise ConfigError(f"the installed etcd3 package lacks {', '.join(missing)}: {_CURE}")
    return rpc


def _import_beneath(locations: list[str]) -> ModuleType:
    """Import etcd3.etcdrpc without running etcd3/__init__."""
    if _PACKAGE in sys.modules:
        return importlib.import_module(f"{_PACKAGE}.etcdrpc")
    stand_in = ModuleType(_PACKAGE)
    stand_in.__path__ = locations
    sys.modules[_PACKAGE] = stand_in
    try:
        return importlib.import_module(f"{_PACKAGE}.etcdrpc")
    finally:
        del sys.modules[_PACKAGE]


rpc = load()
