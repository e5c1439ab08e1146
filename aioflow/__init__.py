"""aioflow: an asyncio-native workflow orchestrator.

DAG files, triggers and sensors import from here. All other modules are internal::

    from aioflow import current, dag, sensor, task

The names are those of ``aioflow.author.public``. It is imported only at the first access to one of
them, because the command line needs none of them and must start fast.
"""

from __future__ import annotations

from importlib import import_module as _import_module


def __getattr__(name: str) -> object:
    if name == "__all__" or not name.startswith("_"):
        _load()
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    _load()
    return sorted(globals())


def _load() -> None:
    public = _import_module("aioflow.author.public")
    names = {name: getattr(public, name) for name in public.__all__}
    globals().update(names, __all__=public.__all__)
