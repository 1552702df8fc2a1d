"""The shape of the code: a module imports lower layers only, and the core touches nothing."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

PACKAGE = Path(__file__).parents[1] / "cron_leader"

LAYERS = (
    {"errors", "clock"},
    {"core"},
    {"fencing", "events", "config", "jobs", "link"},
    {"etcd", "ledger", "runners", "log", "testing"},
    {"control", "upkeep", "notices", "scribe", "supervision", "status"},
    {"daemon", "supervisor", "demo"},
    {"web", "cli"},
    {"__main__"},
)
"""Items (modules and packages of cron_leader) by layer; one layer's items do not import each other.
A new item is given its place here."""

LAYER = {item: number for number, items in enumerate(LAYERS) for item in items}

IMPURE = {
    "asyncio", "concurrent", "contextvars", "ctypes", "fcntl", "io", "logging", "multiprocessing",
    "os", "pathlib", "queue", "random", "secrets", "select", "selectors", "shutil", "signal",
    "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile", "threading", "time", "uuid",
    "warnings",
}  # fmt: skip
"""What the core may not import: it is given the time, and what is random."""

IMPURE_CALLS = {"open", "print", "input", "now", "utcnow", "today"}

T = TypeVar("T")


def modules() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(), str(path))
    return found


@cache
def imports(tree: ast.Module) -> frozenset[str]:
    """The dotted names a module imports: at its top, lazily, and for typing."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found.update(alias.name for alias in names)
            case ast.ImportFrom(module=str(source), names=names, level=0):
                found.add(source)
                found.update(f"{source}.{alias.name}" for alias in names)
    return frozenset(found)


def relative(tree: ast.Module) -> set[int]:
    """How far up the relative imports of a module reach."""
    return {n.level for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level}


def item_of(name: str) -> str | None:
    """The item a dotted name belongs to; None for the package itself and what is not ours."""
    root, _, rest = name.partition(".")
    return rest.partition(".")[0] if root == "cron_leader" and rest else None


def not_below(module: str, imported: Iterable[str]) -> set[str]:
    """The items among the imports that do not stand below the module's own."""
    own = item_of(module)
    items = {item for name in imported if (item := item_of(name)) in LAYER}
    return {item for item in items - {own} if own is not None and LAYER[item] >= LAYER[own]}


def roots(tree: ast.Module) -> set[str]:
    return {name.partition(".")[0] for name in imports(tree)}


def foreign(tree: ast.Module) -> set[str]:
    """What a module imports from outside the standard library."""
    return roots(tree) - sys.stdlib_module_names


def offenders(
    trees: Mapping[str, ast.Module], look: Callable[[str, ast.Module], set[T]]
) -> dict[str, set[T]]:
    """What is found wrong, by module."""
    return {name: wrong for name, tree in trees.items() if (wrong := look(name, tree))}


MODULES = modules()
CORE = {name: tree for name, tree in MODULES.items() if item_of(name) == "core"}
SUPERVISOR = {n: t for n, t in MODULES.items() if item_of(n) in {"supervisor", "supervision"}}


def test_every_module_has_a_layer() -> None:
    assert {item_of(name) for name in MODULES} - {None} <= LAYER.keys()


def test_a_module_imports_lower_layers_only() -> None:
    assert offenders(MODULES, lambda name, tree: not_below(name, imports(tree))) == {}


def test_the_package_itself_imports_nothing_until_it_is_asked() -> None:
    tree = MODULES["cron_leader"]
    at_the_top = ast.Module([n for n in tree.body if isinstance(n, ast.ImportFrom)], [])
    assert roots(at_the_top) <= {"__future__"}


def test_the_core_does_no_input_or_output() -> None:
    assert offenders(CORE, lambda _, tree: roots(tree) & IMPURE) == {}
    assert offenders(CORE, lambda _, tree: calls(tree) & IMPURE_CALLS) == {}


def test_the_core_stands_on_the_standard_library_and_cronsim() -> None:
    assert offenders(CORE, lambda _, tree: foreign(tree) - {"cron_leader", "cronsim"}) == {}


def calls(tree: ast.Module) -> set[str]:
    """The last name of everything that is called: `datetime.now()` is `now`."""
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {func.id for func in called if isinstance(func, ast.Name)}
    return names | {func.attr for func in called if isinstance(func, ast.Attribute)}


def test_the_supervisor_runs_on_the_standard_library() -> None:
    # supervision/ is found beside the script: the package itself is never imported
    assert offenders(SUPERVISOR, lambda _, tree: foreign(tree) - {"supervision"}) == {}


def test_imports_are_absolute_but_inside_supervision() -> None:
    found = offenders(MODULES, lambda _, tree: relative(tree))
    assert {item_of(name) for name in found} <= {"supervision"}
    assert set().union(*found.values()) <= {1}


def test_only_etcd_speaks_grpc() -> None:
    others = {name: tree for name, tree in MODULES.items() if item_of(name) != "etcd"}
    assert offenders(others, lambda _, tree: roots(tree) & {"grpc", "etcd3"}) == {}


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("cron_leader.etcd.lease", "from cron_leader.config import Config", set()),
        ("cron_leader.etcd.lease", "from cron_leader.etcd.keys import key", set()),
        ("cron_leader.etcd.lease", "from cron_leader import ledger", {"ledger"}),
        ("cron_leader.etcd.lease", "def f():\n    import cron_leader.daemon", {"daemon"}),
        ("cron_leader.core.node", "from cron_leader.events import Emit", {"events"}),
        ("cron_leader.cli.run", "if 1:\n    from cron_leader.__main__ import main", {"__main__"}),
    ],
)
def test_the_check_sees_an_import_that_is_not_below(
    module: str, source: str, found: set[str]
) -> None:
    assert not_below(module, imports(ast.parse(source))) == found


def test_the_check_sees_what_is_called() -> None:
    assert calls(ast.parse("datetime.now(UTC); open('x')")) == {"now", "open"}
