"""Options of tasks, as opposed to their arguments, validated where the author writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from string import Formatter
from typing import Any, Literal, TypedDict

import msgspec

from aioflow.author.assets import Asset, outlets_of
from aioflow.author.callbacks import TASK_EVENTS, Callback, Callbacks, callbacks_of
from aioflow.author.client import declared_names
from aioflow.author.duration import Duration, microseconds
from aioflow.author.source_location import dag_error
from aioflow.errors import BadExecutor, DagError
from aioflow.model.dag import DEFAULT_POOL, Body, RetryPolicy, SensorSpec, ValueKind
from aioflow.model.states import TriggerRule
from aioflow.model.workers import LOCAL

__all__ = (
    "SENSOR_NAMES",
    "TASK_NAMES",
    "OperatorOptions",
    "Retry",
    "RuleName",
    "SensorClassOptions",
    "SensorOptions",
    "Settings",
    "TaskOptions",
    "check_names",
    "executor_name",
    "executor_of",
    "rule_of",
    "set_default_executor",
    "set_default_tries",
    "settled",
    "without_replaced",
)

_default_tries = 3


def set_default_tries(tries: int) -> None:
    """Set the daemon's setting ``default_tries`` in this process."""
    global _default_tries  # noqa: PLW0603 - a setting of the process, set before any user code
    _default_tries = tries


