"""Fixtures of the author tests. Every test starts without registered DAGs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aioflow.author.dag import forget_registered


@pytest.fixture(autouse=True)
def _nothing_registered() -> Iterator[None]:
    forget_registered()
    yield
    forget_registered()
