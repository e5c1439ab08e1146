"""Reads the settings of all sources into one record, with the source of each."""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, SettingsConfigDict

from aioflow.errors import SettingsError
from aioflow.settings import (
    FILE_NAME,
    NO_SETTINGS,
    PREFIX,
    Settings,
    database_url,
    is_loopback,
)

__all__ = ("read",)

_PASSWORD_MASK = "****"  # noqa: S105

_OF_CHILDREN = frozenset(
    {
        "AIOFLOW_CHILD_OF",
        "AIOFLOW_CHILD_WITHHELD",
        "AIOFLOW_LINK_FD",
        "AIOFLOW_BLACKBOX_FD",
        "AIOFLOW_LOG_NONCE",
    }
)
"""Variables that a daemon sets for its children, which pass them on, for example to a daemon."""

_OF_TESTS = "AIOFLOW_TEST_"
"""Prefix of variables for tests, ours and others, which are no misspelt settings."""


def _parts(value: object) -> object:
    """Split a comma-separated text. Return any other value unchanged."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Db(_Section):
    url: str = ""
    durability: Literal["full", "normal"] = "full"
    wait_seconds: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 300.0


class _Web(_Section):
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8793
    allow_remote: bool = False
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = ()

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        value = _parts(value)
        if isinstance(value, tuple | list):
            for part in value:
                if ipaddress.ip_network(str(part)).prefixlen == 0:
                    raise ValueError("this matches every address")
        return value


class _Slots(_Section):
    cpu: Annotated[int, Field(ge=1, le=4_096)] = Field(default_factory=lambda: os.cpu_count() or 1)
    coroutines: Annotated[int, Field(ge=1, le=1_000_000, alias="async")] = 1_000


class _Triggers(_Section):
    capacity: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000


class _Children(_Section):
    env: Annotated[tuple[str, ...], NoDecode] = ()

    @field_validator("env", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        value = _parts(value)
        if isinstance(value, tuple | list):
            for part in value:
                if not str(part) or "=" in str(part) or str(part).startswith(PREFIX):
                    raise ValueError(f"{part!r} cannot be passed to child processes")
        return value


class _Hosts(_Section):
    health_seconds: Annotated[float, Field(ge=1, le=86_400)] = 30.0
    memory_limit_bytes: Annotated[int, Field(ge=0)] = 2 * 1024**3
    stall_seconds: Annotated[float, Field(ge=0.01, le=86_400)] = 0.1


class _Daemon(_Section):
    grace_seconds: Annotated[float, Field(ge=0, le=86_400)] = 10.0
    until_idle: bool = False


class _Log(_Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "pretty", "json"] = "auto"
    cap_bytes: Annotated[int, Field(ge=1_024)] = 10 * 1024 * 1024


class _Parse(_Section):
    timeout_seconds: Annotated[float, Field(gt=0, le=3_600)] = 30.0
    look_seconds: Annotated[float, Field(ge=0.1, le=86_400)] = 5.0
    pause_seconds: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 1.0
    processes: Annotated[int, Field(ge=2, le=256)] = 6


class _Operators(_Section):
    default_deferrable: bool | None = None


class _Callbacks(_Section):
    processes: Annotated[int, Field(ge=1, le=64)] = 2
    per_second: Annotated[float, Field(gt=0, le=100_000)] = 100.0
    timeout_seconds: Annotated[float, Field(ge=0.1, le=86_400)] = 60.0


class _Alerts(_Section):
    webhook: Annotated[str, Field(pattern=r"^(https?://.+)?$")] = ""
    webhook_secret: str = ""
    signing_secret: str = ""
    email: Annotated[tuple[str, ...], NoDecode] = ()
    sender: str = ""
    connection: str = "smtp"

    @field_validator("email", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        value = _parts(value)
        if isinstance(value, tuple | list) and not all("@" in str(part) for part in value):
            raise ValueError("these are not addresses")
        return value


class _Retries(_Section):
    per_run: Annotated[int, Field(ge=0)] = 0
    per_pool: Annotated[int, Field(ge=0)] = 0


class _Schedules(_Section):
    late_seconds: Annotated[float, Field(ge=0, le=31_536_000, allow_inf_nan=False)] = 300.0


class _Traces(_Section):
    export: bool = False


_Days = Annotated[float, Field(ge=0, le=36_500, allow_inf_nan=False)]


class _Retention(_Section):
    runs_days: _Days = 0.0
    events_days: _Days = 90.0
    journal_days: _Days = 7.0
    logs_days: _Days = 30.0
    versions_days: _Days = 30.0
    audit_days: _Days = 365.0


class _Document(BaseSettings):
    """The structure of ``aioflow.toml``, and of ``AIOFLOW_SECTION__KEY``."""

    model_config = SettingsConfigDict(
        extra="forbid", env_prefix=PREFIX, env_nested_delimiter="__", env_ignore_empty=True
    )

    dags: Annotated[tuple[str, ...], NoDecode] = ()
    default_tries: Annotated[int, Field(ge=1, le=1_000)] = 3
    db: _Db = _Db()
    web: _Web = _Web()
    slots: _Slots = Field(default_factory=_Slots)
    triggers: _Triggers = _Triggers()
    children: _Children = _Children()
    hosts: _Hosts = _Hosts()
    daemon: _Daemon = _Daemon()
    log: _Log = _Log()
    parse: _Parse = _Parse()
    operators: _Operators = _Operators()
    callbacks: _Callbacks = _Callbacks()
    alerts: _Alerts = _Alerts()
    retries: _Retries = _Retries()
    schedules: _Schedules = _Schedules()
    traces: _Traces = _Traces()
    retention: _Retention = _Retention()

    @field_validator("dags", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part for part in value.split(os.pathsep) if part)
        return value


def read(home: Path, home_source: str, overrides: Mapping[str, Any]) -> Settings:
    """See ``Settings.read``."""
    given = [
        ("file", _of_file(home / FILE_NAME)),
        ("environment", _of_environment()),
        ("flag", _of_flags(overrides)),
    ]
    merged: dict[str, Any] = {}
    sources = {"home": home_source}
    for kind, values in given:
        for name, value in _leaves(values):
            sources[name] = _source(kind, name, home)
            _put(merged, name, value)
    try:
        document = _Document.model_validate(merged)
    except ValidationError as exc:
        raise SettingsError(_told(exc, sources)) from exc
    return _settled(home, document, sources)


def _check(document: _Document) -> None:
    web = document.web
    if document.alerts.webhook and document.alerts.webhook_secret:
        raise SettingsError("say either alerts.webhook or alerts.webhook_secret, not both")
    if not is_loopback(web.host) and not web.allow_remote:
        raise SettingsError(
            f"web.host is {web.host}, which other machines can reach; "
            "add --allow-remote if that is meant"
        )


def _settled(home: Path, document: _Document, sources: dict[str, str]) -> Settings:
    _check(document)
    web = document.web
    from_file = sources.get("dags", "").startswith("file")
    dags = tuple(_folder(part, home if from_file else Path.cwd()) for part in document.dags)
    db_url = document.db.url or database_url(home)
    dags = dags or (_default_dags(home),)
    values = _shown_values(document, home, dags, db_url)
    return Settings(
        home=home,
        dags=dags,
        db=db_url,
        durability=document.db.durability,
        db_wait_seconds=document.db.wait_seconds,
        host=web.host,
        port=web.port,
        allow_remote=web.allow_remote,
        trusted_proxies=web.trusted_proxies,
        cpu_slots=document.slots.cpu,
        async_slots=document.slots.coroutines,
        trigger_capacity=document.triggers.capacity,
        children_env=document.children.env,
        hosts_health_seconds=document.hosts.health_seconds,
        hosts_memory_limit_bytes=document.hosts.memory_limit_bytes,
        hosts_stall_seconds=document.hosts.stall_seconds,
        grace_seconds=document.daemon.grace_seconds,
        until_idle=document.daemon.until_idle,
        log_level=document.log.level,
        log_format=document.log.format,
        log_cap_bytes=document.log.cap_bytes,
        parse_timeout_seconds=document.parse.timeout_seconds,
        parse_look_seconds=document.parse.look_seconds,
        parse_pause_seconds=document.parse.pause_seconds,
        parse_processes=document.parse.processes,
        default_deferrable=document.operators.default_deferrable,
        default_tries=document.default_tries,
        callback_processes=document.callbacks.processes,
        callbacks_per_second=document.callbacks.per_second,
        callback_timeout_seconds=document.callbacks.timeout_seconds,
        alert_webhook=document.alerts.webhook,
        alert_webhook_secret=document.alerts.webhook_secret,
        alert_signing_secret=document.alerts.signing_secret,
        alert_email=document.alerts.email,
        alert_sender=document.alerts.sender,
        alert_connection=document.alerts.connection,
        retries_per_run=document.retries.per_run,
        retries_per_pool=document.retries.per_pool,
        schedule_late_seconds=document.schedules.late_seconds,
        export_traces=document.traces.export,
        keep_runs_days=document.retention.runs_days,
        keep_events_days=document.retention.events_days,
        keep_journal_days=document.retention.journal_days,
        keep_logs_days=document.retention.logs_days,
        keep_versions_days=document.retention.versions_days,
        keep_audit_days=document.retention.audit_days,
        sources={name: sources.get(name, "default") for name in sorted(values)},
        values=dict(sorted(values.items())),
        odd_variables=_odd_variables(values),
    )


def _shown_values(
    document: _Document, home: Path, dags: Iterable[Path], db_url: str
) -> dict[str, Any]:
    """Return the settings by name, in the form that may be displayed."""
    found = dict(_leaves(document.model_dump(by_alias=True)))
    found["home"] = str(home)
    found["dags"] = [str(path) for path in dags]
    found["db.url"] = _without_password(db_url)
    return found


def _default_dags(home: Path) -> Path:
    here = Path.cwd() / "dags"
    return here if here.is_dir() else home / "dags"


def _folder(part: str, base: Path) -> Path:
    path = base / Path(part).expanduser()
    if path.is_file():
        raise SettingsError(f"dags: {path} is a file; name the folder it lies in")
    return path


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    account, at, place = rest.rpartition("@")
    user, colon, _ = account.partition(":")
    hidden = f"{user}{colon}{_PASSWORD_MASK}" if colon else account
    return f"{scheme}{separator}{hidden}{at}{place}"


# ── sources ─────────────────────────────────────────────────────────────────────────────


def _of_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{path} is not TOML: {exc}") from exc
    except OSError as exc:
        raise SettingsError(f"{path} cannot be read: {exc.strerror}") from exc


def _of_environment() -> dict[str, Any]:
    sections = {f"{PREFIX}{name.upper()}__" for name in _Document.model_fields if name != "dags"}
    for name in os.environ:
        # Without two underscores it may belong to other software: a warning, see `_odd_variables`.
        if name.startswith(PREFIX) and "__" in name and not name.startswith(tuple(sections)):
            raise SettingsError(f"the variable {name} names no setting; see `aioflow config show`")
    try:
        return EnvSettingsSource(_Document)()
    except ValueError as exc:
        raise SettingsError(f"the environment cannot be understood: {exc}") from exc


def _odd_variables(settings: Iterable[str]) -> dict[str, str]:
    """Return variables that look like settings but are none, each with the most similar setting."""
    known = {_variable(name) for name in settings} | NO_SETTINGS
    sections = {_variable(name) for name in _Document.model_fields}
    ours = known | sections | _OF_CHILDREN
    named = (name for name in sorted(os.environ) if name.startswith(PREFIX))
    odd = (name for name in named if name not in ours and not name.startswith(_OF_TESTS))
    return {name: _nearest(name, known) for name in odd}


def _nearest(name: str, known: Iterable[str]) -> str:
    # Compare without the common prefix, which would make any name similar.
    ends = {one.removeprefix(PREFIX): one for one in known}
    near = get_close_matches(name.removeprefix(PREFIX), ends, n=1)
    return ends[near[0]] if near else ""


def _variable(setting: str) -> str:
    return f"{PREFIX}{setting.upper().replace('.', '__')}"


def _of_flags(overrides: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in overrides.items():
        if value is not None:
            _put(values, name, value)
    return values


def _source(kind: str, name: str, home: Path) -> str:
    match kind:
        case "file":
            return f"file {home / FILE_NAME}"
        case "environment":
            return f"environment {_variable(name)}"
        case _:
            return "flag"


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    *sections, key = name.split(".")
    for section in sections:
        inner = values.setdefault(section, {})
        if not isinstance(inner, dict):
            raise SettingsError(f"{section} is a section of settings, not a value")
        values = inner
    values[key] = value


def _told(exc: ValidationError, sources: Mapping[str, str]) -> str:
    problem = exc.errors()[0]
    name = ".".join(str(part) for part in problem["loc"])
    source = _first(sources, lambda known: known == name or known.startswith(f"{name}."))
    what = "there is no such setting" if problem["type"] == "extra_forbidden" else problem["msg"]
    return f"{name}: {what[:1].lower()}{what[1:]} ({source})"


def _first(sources: Mapping[str, str], fits: Callable[[str], bool]) -> str:
    return next((source for name, source in sources.items() if fits(name)), "default")
