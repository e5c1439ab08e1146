"""One request on its way: which it is, who sends it, and what became of it."""

from __future__ import annotations

from typing import cast

import msgspec
from starlette.types import Scope

from aioflow.api.auth_cache import Caller
from aioflow.model.access import Actor, caller_name

__all__ = ("Asking", "asking_of", "put_asking")

_PLACE = "aioflow.asking"


class Asking(msgspec.Struct):
    """A request.

    Attributes:
        request_id: Names it in answers and in the log.
        address: Where it comes from; empty over the home's socket.
        caller: Who sends it; ``None`` for nobody known.
        cookie: What the cookie of its session holds.
        target: What the audit says a refused one was for, if not its path.
        code: Of the problem it was answered with.
    """

    request_id: str
    address: str
    caller: Caller | None = None
    cookie: str | None = None
    target: str = ""
    code: str | None = None

    @property
    def actor(self) -> Actor | None:
        """Who it is, as the audit tells it."""
        caller = self.caller
        if caller is None:
            return None
        name = caller_name(caller.name, caller.kind)
        return Actor(name=name, role=caller.role, address=self.address)


def put_asking(scope: Scope, asking: Asking) -> None:
    """Have the request be found in its scope, and in copies of that."""
    scope[_PLACE] = asking


def asking_of(scope: Scope) -> Asking | None:
    """Return the request of a scope; ``None`` where it did not pass the guard."""
    return cast("Asking | None", scope.get(_PLACE))
