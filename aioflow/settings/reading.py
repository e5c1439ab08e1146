"""Reading of the settings from all sources into one record, with the source of each setting."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, SettingsConfigDict

from aioflow.errors import SettingsError
from aioflow.settings import (
    FILE_NAME,
    NO_SETTINGS,
    PREFIX,
    Setting,
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
"""Variables that a daemon sets for its children.

They are not settings, but a daemon that is started by such a child inherits them.
"""

_OF_TESTS = "AIOFLOW_TEST_"
"""Prefix of variables for tests of aioflow and of other projects. They are not misspelt settings.
"""


PYTHONS = "pythons"
_PYTHON_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class _Python(BaseModel):
    """The table of one interpreter. Its key is the name that DAG files choose."""

    model_config = ConfigDict(extra="forbid")
    path: str


class _Pythons(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, _Python] = Field(init=False)


def _section(name: str, fields: Mapping[str, Any]) -> Any:
    """Return the annotation and default of one section of the file."""
    made: Any
    if name == PYTHONS:
        made = create_model(name, __base__=_Pythons, **fields)
    else:
        made = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    return made, Field(default_factory=made)


def _annotation_and_default(declared: msgspec.structs.FieldInfo, setting: Setting) -> Any:
    annotation, limits = get_args(declared.type)[0], dict(setting.limits)
    if setting.name in _DEFAULTS_FROM_HOME:
        annotation, limits["default"] = _DEFAULTS_FROM_HOME[setting.name]
    elif declared.default_factory is not msgspec.NODEFAULT:
        limits["default_factory"] = declared.default_factory
    else:
        limits["default"] = declared.default
    if setting.split is not None:
        annotation = Annotated[annotation, NoDecode, BeforeValidator(setting.split)]
    return annotation, Field(**limits)


_DEFAULTS_FROM_HOME: Mapping[str, tuple[Any, Any]] = {
    "dags": (tuple[str, ...], ()),
    "db.url": (str, ""),
}
"""For settings whose default depends on the home: their annotation, and the value for "not set"."""

FIELDS = {
    declared.name: setting
    for declared in msgspec.structs.fields(Settings)
    for setting in getattr(declared.type, "__metadata__", ())
}
"""The declaration of each setting, by its field of ``Settings``."""


_OPEN = tuple(setting.name for setting in FIELDS.values() if setting.is_open)
"""Names of the sections whose keys are chosen by the user."""


def _file_structure() -> type[BaseSettings]:
    """Return the schema of ``aioflow.toml`` and the environment (``AIOFLOW_SECTION__KEY``)."""
    outer: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    for declared in msgspec.structs.fields(Settings):
        if declared.name in FIELDS:
            setting = FIELDS[declared.name]
            section, _, key = setting.name.rpartition(".")
            fields = sections.setdefault(section, {}) if section else outer
            fields[key] = _annotation_and_default(declared, setting)
    outer |= {name: _section(name, fields) for name, fields in sections.items()}
    return create_model("Document", __base__=_Sources, **outer)


class _Sources(BaseSettings):
    model_config = SettingsConfigDict(
        extra="forbid", env_prefix=PREFIX, env_nested_delimiter="__", env_ignore_empty=True
    )


_Document = _file_structure()


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
    return _settled(home, _flat(document.model_dump()), sources)


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Return all values by their names in the file. An open section is one value."""
    found = {name: values.pop(name) for name in _OPEN}
    return found | dict(_leaves(values))


def _check(given: Mapping[str, Any]) -> None:
    if given["alerts.webhook"] and given["alerts.webhook_secret"]:
        raise SettingsError("say either alerts.webhook or alerts.webhook_secret, not both")
    for name in _pythons(given):
        if not _PYTHON_NAME.fullmatch(name):
            raise SettingsError(
                f"pythons: {name!r} is not a valid name for an interpreter: "
                "a to z, digits, '_' and '-', "
                "at most 40"
            )
    if given["executor"] not in {"local", *given["executors"]}:
        raise SettingsError(
            f"executor is {given['executor']!r}, which has no table [executors.{given['executor']}]"
        )
    if not is_loopback(given["web.host"]) and not given["web.allow_remote"]:
        raise SettingsError(
            f"web.host is {given['web.host']}, which other machines can reach; "
            "add --allow-remote if that is meant"
        )


