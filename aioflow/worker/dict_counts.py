"""Tells which of many dicts may have changed, without touching the others.

A process that was forked copies each page of memory that it writes to, and looking at an object
counts a reference to it. Comparing what some ten thousand names lead to costs a parser more than
all else it does; the dicts of CPython count their changes themselves (PEP 509), up to 3.12.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ("DictCounts",)

_OFFSET = 24
"""Of the count: behind the reference count, the type, and the length."""

# As they are before any DAG file is imported.
_enumerate, _map, _range, _at_address = enumerate, map, range, ctypes.c_uint64.from_address


def _word_at(place: int) -> int:
    return _at_address(place).value


def _has_counts() -> bool:
    """Whether the dicts of this Python count their changes, and where they are expected to."""
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 13):
        return False
    tried = {"a": 1}
    place = id(tried) + _OFFSET
    before = _word_at(place)
    tried["a"] = 2
    return _word_at(place) != before


_HAS_COUNTS = _has_counts()


class DictCounts:
    """The counts of some dicts as they are now. The caller keeps the dicts.

    Args:
        scopes: Dicts, or views of the dicts of classes.
    """

    def __init__(self, scopes: Sequence[Mapping[str, Any]]) -> None:
        places = [_address(scope) + _OFFSET for scope in scopes] if _HAS_COUNTS else []
        self._size = len(scopes)
        self._places = array("Q", places)
        self._counts = array("Q", map(_word_at, places))

    def changed(self) -> Iterable[int]:
        """Return the positions of those that may have changed: all, where they are not counted."""
        if not self._places:
            return _range(self._size)
        now = array("Q", _map(_word_at, self._places))
        return [at for at, count in _enumerate(self._counts) if now[at] != count]


def _address(scope: Mapping[str, Any]) -> int:
    return id(scope if isinstance(scope, dict) else gc.get_referents(scope)[0])
