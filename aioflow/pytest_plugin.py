"""The pytest fixture ``sim``. Every session of pytest loads this, so nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

__all__ = ("sim",)


@pytest.fixture
def sim() -> Iterator[Any]:
    """A node with an empty database on virtual time; see ``aioflow.testing.Sim``."""
    from aioflow.testing import Sim

    with Sim() as opened:
        yield opened
