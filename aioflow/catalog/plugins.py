"""Plug-ins: packages with triggers, found through the entry-point group ``aioflow.triggers``.

Their code is imported in a child process, never in this process. Their triggers are run by class
path, like any other trigger. A broken plug-in is logged and does not affect other plug-ins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

import anyio.to_thread
import msgspec

from aioflow.catalog.parse import Parser
from aioflow.protocol.reports import DagFailure, TriggerKind
from aioflow.telemetry.log import Logger

__all__ = ("GROUP", "PlugIn", "inspect_plug_in", "plug_ins", "warn_of_broken")

GROUP = "aioflow.triggers"

_OURS = "aioflow-engine"

_log = Logger(__name__)


class PlugIn(msgspec.Struct, frozen=True, kw_only=True):
    """An entry point of the group, and the result of importing it.

    Attributes:
        name: Name of the entry point.
        module: The module that the entry point names.
        package: The distribution that contains it.
        kinds: The triggers found in it.
        failure: Why no triggers were found; ``None`` if there is no failure.
    """

    name: str
    module: str
    package: str
    kinds: tuple[TriggerKind, ...] = ()
    failure: DagFailure | None = None


def plug_ins() -> list[PlugIn]:
    """Return the installed plug-ins, sorted by name. Reads only metadata. May block."""
    found = {
        (point.name, point.value): PlugIn(
            name=point.name,
            module=point.value,
            package=point.dist.name if point.dist is not None else "",
        )
        for point in entry_points(group=GROUP)
    }
    return [plug_in for _, plug_in in sorted(found.items())]


async def inspect_plug_in(plug_in: PlugIn, parser: Parser) -> PlugIn:
    """Return a plug-in with its triggers, or with the reason why it has none.

    Raises:
        OSError: If no further process can be started.
    """
    seen = await parser.inspect(plug_in.module)
    return msgspec.structs.replace(plug_in, kinds=seen.kinds, failure=seen.failure)


async def warn_of_broken(
    parser: Parser, learn: Callable[[Sequence[TriggerKind]], None] = lambda _: None
) -> None:
    """Log which plug-ins of packages other than aioflow's own cannot be imported.

    Args:
        learn: Called with the triggers of each plug-in.
    """
    for plug_in in await anyio.to_thread.run_sync(plug_ins):
        if plug_in.package == _OURS:
            continue
        try:
            seen = await inspect_plug_in(plug_in, parser)
        except OSError as exc:
            _log.warning("a plug-in was not checked", plug_in=plug_in.name, error=str(exc))
            continue
        learn(seen.kinds)
        if seen.failure is not None:
            facts = {"plug_in": seen.name, "module": seen.module, "package": seen.package}
            _log.warning("a plug-in cannot be imported", **facts, error=seen.failure.message)
