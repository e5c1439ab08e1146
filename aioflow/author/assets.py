"""Assets: named outputs of tasks, whose updates start runs of other DAGs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

from aioflow.author import codec
from aioflow.errors import DagError, ValueTooLarge
from aioflow.model.triggers import ASSET, AssetCondition

__all__ = (
    "Asset",
    "AssetExpression",
    "AssetSchedule",
    "asset_condition",
    "lists_assets",
    "outlets_of",
)

NAME_LENGTH = 250 - len(ASSET)
EXTRA_LIMIT = 4_096
OUTLETS_LIMIT = 64


class _Combinable:
    """Base class that provides the operators ``&`` and ``|`` of assets and asset expressions."""

    def __and__(self, other: Asset | AssetExpression) -> AssetExpression:
        return AssetExpression(True, (self, other))

    def __or__(self, other: Asset | AssetExpression) -> AssetExpression:
        return AssetExpression(False, (self, other))

    def __bool__(self) -> bool:
        raise DagError("an asset is neither true nor false; write & and | in place of and and or")


@dataclass(frozen=True)
class Asset(_Combinable):
    """Something that tasks produce and other DAGs depend on, such as a table or a file.

    ``@task(outlets=[Asset("orders")])`` makes each success of the task update the asset;
    ``@dag(schedule=Asset("orders"))`` starts a run for each update. ``a & b``, or ``[a, b]``,
    waits until both assets were updated since the last run, ``a | b`` until one of them was.

    Attributes:
        name: A name or a URI, at most 244 printable characters.
        extra: A value sent along with each update; serializable, at most 4 KiB.
    """

    name: str
    extra: object = None

    def __post_init__(self) -> None:
        name: object = self.name
        good = isinstance(name, str) and 0 < len(name) <= NAME_LENGTH and name.isprintable()
        if not good:
            raise DagError(f"the name of an asset is 1 to {NAME_LENGTH} printable characters")
        try:
            codec.encode(self.extra, f"the extra of asset {self.name!r}", EXTRA_LIMIT)
        except ValueTooLarge as exc:
            raise DagError(str(exc)) from None


@dataclass(frozen=True)
class AssetExpression(_Combinable):
    """A combination of assets: either all of them must be updated, or any of them."""

    is_all: bool
    parts: tuple[Any, ...]


AssetSchedule: TypeAlias = Asset | AssetExpression | Sequence[Asset | AssetExpression]


def asset_condition(schedule: object) -> AssetCondition | None:
    """Return the asset condition of a schedule; ``None`` if it is not made of assets.

    Raises:
        DagError: If the schedule mixes assets with something else.
    """
    if isinstance(schedule, Asset):
        return AssetCondition(True, (schedule.name,))
    if isinstance(schedule, AssetExpression):
        return AssetCondition(schedule.is_all, tuple(map(_part, schedule.parts)))
    if lists_assets(schedule):
        return AssetCondition(True, tuple(map(_part, schedule)))
    return None


def lists_assets(schedule: object) -> TypeGuard[Sequence[object]]:
    """Return whether a schedule is a list with at least one asset in it."""
    return isinstance(schedule, list | tuple) and any(
        isinstance(part, Asset | AssetExpression) for part in schedule
    )


def _part(said: object) -> str | AssetCondition:
    if isinstance(said, Asset):
        return said.name
    condition = asset_condition(said) if isinstance(said, AssetExpression) else None
    if condition is None:
        raise DagError(f"{said!r} is not an asset; a list as schedule must contain assets")
    return condition


def outlets_of(said: object) -> tuple[tuple[str, bytes], ...]:
    """Return the names of a task's outlets, each with its ``extra`` as msgpack.

    Raises:
        ValueError: If ``said`` is not a list of assets.
    """
    assets = [said] if isinstance(said, Asset) else said
    if not isinstance(assets, list | tuple) or not all(isinstance(one, Asset) for one in assets):
        raise ValueError(f"outlets must be a list of assets, got {said!r}")
    if len(assets) > OUTLETS_LIMIT:
        raise ValueError(f"a task may have {OUTLETS_LIMIT} outlets, not {len(assets)}")
    named = {
        one.name: codec.encode(one.extra, f"asset {one.name!r}", EXTRA_LIMIT) for one in assets
    }
    return tuple(named.items())
