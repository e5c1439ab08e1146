"""Which databases a test of what stands on a store runs on."""

from __future__ import annotations

import pytest

__all__ = ("DATABASES", "on_both_databases")

DATABASES = ("sqlite", pytest.param("postgres", marks=pytest.mark.postgres))

on_both_databases = pytest.mark.parametrize("store_url", DATABASES, indirect=True)
"""The test runs on PostgreSQL in ``make test``, too: no test of the store itself asks the same."""
