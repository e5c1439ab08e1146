"""The pytest fixture ``sim``.

Every pytest session loads this module, so it imports nothing heavy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

__all__ = ("pytest_configure", "pytest_unconfigure", "sim")

_terminal = pytest.StashKey[int]()
"""Key of a copy of standard error, made before pytest captures the output of tests."""


def pytest_configure(config: pytest.Config) -> None:
    """Duplicate standard error, for messages that must be visible while a test hangs."""
    try:
        config.stash[_terminal] = os.dup(2)
    except OSError:
        return  # there is no standard error


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the copy of standard error."""
    if _terminal in config.stash:
        os.close(config.stash[_terminal])
        del config.stash[_terminal]


@pytest.fixture
def sim(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A node with an empty database on virtual time; see ``aioflow.testing.Sim``."""
    from aioflow.testing import Sim

    def tell(text: str) -> None:
        terminal = request.config.stash.get(_terminal, 2)
        os.write(terminal, f"\n{request.node.nodeid}: {text}\n".encode(errors="replace"))

    with Sim(on_standstill=tell) as opened:
        yield opened
