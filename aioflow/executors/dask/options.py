"""The table ``[executors.NAME]`` of the settings for an executor on Dask."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from aioflow.model.dag import TaskSpec

__all__ = ("DaskOptions",)

_SCHEMES = ("tcp://", "tls://")


class DaskOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The connection to a Dask cluster, and the limits to observe there.

    Attributes:
        address: Address of the scheduler.
        tls_ca_file, tls_cert, tls_key: Paths of the files with which to connect over TLS.
        max_workers: Maximum number of workers at the same time, including those for which Dask has
            no capacity yet.
        idle_seconds: How long a worker without work retains its thread and its resources in Dask.
        contact_seconds: A worker that has heard nothing from the daemon for this long ends itself.
            The daemon starts its try elsewhere 10 s later.
        resources: The maximum of each resource that one Dask worker may have. If a task requires
            more, or another resource, it is refused when its file is parsed. Empty to check
            nothing.
        env: Names, or patterns of names, of variables that tasks inherit from their Dask worker.
        expose: Whether tasks find the scheduler's address in ``AIOFLOW_DASK_SCHEDULER``.
        shared_home: Whether Dask workers have the daemon's home at the daemon's path. Code and
            large results are then read as files, and do not travel over the network of Dask.
    """

    address: str
    tls_ca_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    max_workers: int = 100
    idle_seconds: float = 10.0
    contact_seconds: float = 60.0
    resources: dict[str, float] = {}
    env: tuple[str, ...] = ()
    expose: bool = False
    shared_home: bool = False

    @classmethod
    def read(cls, table: Mapping[str, object]) -> DaskOptions:
        """Return the options of a table.

        Raises:
            ValueError: If a value is wrong.
        """
        try:
            options = msgspec.convert(dict(table), cls)
        except msgspec.ValidationError as exc:
            raise ValueError(str(exc)) from None
        if not options.address.startswith(_SCHEMES):
            raise ValueError(f"address must begin with tcp:// or tls://, not {options.address!r}")
        files = options.tls_ca_file, options.tls_cert, options.tls_key
        if options.address.startswith("tls://") and not all(files):
            raise ValueError("an address with tls:// needs tls_ca_file, tls_cert and tls_key")
        if options.max_workers < 1:
            raise ValueError(f"max_workers must be at least 1, not {options.max_workers}")
        if options.idle_seconds < 0 or options.contact_seconds < 10:
            raise ValueError("idle_seconds must be at least 0, and contact_seconds at least 10")
        return options

    def misfit(self, task: TaskSpec) -> str:
        """Return why a task can never run here, in one sentence; empty if it can."""
        if task.executor_options:
            return "an executor on Dask has no options; name resources instead"
        for name, amount in task.resources if self.resources else ():
            most = self.resources.get(name, 0.0)
            if amount > most:
                return f"it requires {name} = {amount:g}, and a Dask worker has at most {most:g}"
        return ""