def _tries_by_default() -> int:
    return _default_tries


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often and when a failed task is retried.

    The delay before try n + 1 is ``delay * factor ** (n - 1)``, at most ``max_delay``. By default
    jitter subtracts a random share of up to one half, so ``delay="10s"`` waits 5 to 10 s.

    Attributes:
        tries: The maximum number of tries, including the first; 3, unless the daemon's setting
            differs.
        jitter: Whether a random share of the delay is subtracted, so that tasks that fail together
            are not retried at the same moment. Without it, delays are exact.
        on: Retry only these errors; empty for all.
        unless: A function. Errors for which it returns true are not retried.

    Raises:
        ValueError: If a number is out of range.
        BadSchedule: If a delay is not a duration.
    """

    tries: int = field(default_factory=_tries_by_default)
    delay: Duration = 2.0
    factor: float = 2.0
    max_delay: Duration | None = None
    jitter: bool = True
    on: tuple[type[BaseException], ...] = ()
    unless: Callable[[BaseException], bool] | None = None

    def __post_init__(self) -> None:
        if type(self.tries) is not int or self.tries < 1:
            raise ValueError(f"tries counts the first one, so at least 1, got {self.tries!r}")
        if not 1.0 <= self.factor <= 1_000:
            raise ValueError(f"factor must be from 1 to 1000, got {self.factor!r}")
        if not isinstance(self.on, tuple):
            raise ValueError(f"on must be a tuple of exception classes, got {self.on!r}")  # noqa: TRY004
        self.policy()

    def policy(self) -> RetryPolicy:
        """Return the part of the policy that the engine evaluates."""
        return RetryPolicy(
            tries=self.tries,
            delay_us=microseconds(self.delay, "delay"),
            factor=float(self.factor),
            max_delay_us=(
                None if self.max_delay is None else microseconds(self.max_delay, "max_delay")
            ),
            jitter=bool(self.jitter),
        )

    def is_worth(self, error: BaseException) -> bool:
        """Return whether the error may be retried. Calls ``unless``: user code, which may raise."""
        if self.on and not isinstance(error, self.on):
            return False
        return self.unless is None or not self.unless(error)


RuleName = Literal[
    "all_success",
    "all_failed",
    "all_done",
    "all_done_min_one_success",
    "all_done_setup_success",
    "all_skipped",
    "one_success",
    "one_failed",
    "one_done",
    "none_failed",
    "none_failed_min_one_success",
    "none_skipped",
    "always",
]


class OperatorOptions(TypedDict, total=False):
    """Options of every task.

    ``retries`` and ``retry_delay`` are Airflow's form of ``retry``. ``pool_slots`` and
    ``priority_weight`` are Airflow's names for ``slots`` and ``priority``, and
    ``on_success_callback`` and the like are its names for our ``on_success`` and the like.
    """

    retry: Retry
    retries: int
    retry_delay: Duration
    trigger_rule: RuleName | TriggerRule
    min_success: float
    pool: str
    slots: int
    pool_slots: int
    priority: int
    priority_weight: int
    map_limit: int
    window: int | None
    map_label: str | Callable[..., object] | None
    execution_timeout: Duration | None
    deadline: Duration | None
    max_wait: Duration | None
    max_active_tis_per_dagrun: int | None
    max_active_tis_per_dag: int | None
    depends_on_past: bool
    wait_for_downstream: bool
    on_code_change: Literal["fail", "restart", "keep"]
    secrets: Sequence[str]
    connections: Sequence[str]
    variables: Sequence[str]
    on_success: Callbacks
    on_failure: Callbacks
    on_retry: Callbacks
    on_skip: Callbacks
    on_ask: Callbacks
    on_deadline: Callbacks
    on_success_callback: Callbacks
    on_failure_callback: Callbacks
    on_retry_callback: Callbacks
    on_skipped_callback: Callbacks
    outlets: Sequence[Asset]
    executor: str | None
    resources: Mapping[str, float | str]
    executor_options: Mapping[str, Any]
    doc: str


class TaskOptions(OperatorOptions, total=False):
    """Options of ``@task``."""

    task_id: str


class SensorClassOptions(OperatorOptions, total=False):
    """Options of sensors. The last five are Airflow's names; ``mode`` has no effect here.

    For a sensor, ``max_wait`` is Airflow's name for ``max_interval``.
    """

    interval: Duration
    timeout: Duration
    backoff: float
    max_interval: Duration | None
    on_timeout: Literal["fail", "skip"]
    on_error: Literal["retry", "skip", "ignore"]
    mode: Literal["poke", "reschedule"]
    poke_interval: Duration
    soft_fail: bool
    exponential_backoff: bool
    silent_fail: bool


class SensorOptions(SensorClassOptions, total=False):
    """Options of ``@sensor``."""

    task_id: str


TASK_NAMES = frozenset(TaskOptions.__annotations__)
SENSOR_NAMES = frozenset(SensorOptions.__annotations__)
_AIRFLOW_NAMES = {
    "pool_slots": "slots",
    "priority_weight": "priority",
    "poke_interval": "interval",
    "on_success_callback": "on_success",
    "on_failure_callback": "on_failure",
    "on_retry_callback": "on_retry",
    "on_skipped_callback": "on_skip",
}
_AIRFLOW_SENSOR_NAMES = {**_AIRFLOW_NAMES, "max_wait": "max_interval"}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All options of a task. ``retry``, ``rule`` and ``executor`` are ``None`` if not set."""

    retry: Retry | None = None
    rule: TriggerRule | None = None
    min_success: float | None = None
    pool: str = DEFAULT_POOL
    slots: int = 1
    priority: int = 0
    map_limit: int = 50_000
    window: int | None = None
    map_label: str | Callable[..., object] | None = None
    execution_timeout_us: int | None = None
    deadline_us: int | None = None
    max_wait_us: int | None = None
    max_active_tis_per_dagrun: int | None = None
    max_active_tis_per_dag: int | None = None
    depends_on_past: bool = False
    wait_for_downstream: bool = False
    on_code_change: str = "fail"
    values: tuple[tuple[ValueKind, str], ...] = ()
    callbacks: Mapping[str, tuple[Callback, ...]] = {}
    outlets: tuple[tuple[str, bytes], ...] = ()
    executor: str | None = None
    resources: tuple[tuple[str, float], ...] = ()
    executor_options: bytes = b""
    doc: str = ""
    sensor: SensorSpec | None = None


def check_names(options: Mapping[str, object], *, is_sensor: bool, owner: str) -> None:
    """Raise if an option does not exist.

    Raises:
        DagError: If an option is unknown. The error names the first one.
    """
    known = SENSOR_NAMES if is_sensor else TASK_NAMES
    for name in options:
        if name not in known:
            raise dag_error(f"{owner} has no option {name!r}; there are {', '.join(sorted(known))}")


