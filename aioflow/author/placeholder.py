"""Placeholders for values that do not exist while a DAG is defined. Using one raises an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from aioflow.author.binding import Binding
from aioflow.author.source_location import misused

__all__ = ("Unknown",)


def _refused(operation: str) -> Callable[..., Any]:
    def refuse(self: Unknown, *_: object) -> NoReturn:
        self._refuse(operation)

    return refuse


class Unknown:
    """Base class of all references. They can only be passed on."""

    def _label(self) -> str:
        """Return the author's name for it."""
        raise NotImplementedError

    @property
    def binding(self) -> Binding:
        """The binding that resolves to the value."""
        raise NotImplementedError

    def _refuse(self, operation: str) -> NoReturn:
        raise misused(self._label(), operation)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._label()}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            # Python itself, dataclasses and copy probe for such names.
            raise AttributeError(name)
        return self._refuse(f".{name}")

    __hash__ = object.__hash__
    __bool__ = _refused("a condition")
    __iter__ = _refused("a loop or unpacking")
    __len__ = _refused("len()")
    __contains__ = _refused("`in`")
    __str__ = _refused("text")
    __format__ = _refused("text")
    __int__ = _refused("int()")
    __float__ = _refused("float()")
    __index__ = _refused("an index")
    __call__ = _refused("a call")
    __eq__ = _refused("a comparison")
    __ne__ = _refused("a comparison")
    __lt__ = _refused("a comparison")
    __le__ = _refused("a comparison")
    __gt__ = _refused("a comparison")
    __ge__ = _refused("a comparison")
    __add__ = __radd__ = _refused("arithmetic")
    __sub__ = __rsub__ = _refused("arithmetic")
    __mul__ = __rmul__ = _refused("arithmetic")
    __truediv__ = __rtruediv__ = _refused("arithmetic")
    __mod__ = __rmod__ = _refused("arithmetic")
