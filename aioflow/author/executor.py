"""The executor of a task, and the resources and options that it requires of a worker."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from aioflow.errors import BadExecutor
from aioflow.model.dag import Body
from aioflow.model.workers import LOCAL

__all__ = (
    "executor_name",
    "executor_of",
    "packed_options",
    "resources_of",
    "set_default_executor",
)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKMGTP]i?)?B", re.ASCII)
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}

RESOURCES_LIMIT = 16
OPTIONS_LIMIT_BYTES = 4_096
_AMOUNT_LIMIT = 1e18

_default_executor = LOCAL


def set_default_executor(name: str) -> None:
    """Set the daemon's setting ``executor`` in this process."""
    global _default_executor  # noqa: PLW0603 - one setting of a process, set once before any user code
    _default_executor = name


def executor_name(value: object, name: str = "executor") -> str | None:
    """Return the validated name of an executor; ``None`` if none is set.

    Raises:
        ValueError: If it is not a name.
    """
    if value is None:
        return None
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(
            f"{name} must be the name of an executor in the settings, such as 'dask', got {value!r}"
        )
    return value


def resources_of(value: object) -> tuple[tuple[str, float], ...]:
    """Return validated resources, sorted by name. Sizes such as ``"4GiB"`` become bytes.

    Raises:
        ValueError: If a name or an amount is not valid.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f'resources must be a dict, such as {{"GPU": 1}}, got {value!r}')  # noqa: TRY004 - see settled()
    if len(value) > RESOURCES_LIMIT:
        raise ValueError(f"resources has {len(value)} names; at most {RESOURCES_LIMIT} are allowed")
    for name in value:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"a resource cannot be named {name!r}; use letters, digits, _ and -")
    return tuple(sorted((name, _amount(name, value[name])) for name in value))


def _amount(name: str, value: object) -> float:
    amount = math.nan
    if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
        number, unit = found.groups(default="")
        amount = float(number) * (1024 if unit.endswith("i") else 1000) ** _POWERS[unit[:1]]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        amount = float(value)
    if not 0 < amount <= _AMOUNT_LIMIT:
        raise ValueError(
            f'resource {name!r} must be a number above 0 or a size such as "4GiB", got {value!r}'
        )
    return amount


def packed_options(value: object) -> bytes:
    """Return the options for an executor as a msgpack map with sorted keys; empty for none.

    Raises:
        ValueError: If it is not a dict of plain values with text as keys.
    """
    if value == {}:
        return b""
    try:
        packed = msgspec.msgpack.encode(value, order="deterministic")
        decoded = msgspec.msgpack.decode(packed, type=dict[str, Any])
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        raise ValueError(
            f"executor_options must be a dict of texts, numbers and lists: {exc}"
        ) from None
    if decoded != value:  # a tuple, a set or an object would reach the executor as something else
        raise ValueError("executor_options may contain only texts, numbers, lists and dicts")
    if len(packed) > OPTIONS_LIMIT_BYTES:
        raise ValueError(f"executor_options may have {OPTIONS_LIMIT_BYTES} bytes at most")
    return packed


def executor_of(
    named: str | None,
    of_dag: str | None,
    body: Body,
    *,
    is_sensor: bool,
    has_requirements: bool,
) -> str:
    """Return the executor of a task: its own, or for a ``def`` task that of its DAG or the default.

    Args:
        named: The executor that the task names.
        of_dag: The executor that its DAG names.
        is_sensor: Whether the task is a sensor, which runs locally unless it names an executor.
        has_requirements: Whether the task has resources or options for its executor.

    Raises:
        BadExecutor: If the task cannot run where it says.
    """
    is_function = body is Body.FUNCTION
    if not is_function and (named not in {None, LOCAL} or has_requirements):
        raise BadExecutor(
            "an `async def` task runs in the daemon's event loop host, so executor=, resources= "
            "and executor_options= do not apply to it; make it a `def` task, or name the executor "
            "with @dag(executor=...), which concerns `def` tasks only"
        )
    found = named
    if found is None:
        found = (of_dag or _default_executor) if is_function and not is_sensor else LOCAL
    if found == LOCAL and has_requirements:
        raise BadExecutor(
            "the executor 'local' offers no resources= and no executor_options=; name another "
            "executor, or limit concurrent tasks with pool="
        )
    return found
