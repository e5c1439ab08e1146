"""The settings of a daemon: the declaration of each, and the paths in its home.

Each setting is declared once, as a field of ``Settings``, with its type, default, limits, and name
in the file. ``reading`` builds the structure of the file from these fields. Settings are read once,
from ``HOME/aioflow.toml``, then the environment, then flags. Later sources override earlier ones.
Reading is slow, because ``reading`` imports pydantic, so only commands that need the settings
import it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from aioflow.errors import SettingsError

__all__ = (
    "FILE_NAME",
    "NO_SETTINGS",
    "PREFIX",
    "SOCKET_PATH_LIMIT",
    "Setting",
    "Settings",
    "database_url",
    "find_home",
    "is_loopback",
    "socket_path",
)

FILE_NAME = "aioflow.toml"
PREFIX = "AIOFLOW_"

NO_SETTINGS = frozenset({"AIOFLOW_HOME", "AIOFLOW_TOKEN", "AIOFLOW_DEBUG", "AIOFLOW_CHILD_ENV"})
"""Environment variables that have the prefix of settings but are not settings."""

SOCKET_PATH_LIMIT = 100
"""Maximum length of a socket path, in bytes; a longer path is replaced by one under ``/tmp``.

The kernel allows 107 bytes.
"""


class Setting:
    """Metadata of a field of ``Settings`` that is read from the file, a variable or a flag.

    Args:
        name: Name in the file, with its section, such as ``web.port``.
        split: For a setting with several parts: splits the text of a variable, and checks the
            parts.
        is_open: Whether it is a section whose names are chosen by the user: a dict of dicts.
        limits: Constraints, see ``pydantic.Field``.
    """

    def __init__(
        self,
        name: str,
        split: Callable[[object], object] | None = None,
        *,
        is_open: bool = False,
        **limits: Any,
    ) -> None:
        self.name = name
        self.split = split
        self.is_open = is_open
        self.limits = limits


def _folders(value: object) -> object:
    if isinstance(value, str):
        return tuple(part for part in value.split(os.pathsep) if part)
    return value


def _parts(value: object) -> object:
    """Split a comma-separated text. Return any other value unchanged."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _public_url(value: object) -> object:
    """Return the URL without a slash at its end."""
    if not isinstance(value, str) or not value:
        return value
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("this is not the https:// or http:// address of the page")
    return value.rstrip("/")


def _networks(value: object) -> object:
    value = _parts(value)
    if isinstance(value, tuple | list):
        for part in value:
            if ipaddress.ip_network(str(part)).prefixlen == 0:
                raise ValueError("this matches every address")
    return value


def _variables(value: object) -> object:
    value = _parts(value)
    if isinstance(value, tuple | list):
        for part in value:
            if not str(part) or "=" in str(part) or str(part).startswith(PREFIX):
                raise ValueError(f"{part!r} cannot be passed to child processes")
    return value


_EXECUTOR_NAME = r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"


def _executors(value: object) -> object:
    if isinstance(value, dict):
        for name in value:
            if not re.match(_EXECUTOR_NAME, str(name)) or name == "local":
                raise ValueError(f"an executor cannot be named {name!r}")
    return value


def _addresses(value: object) -> object:
    value = _parts(value)
    if isinstance(value, tuple | list) and not all("@" in str(part) for part in value):
        raise ValueError("these are not addresses")
    return value


_DAY = 86_400
_YEAR = 31_536_000
_CENTURY_DAYS = 36_500


