"""Tells which of many dicts may have changed, without touching the others.

A forked process copies each memory page that it writes to, and reading an object writes its
reference count. Comparing the values of some ten thousand names would be the most expensive part
of a parser's work. CPython up to 3.12 counts the changes of each dict itself (PEP 509).
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
"""Offset of the counter: after the reference count, the type, and the length."""

# References from before any DAG file is imported, which could replace the originals.
_enumerate, _map, _range, _at_address = enumerate, map, range, ctypes.c_uint64.from_address


def _word_at(place: int) -> int:
    return _at_address(place).value


def _has_counts() -> bool:
    """Return whether dicts of this Python have a change counter at the expected offset."""
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 13):
        return False
    tried = {"a": 1}
    place = id(tried) + _OFFSET
    before = _word_at(place)
    tried["a"] = 2
    return _word_at(place) != before


_HAS_COUNTS = _has_counts()


class DictCounts:
    """The change counters of some dicts at the time of creation. The caller keeps the dicts alive.

    Args:
        scopes: Dicts, or views of the dicts of classes.
    """

    def __init__(self, scopes: Sequence[Mapping[str, Any]]) -> None:
        places = [_address(scope) + _OFFSET for scope in scopes] if _HAS_COUNTS else []
        self._size = len(scopes)
        self._places = array("Q", places)
        self._counts = array("Q", map(_word_at, places))

    def changed(self) -> Iterable[int]:
        """Return the indexes of the dicts that may have changed: all, if there are no counters."""
        if not self._places:
            return _range(self._size)
        now = array("Q", _map(_word_at, self._places))
        return [at for at, count in _enumerate(self._counts) if now[at] != count]


def _address(scope: Mapping[str, Any]) -> int:
    return id(scope if isinstance(scope, dict) else gc.get_referents(scope)[0])
