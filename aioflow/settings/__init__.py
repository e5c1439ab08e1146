"""The settings of a daemon, and the paths in its home.

Settings are read once, from ``HOME/aioflow.toml``, then the environment, then flags. Later sources
override earlier ones. Reading them is slow, because ``reading`` imports pydantic, so only the
commands that need it import it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from aioflow.errors import SettingsError

__all__ = (
    "FILE_NAME",
    "NO_SETTINGS",
    "PREFIX",
    "SOCKET_PATH_LIMIT",
    "Settings",
    "database_url",
    "find_home",
    "is_loopback",
    "socket_path",
)

FILE_NAME = "aioflow.toml"
PREFIX = "AIOFLOW_"

NO_SETTINGS = frozenset({"AIOFLOW_HOME", "AIOFLOW_TOKEN", "AIOFLOW_DEBUG", "AIOFLOW_CHILD_ENV"})
"""Variables with the prefix that are not settings."""

SOCKET_PATH_LIMIT = 100
"""Bytes. The kernel allows 107; a longer path is replaced by one under ``/tmp``."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a daemon.

    Attributes:
        dags: Folders of DAG files.
        children_env: Names of variables, or patterns of them, that children see besides the
            standard ones.
        db_wait_seconds: How long a start waits for a database server that does not respond.
        port: 0 takes any free one.
        keep_runs_days: Retention of ended runs; 0 means forever, also for the five below.
        trusted_proxies: Addresses and networks whose forwarding headers are trusted.
        until_idle: Exit once nothing is left to do.
        sources: Where each value came from, by its name in the file (``web.port``):
            ``default``, the file, the variable, or the flag.
        values: Displayed values by the same names, without the database password.
        odd_variables: Names in the environment that look like settings but are none, each with
            the most similar setting; empty if none is similar.
    """

    home: Path
    dags: tuple[Path, ...]
    db: str
    durability: Literal["full", "normal"] = "full"
    db_wait_seconds: float = 300.0
    host: str = "127.0.0.1"
    port: int = 8793
    allow_remote: bool = False
    trusted_proxies: tuple[str, ...] = ()
    cpu_slots: int = 1
    async_slots: int = 1_000
    trigger_capacity: int = 100_000
    children_env: tuple[str, ...] = ()
    hosts_health_seconds: float = 30.0
    hosts_memory_limit_bytes: int = 2 * 1024**3
    hosts_stall_seconds: float = 0.1
    grace_seconds: float = 10.0
    until_idle: bool = False
    log_level: str = "info"
    log_format: Literal["auto", "pretty", "json"] = "auto"
    log_cap_bytes: int = 10 * 1024 * 1024
    parse_timeout_seconds: float = 30.0
    parse_look_seconds: float = 5.0
    parse_pause_seconds: float = 1.0
    parse_processes: int = 6
    default_deferrable: bool | None = None
    default_tries: int = 3
    callback_processes: int = 2
    callbacks_per_second: float = 100.0
    callback_timeout_seconds: float = 60.0
    alert_webhook: str = ""
    alert_webhook_secret: str = ""
    alert_signing_secret: str = ""
    alert_email: tuple[str, ...] = ()
    alert_sender: str = ""
    alert_connection: str = "smtp"
    retries_per_run: int = 0
    retries_per_pool: int = 0
    schedule_late_seconds: float = 300.0
    export_traces: bool = False
    keep_runs_days: float = 0.0
    keep_events_days: float = 90.0
    keep_journal_days: float = 7.0
    keep_logs_days: float = 30.0
    keep_versions_days: float = 30.0
    keep_audit_days: float = 365.0
    sources: dict[str, str] = {}
    values: dict[str, Any] = {}
    odd_variables: dict[str, str] = {}

    @classmethod
    def read(
        cls, home: str | Path | None = None, overrides: Mapping[str, Any] | None = None
    ) -> Settings:
        """Read all sources.

        Args:
            home: The flag; else ``AIOFLOW_HOME``, else ``~/.aioflow``.
            overrides: Flags by their names in the file, such as ``{"web.port": 0}``; ``None`` means
                that a flag was not given.

        Raises:
            SettingsError: If a setting is unknown or invalid. The message names its source.
        """
        from aioflow.settings.reading import read

        source = "environment AIOFLOW_HOME" if os.environ.get("AIOFLOW_HOME") else "default"
        return read(find_home(home), "flag" if home else source, overrides or {})

    @classmethod
    def of_database(cls, home: Path) -> Settings:
        """Read the settings that are needed to open the database of a home.

        If neither the file nor a variable sets anything, this needs no pydantic.

        Raises:
            SettingsError: As ``read``.
        """
        if _is_anything_set(home):
            return cls.read(home)
        return cls(home=home, dags=(), db=database_url(home))

    @property
    def oddities(self) -> list[str]:
        """One warning for each odd variable."""
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
        """Holds the first token."""
        return self.home / "token"

    @property
    def key_file(self) -> Path:
        """Holds the key that encrypts the secrets in the database."""
        return self.home / "key"

    @property
    def code_folder(self) -> Path:
        """Holds the snapshots of versions."""
        return self.home / "code"

    @property
    def results_folder(self) -> Path:
        """Holds large results."""
        return self.home / "results"

    @property
    def logs_folder(self) -> Path:
        """Holds the output of tries."""
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

    All names of one folder lead to the same socket.
    """
    real = Path(os.path.realpath(home))
    path = real / "run" / "aioflow.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
        return path
    name = hashlib.sha256(os.fsencode(real)).hexdigest()[:32]
    # Users of this path check that the folder belongs to the current user only.
    return Path(f"/tmp/aioflow-{os.getuid()}") / f"{name}.sock"  # noqa: S108


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
