"""Values that do not exist while a DAG is written, and refuse to be used as if they did."""

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
    """Base of all references. Passing it on is all one can do with it."""

    def _label(self) -> str:
        """Return how the author calls it."""
        raise NotImplementedError

    @property
    def binding(self) -> Binding:
        """Where the value will come from."""
        raise NotImplementedError

    def _refuse(self, operation: str) -> NoReturn:
        raise misused(self._label(), operation)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._label()}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            # Python itself, dataclasses and copy ask for these to see what an object can do.
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
