"""Fixtures for tests of child processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.worker.peer import Child


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder with subfolders for code and results."""
    (tmp_path / "code").mkdir()
    (tmp_path / "results").mkdir()
    return tmp_path


@pytest.fixture
def spawn(home: Path) -> Iterator[Callable[..., Child]]:
    """Return a function that starts a child of a role. All children end with the test."""
    with ExitStack() as children:
        yield lambda role, **options: children.enter_context(Child(role, home, **options))