def _days(name: str) -> Setting:
    return Setting(f"retention.{name}", ge=0, le=_CENTURY_DAYS, allow_inf_nan=False)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a daemon.

    Attributes:
        dags: Folders of DAG files.
        children_env: Names of environment variables, or patterns of names, that children inherit
            besides the standard ones.
        db_wait_seconds: How long a start waits for a database server that does not respond.
        ha_enabled: Whether this daemon is one of several on its database: one is active, the
            others stand by.
        ha_lease_seconds: Silence of the active daemon after which another takes over.
        ha_quick_lease_seconds: The same, once the database has no session of the active daemon.
        ha_node_name: Name of this node; empty for the name of its host.
        port: Port of the web server; 0 takes any free port.
        keep_runs_days: Retention of ended runs. For this and the seven fields below, 0 means
            forever.
        executor: Name of the executor of ``def`` tasks that name none.
        executors: A table for each further executor, by its name. ``kind`` is the name of its entry
            point, by default the name of the executor. All other keys are passed to the backend.
        public_url: The address of the web page, for links in messages; empty for none.
        trusted_proxies: Addresses and networks whose forwarding headers are trusted.
        log_url: Where the output of tries is stored in addition to the home; empty for nowhere.
        results_url: Where large results are stored; empty for the home.
        until_idle: Whether to exit once nothing is left to do.
        pythons: Path of each interpreter that DAG files may choose, by its name.
        sources: Source of each value, by its name in the file (``web.port``): ``default``, the
            file, the variable, or the flag.
        values: The values to display, by the same names, without the database password.
        odd_variables: Environment variables that look like settings but are not. The value is the
            most similar setting; empty if none is similar.
    """

    home: Path
    dags: Annotated[tuple[Path, ...], Setting("dags", _folders)]
    db: Annotated[str, Setting("db.url")]
    durability: Annotated[Literal["full", "normal"], Setting("db.durability")] = "full"
    db_wait_seconds: Annotated[
        float, Setting("db.wait_seconds", ge=0, le=_DAY, allow_inf_nan=False)
    ] = 300.0
    ha_enabled: Annotated[bool, Setting("ha.enabled")] = False
    ha_heartbeat_seconds: Annotated[float, Setting("ha.heartbeat_seconds", ge=0.1, le=60)] = 0.5
    ha_lease_seconds: Annotated[float, Setting("ha.lease_seconds", ge=1, le=600)] = 3.0
    ha_quick_lease_seconds: Annotated[float, Setting("ha.quick_lease_seconds", ge=0.5, le=600)] = (
        1.5
    )
    ha_node_name: Annotated[str, Setting("ha.node_name", max_length=100)] = ""
    host: Annotated[str, Setting("web.host", min_length=1)] = "127.0.0.1"
    port: Annotated[int, Setting("web.port", ge=0, le=65_535)] = 8793
    allow_remote: Annotated[bool, Setting("web.allow_remote")] = False
    public_url: Annotated[str, Setting("web.public_url", _public_url)] = ""
    trusted_proxies: Annotated[tuple[str, ...], Setting("web.trusted_proxies", _networks)] = ()
    cpu_slots: Annotated[int, Setting("slots.cpu", ge=1, le=4_096)] = msgspec.field(
        default_factory=lambda: os.cpu_count() or 1
    )
    async_slots: Annotated[int, Setting("slots.async", ge=1, le=1_000_000)] = 1_000
    trigger_capacity: Annotated[int, Setting("triggers.capacity", ge=1, le=10_000_000)] = 100_000
    children_env: Annotated[tuple[str, ...], Setting("children.env", _variables)] = ()
    hosts_health_seconds: Annotated[float, Setting("hosts.health_seconds", ge=1, le=_DAY)] = 30.0
    hosts_memory_limit_bytes: Annotated[int, Setting("hosts.memory_limit_bytes", ge=0)] = (
        2 * 1024**3
    )
    hosts_stall_seconds: Annotated[float, Setting("hosts.stall_seconds", ge=0.01, le=_DAY)] = 0.1
    grace_seconds: Annotated[float, Setting("daemon.grace_seconds", ge=0, le=_DAY)] = 10.0
    until_idle: Annotated[bool, Setting("daemon.until_idle")] = False
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Setting("log.level")] = (
        "info"
    )
    log_format: Annotated[Literal["auto", "pretty", "json"], Setting("log.format")] = "auto"
    log_url: Annotated[str, Setting("log.url")] = ""
    log_cap_bytes: Annotated[int, Setting("log.cap_bytes", ge=1_024)] = 10 * 1024 * 1024
    results_url: Annotated[str, Setting("results.url")] = ""
    results_cache_bytes: Annotated[int, Setting("results.cache_bytes", ge=0)] = 10 * 1024**3
    parse_timeout_seconds: Annotated[float, Setting("parse.timeout_seconds", gt=0, le=3_600)] = 30.0
    parse_look_seconds: Annotated[float, Setting("parse.look_seconds", ge=0.1, le=_DAY)] = 5.0
    parse_pause_seconds: Annotated[
        float, Setting("parse.pause_seconds", ge=0, le=_DAY, allow_inf_nan=False)
    ] = 1.0
    parse_processes: Annotated[int, Setting("parse.processes", ge=2, le=256)] = 6
    pythons_max_hosts: Annotated[int, Setting("pythons.max_hosts", ge=1, le=256)] = 8
    default_deferrable: Annotated[bool | None, Setting("operators.default_deferrable")] = None
    default_tries: Annotated[int, Setting("default_tries", ge=1, le=1_000)] = 3
    executor: Annotated[str, Setting("executor", pattern=_EXECUTOR_NAME)] = "local"
    executors: Annotated[
        dict[str, dict[str, Any]], Setting("executors", _executors, is_open=True)
    ] = {}
    callback_processes: Annotated[int, Setting("callbacks.processes", ge=1, le=64)] = 2
    callbacks_per_second: Annotated[float, Setting("callbacks.per_second", gt=0, le=100_000)] = (
        100.0
    )
    callback_timeout_seconds: Annotated[
        float, Setting("callbacks.timeout_seconds", ge=0.1, le=_DAY)
    ] = 60.0
    alert_webhook: Annotated[str, Setting("alerts.webhook", pattern=r"^(https?://.+)?$")] = ""
    alert_webhook_secret: Annotated[str, Setting("alerts.webhook_secret")] = ""
    alert_signing_secret: Annotated[str, Setting("alerts.signing_secret")] = ""
    alert_email: Annotated[tuple[str, ...], Setting("alerts.email", _addresses)] = ()
    alert_sender: Annotated[str, Setting("alerts.sender")] = ""
    alert_connection: Annotated[str, Setting("alerts.connection")] = "smtp"
    retries_per_run: Annotated[int, Setting("retries.per_run", ge=0)] = 0
    retries_per_pool: Annotated[int, Setting("retries.per_pool", ge=0)] = 0
    schedule_late_seconds: Annotated[
        float, Setting("schedules.late_seconds", ge=0, le=_YEAR, allow_inf_nan=False)
    ] = 300.0
    export_traces: Annotated[bool, Setting("traces.export")] = False
    keep_runs_days: Annotated[float, _days("runs_days")] = 0.0
    keep_events_days: Annotated[float, _days("events_days")] = 90.0
    keep_journal_days: Annotated[float, _days("journal_days")] = 7.0
    keep_logs_days: Annotated[float, _days("logs_days")] = 30.0
    keep_versions_days: Annotated[float, _days("versions_days")] = 30.0
    keep_audit_days: Annotated[float, _days("audit_days")] = 365.0
    keep_hourly_history_days: Annotated[float, _days("hourly_history_days")] = 30.0
    keep_history_days: Annotated[float, _days("history_days")] = 730.0
    pythons: dict[str, str] = {}
    sources: dict[str, str] = {}
    values: dict[str, Any] = {}
    odd_variables: dict[str, str] = {}

    @classmethod
    def read(
        cls, home: str | Path | None = None, overrides: Mapping[str, Any] | None = None
    ) -> Settings:
        """Read all sources.

        Args:
            home: The home from the flag. If ``None``, ``AIOFLOW_HOME`` or else ``~/.aioflow``.
            overrides: Values of flags by their names in the file, such as ``{"web.port": 0}``. A
                value of ``None`` means that the flag was not passed.

        Raises:
            SettingsError: If a setting is unknown or invalid. The message names its source.
        """
        from aioflow.settings.reading import read

        source = "environment AIOFLOW_HOME" if os.environ.get("AIOFLOW_HOME") else "default"
        return read(find_home(home), "flag" if home else source, overrides or {})

    @classmethod
    def of_database(cls, home: Path) -> Settings:
        """Read the settings that are needed to open the database of a home.

        If neither the file nor a variable sets anything, pydantic is not imported.

        Raises:
            SettingsError: See ``read``.
        """
        if _is_anything_set(home):
            return cls.read(home)
        return cls(home=home, dags=(), db=database_url(home))

    @property
    def oddities(self) -> list[str]:
        """One warning for each entry of ``odd_variables``."""
        return [
            f"the variable {name} names no setting" + (f"; is {near} meant?" if near else "")
            for name, near in self.odd_variables.items()
        ]

    @property
    def shown_db(self) -> str:
        """The database's URL without its password."""
        return str(self.values.get("db.url", ""))

    @property
    def token_file(self) -> Path:
        """The file with the first token."""
        return self.home / "token"

    @property
    def key_file(self) -> Path:
        """The file with the key that encrypts the secrets in the database."""
        return self.home / "key"

    @property
    def code_folder(self) -> Path:
        """The folder with the code snapshots of versions."""
        return self.home / "code"

    @property
    def results_folder(self) -> Path:
        """The folder with large results."""
        return self.home / "results"

    @property
    def result_copies_folder(self) -> Path:
        """The folder with copies of results that are stored outside of the home."""
        return self.home / "cache" / "results"

    @property
    def log_copies_folder(self) -> Path:
        """The folder with copies of output that other homes have stored."""
        return self.home / "cache" / "logs"

    @property
    def logs_folder(self) -> Path:
        """The folder with the output of tries."""
        return self.home / "logs"


