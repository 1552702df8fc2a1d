"""A wrong etcd3 package is named, and a right one is loaded without its client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRY = """
from cron_leader.errors import ConfigError
try:
    import cron_leader.etcd.stubs
except ConfigError as error:
    print(error)
"""


def run(program: str, *path: Path) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT)))}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def foreign(folder: Path, stubs: str) -> Path:
    package = folder / "etcd3" / "etcdrpc"
    package.mkdir(parents=True)
    (folder / "etcd3" / "__init__.py").write_text("raise AssertionError('must not be run')")
    (package / "__init__.py").write_text(stubs)
    return folder


def test_stubs_unfit_for_our_protobuf_are_named_with_the_cure(tmp_path: Path) -> None:
    path = foreign(tmp_path, "raise TypeError('Descriptors cannot be created directly.\\nmore')")
    assert run(TRY, path) == (
        "the installed etcd3 package does not work (Descriptors cannot be created directly.): "
        "uninstall etcd3, cslab-etcd3 and python3-etcd3, then install python3-etcd3"
    )


def test_stubs_that_lack_what_we_need_are_named(tmp_path: Path) -> None:
    said = run(TRY, foreign(tmp_path, "class KVStub: pass"))
    assert said.startswith("the installed etcd3 package lacks LeaseStub, WatchStub")


def test_the_client_of_the_package_is_not_loaded_but_stays_usable() -> None:
    program = """
import sys
import cron_leader.etcd.stubs as stubs
assert "etcd3.client" not in sys.modules
import etcd3
assert etcd3.etcdrpc is stubs.rpc and etcd3.client
print("ok")
"""
    assert run(program) == "ok"


def test_importing_the_package_loads_no_grpc() -> None:
    program = """
import sys
import cron_leader.etcd.embedded
assert "grpc" not in sys.modules
print("ok")
"""
    assert run(program) == "ok"