_HEARTBEATS_IN_LEASE = 4


def _check_standby(given: Mapping[str, Any]) -> None:
    """Reject settings with which a standby could not take over safely."""
    if not given["ha.enabled"]:
        return
    if not given["db.url"].startswith("postgres"):
        raise SettingsError("ha.enabled needs PostgreSQL: a SQLite file has one daemon; set db.url")
    if given["db.durability"] != "full":
        raise SettingsError(
            "ha.enabled needs db.durability = 'full': after a crash of the server a node would "
            "continue from commits that are lost"
        )
    for name, what in (("results.url", "large results"), ("log.url", "the output of tasks")):
        if not given[name]:
            raise SettingsError(
                f"ha.enabled needs {name}: without it, {what} would be on the disk of one node; "
                "name an object store, or file:///folder for a folder that all nodes share"
            )
    lease, beat = given["ha.lease_seconds"], given["ha.heartbeat_seconds"]
    if lease < _HEARTBEATS_IN_LEASE * beat:
        raise SettingsError(
            f"ha.lease_seconds is {lease:g}, which is less than {_HEARTBEATS_IN_LEASE} heartbeats "
            f"of {beat:g} s"
        )


def _settled(home: Path, given: dict[str, Any], sources: dict[str, str]) -> Settings:
    _check(given)
    _check_standby(given)
    base = home if sources.get("dags", "").startswith("file") else Path.cwd()
    dags = tuple(_folder(part, base) for part in given["dags"]) or (_default_dags(home),)
    given |= {"dags": dags, "db.url": given["db.url"] or database_url(home)}
    shown = {
        "home": str(home),
        "dags": [str(path) for path in dags],
        "db.url": _without_password(given["db.url"]),
    }
    # The values of an open section may be secret, so only its names are shown.
    shown |= {name: sorted(given[name]) for name in _OPEN}
    for name in _OPEN:
        sources[name] = _section_source(sources, name)
    values = dict(sorted({**given, **shown}.items()))
    return Settings(
        home=home,
        **{field: given[setting.name] for field, setting in FIELDS.items()},
        pythons=_pythons(values),
        sources={name: sources.get(name, "default") for name in values},
        values=values,
        odd_variables=_odd_variables(values),
    )


def _pythons(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the path of each interpreter, by its name."""
    named = (name.removeprefix(f"{PYTHONS}.") for name in given if name.startswith(f"{PYTHONS}."))
    return {
        name.removesuffix(".path"): str(Path(given[f"{PYTHONS}.{name}"]).expanduser())
        for name in named
        if name.endswith(".path")
    }


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
        # A variable without a double underscore may belong to other software, so it is not an
        # error. `_odd_variables` collects it for a warning.
        if name.startswith(PREFIX) and "__" in name and not name.startswith(tuple(sections)):
            raise SettingsError(f"the variable {name} names no setting; see `aioflow config show`")
    try:
        return EnvSettingsSource(_Document)()
    except ValueError as exc:
        raise SettingsError(f"the environment cannot be understood: {exc}") from exc


def _odd_variables(settings: Iterable[str]) -> dict[str, str]:
    """Return variables that look like settings but are not, each with the most similar setting."""
    known = {_variable(name) for name in settings} | NO_SETTINGS
    sections = {_variable(name) for name in _Document.model_fields}
    ours = known | sections | _OF_CHILDREN
    named = (name for name in sorted(os.environ) if name.startswith(PREFIX))
    odd = (name for name in named if name not in ours and not name.startswith(_OF_TESTS))
    return {name: _nearest(name, known) for name in odd}


def _nearest(name: str, known: Iterable[str]) -> str:
    # Compare without the common prefix, which would make all names similar.
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
        if isinstance(value, Mapping) and value:  # an empty section may be a table of its own
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


def _section_source(sources: Mapping[str, str], section: str) -> str:
    return _first(sources, lambda known: known.startswith(f"{section}."))


def _first(sources: Mapping[str, str], fits: Callable[[str], bool]) -> str:
    return next((source for name, source in sources.items() if fits(name)), "default")
