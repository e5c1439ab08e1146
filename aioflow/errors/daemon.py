"""Errors that keep a daemon from serving or from being reached."""

from __future__ import annotations

from aioflow.errors.root import AioflowError

__all__ = (
    "DaemonAway",
    "DaemonStopping",
    "HomeBusy",
    "HomeUnusable",
    "LinkClosed",
    "PortInUse",
    "SettingsError",
)


ANOTHER_HOME = "use --home for a second one"
ANOTHER_DATABASE = "use --db for a database of its own, or --take-over if that one is to end"


class HomeBusy(AioflowError):
    """Another daemon serves this home, or this database.

    Args:
        otherwise: The alternative to stopping the other daemon, quoted in the message.
        is_draining: Whether the other daemon is draining and will exit.
    """

    code = "home.busy"

    def __init__(
        self, path: str, holder: str, otherwise: str = ANOTHER_HOME, *, is_draining: bool = False
    ) -> None:
        state, first = "serves", "stop it first"
        if is_draining:
            state, first = "is draining, and still serves", "start again when it has ended"
        super().__init__(f"another daemon ({holder}) {state} {path}; {first}, or {otherwise}")
        self.path = path
        self.holder = holder


class HomeUnusable(AioflowError):
    """A folder of the home cannot be created, or a file that the home needs cannot be used."""

    code = "home.unusable"

    def __init__(self, path: str, why: str, problem: str = "the folder {} cannot be made") -> None:
        super().__init__(f"{problem.format(path)}: {why}; choose another with --home")
        self.path = path
        self.why = why


class PortInUse(AioflowError):
    """The address of the web server is already in use."""

    code = "web.port_in_use"

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} is in use; choose another with --port (0 = any)")
        self.host = host
        self.port = port


class DaemonAway(AioflowError):
    """No daemon is running for this home."""

    code = "daemon.away"

    def __init__(self, home: str, database: str = "") -> None:
        """Make the error for a home.

        Args:
            database: The database that was tried as a fallback, and does not exist.
        """
        instead = f", and there is no database {database}" if database else ""
        super().__init__(f"no daemon runs for {home}{instead}; start it with `aioflow up`")
        self.home = home


class DaemonStopping(AioflowError):
    """The daemon is shutting down and executes no more requests.

    The last request may or may not have been executed.
    """

    code = "daemon.stopping"

    def __init__(self) -> None:
        super().__init__(
            "the daemon is stopping; ask again when it runs, with the same key or run id"
        )


class SettingsError(AioflowError):
    """A setting is unknown or has an invalid value."""

    code = "settings"


class LinkClosed(AioflowError):
    """The connection to another process was closed, or carried something invalid."""

    code = "link.closed"