def without_replaced(options: Mapping[str, Any], by: Mapping[str, Any]) -> dict[str, Any]:
    """Drop options that ``by`` overrides under another name, so that the two can be merged."""
    remaining = dict(options)
    if "trigger_rule" in by:
        remaining.pop("min_success", None)
    elif "min_success" in by:
        remaining.pop("trigger_rule", None)
    if "retry" in by:
        remaining.pop("retries", None)
        remaining.pop("retry_delay", None)
    elif {"retries", "retry_delay"} & by.keys():
        remaining.pop("retry", None)
    return {
        name: value
        for name, value in remaining.items()
        if _AIRFLOW_SENSOR_NAMES.get(name) not in by
    }


def settled(options: Mapping[str, Any], *, is_sensor: bool, owner: str) -> Settings:
    """Return the validated options of a task.

    Args:
        options: The options of the task, merged with the DAG's defaults.
        is_sensor: Whether options of sensors are allowed.
        owner: Names the task in the error.

    Raises:
        DagError: If an option is unknown or its value is invalid.
    """
    check_names(options, is_sensor=is_sensor, owner=owner)
    names = _AIRFLOW_SENSOR_NAMES if is_sensor else _AIRFLOW_NAMES
    said = {names.get(name, name): value for name, value in options.items()}
    try:
        return Settings(
            retry=_retry(said),
            rule=_rule(said),
            min_success=_min_success(said),
            pool=_text(said, "pool", DEFAULT_POOL),
            slots=_count(said, "slots", 1, least=1),
            priority=_count(said, "priority", 0, least=-(1 << 31)),
            map_limit=_count(said, "map_limit", 50_000, least=1),
            window=_count_or_none(said, "window"),
            map_label=_map_label(said),
            execution_timeout_us=_positive(said, "execution_timeout"),
            deadline_us=_positive(said, "deadline"),
            max_wait_us=_positive(said, "max_wait"),
            max_active_tis_per_dagrun=_count_or_none(said, "max_active_tis_per_dagrun"),
            max_active_tis_per_dag=_count_or_none(said, "max_active_tis_per_dag"),
            depends_on_past=_flag(said, "depends_on_past") or _flag(said, "wait_for_downstream"),
            wait_for_downstream=_flag(said, "wait_for_downstream"),
            on_code_change=_one_of(said, "on_code_change", "fail", ("fail", "restart", "keep")),
            values=_values(said),
            callbacks=callbacks_of(said, TASK_EVENTS),
            outlets=outlets_of(said.get("outlets", ())),
            executor=executor_name(said.get("executor")),
            resources=resources_of(said.get("resources", {})),
            executor_options=packed_options(said.get("executor_options", {})),
            doc=_text(said, "doc", ""),
            sensor=_sensor(said) if is_sensor else None,
        )
    except DagError:
        raise
    except ValueError as exc:
        raise dag_error(f"{owner}: {exc}") from exc


def _retry(said: Mapping[str, Any]) -> Retry | None:
    retry = said.get("retry")
    in_airflow_words = {"retries", "retry_delay"} & said.keys()
    if retry is not None:
        if in_airflow_words:
            raise ValueError(f"say either retry or {in_airflow_words.pop()}, not both")
        if not isinstance(retry, Retry):
            raise ValueError(f"retry must be a Retry(...), got {retry!r}")
        return retry
    if not in_airflow_words:
        return None
    default = Retry()
    return Retry(
        tries=_count(said, "retries", default.tries - 1, least=0) + 1,
        delay=said.get("retry_delay", default.delay),
    )


def _rule(said: Mapping[str, Any]) -> TriggerRule | None:
    rule = said.get("trigger_rule")
    return None if rule is None else rule_of(rule, "trigger_rule")


def rule_of(rule: object, name: str) -> TriggerRule:
    """Return the trigger rule with this name.

    Raises:
        ValueError: If there is no such rule. The error names the option ``name`` and the valid
            rules.
    """
    try:
        return TriggerRule(rule)  # type: ignore[arg-type]  # raises for anything else
    except ValueError:
        rules = ", ".join(TriggerRule)
        raise ValueError(f"{name}={rule!r} is unknown; there are {rules}") from None


