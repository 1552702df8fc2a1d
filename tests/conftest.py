"""What all sessions below one `pytest` share: xdist's workers, and the canaries' own sessions."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

from tests.shelf import SHELF

_made = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    if SHELF not in os.environ:
        config.stash[_made] = os.environ[SHELF] = tempfile.mkdtemp(prefix="clpg-shelf-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(_made, None):
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.pop(SHELF, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest first: begun last, they would keep the other workers waiting."""
    items.sort(key=lambda item: item.get_closest_marker("long_file") is None)