def find_home(given: str | Path | None = None) -> Path:
    """Return the home as an absolute path, whether it exists or not."""
    chosen = given or os.environ.get("AIOFLOW_HOME") or "~/.aioflow"
    try:
        return Path(chosen).expanduser().absolute()
    except RuntimeError as exc:
        raise SettingsError(f"the home {str(chosen)!r} cannot be found: {exc}") from exc


def database_url(home: Path) -> str:
    """Return the default database URL of a home."""
    return f"sqlite:///{home / 'aioflow.db'}"


def _is_anything_set(home: Path) -> bool:
    """Return whether the file or a variable may contain a setting."""
    variables = {name.upper() for name in os.environ} - NO_SETTINGS
    return os.path.lexists(home / FILE_NAME) or any(name.startswith(PREFIX) for name in variables)


def socket_path(home: Path) -> Path:
    """Return the path of the socket on which the daemon of a home listens for commands.

    All paths that lead to the same home folder give the same socket.
    """
    real = Path(os.path.realpath(home))
    path = real / "run" / "aioflow.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
        return path
    name = hashlib.sha256(os.fsencode(real)).hexdigest()[:32]
    # Callers check that the folder belongs to the current user only.
    return Path(f"/tmp/aioflow-{os.getuid()}") / f"{name}.sock"  # noqa: S108


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is an address that only this machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