def _min_success(said: Mapping[str, Any]) -> float | None:
    share = said.get("min_success")
    if share is None:
        return None
    if said.get("trigger_rule") is not None:
        raise ValueError("say either trigger_rule or min_success, not both")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ValueError(f"min_success must be a share from 0 to 1, got {share!r}")
    return float(share)


def _sensor(said: Mapping[str, Any]) -> SensorSpec:
    default = SensorSpec()
    interval_us = _positive(said, "interval") or default.interval_us
    skips = "skip" if said.get("soft_fail") else default.on_timeout
    ignores = "ignore" if said.get("silent_fail") else default.on_error
    backoff = said.get("backoff", 2.0 if said.get("exponential_backoff") else default.backoff)
    if isinstance(backoff, bool) or not isinstance(backoff, int | float) or not 1 <= backoff <= 100:
        raise ValueError(f"backoff must be from 1 to 100, got {backoff!r}")
    _one_of(said, "mode", "poke", ("poke", "reschedule"))
    return SensorSpec(
        interval_us=interval_us,
        timeout_us=_positive(said, "timeout") or default.timeout_us,
        backoff=float(backoff),
        max_interval_us=_positive(said, "max_interval"),
        on_timeout=_one_of(said, "on_timeout", skips, ("fail", "skip")),
        on_error=_one_of(said, "on_error", ignores, ("retry", "skip", "ignore")),
    )


def _values(said: Mapping[str, Any]) -> tuple[tuple[ValueKind, str], ...]:
    """Return the declared secrets, connections and variables, without duplicates."""
    return tuple(
        dict.fromkeys(
            of for kind in ValueKind for of in declared_names(kind, said.get(f"{kind}s", ()))
        )
    )


def _map_label(said: Mapping[str, Any]) -> str | Callable[..., object] | None:
    label = said.get("map_label")
    if label is None or (callable(label) and not iscoroutinefunction(label)):
        return label
    if not isinstance(label, str):
        raise ValueError(f"map_label must be text or a plain function, got {label!r}")  # noqa: TRY004 - see settled()
    try:
        list(Formatter().parse(label))
    except ValueError as exc:
        raise ValueError(f"map_label={label!r}: {exc}") from None
    return label


def _one_of(said: Mapping[str, Any], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value: str = said.get(name, default)
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def _text(said: Mapping[str, Any], name: str, default: str) -> str:
    value = said.get(name, default)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text, got {value!r}")  # noqa: TRY004 - see settled()
    return value


def _flag(said: Mapping[str, Any], name: str) -> bool:
    value = said.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")  # noqa: TRY004 - see settled()
    return value


def _count(said: Mapping[str, Any], name: str, default: int, *, least: int) -> int:
    value = said.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 31:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return value


def _count_or_none(said: Mapping[str, Any], name: str) -> int | None:
    return None if said.get(name) is None else _count(said, name, 1, least=1)


def _positive(said: Mapping[str, Any], name: str) -> int | None:
    value = said.get(name)
    if value is None:
        return None
    length_us = microseconds(value, name)
    if length_us == 0:
        raise ValueError(f"{name} must be longer than nothing")
    return length_us


# ── executors ───────────────────────────────────────────────────────────────────────────

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKMGTP]i?)?B", re.ASCII)
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}

RESOURCES_LIMIT = 16
OPTIONS_LIMIT_BYTES = 4_096
_AMOUNT_LIMIT = 1e18

_default_executor = LOCAL


def set_default_executor(name: str) -> None:
    """Set the daemon's setting ``executor`` in this process."""
    global _default_executor  # noqa: PLW0603 - a setting of the process, set before any user code
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
    """Return the executor of a task.

    A task may name an executor. If a ``def`` task names none, it uses the executor of its DAG, or
    else the default one. All other tasks run locally.

    Args:
        named: The executor that the task names.
        of_dag: The executor that its DAG names.
        is_sensor: Whether the task is a sensor, which runs locally unless it names an executor.
        has_requirements: Whether the task has resources or options for its executor.

    Raises:
        BadExecutor: If the task cannot run on that executor.
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
