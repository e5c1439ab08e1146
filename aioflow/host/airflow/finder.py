"""Answers ``import airflow...`` in a child, unless Airflow is installed."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__all__ = ("STANDS_FOR", "install")

STANDS_FOR = "3.3.2"
"""The release whose names and meanings these are."""

_HERE = __package__
_ROOT = "airflow"

_PACKAGES = frozenset(
    {
        _ROOT,
        "airflow.models",
        "airflow.sdk",
        "airflow.sdk.definitions",
        "airflow.sdk.definitions._internal",
        "airflow.sensors",
        "airflow.triggers",
        "airflow.utils",
    }
)
_CONTENTS = {
    "airflow.configuration": "configuration",
    "airflow.exceptions": "exceptions",
    "airflow.models": "models",
    "airflow.models.baseoperator": "models",
    "airflow.sdk": "sdk",
    "airflow.sdk.definitions._internal.types": "types",
    "airflow.sdk.exceptions": "exceptions",
    "airflow.sdk.timezone": "timezone",
    "airflow.sensors.base": "sensors",
    "airflow.triggers.base": "base",
    "airflow.triggers.temporal": "temporal",
    "airflow.utils.context": "context",
    "airflow.utils.timezone": "timezone",
}
"""Which of the modules beside this one says what is in there."""


def install() -> None:
    """Answer from now on. A second call changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Stands before the others: providers alone make ``airflow`` a folder without a module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != _ROOT:
            return None
        if fullname not in _PACKAGES and fullname not in _CONTENTS:
            return None
        if fullname == _ROOT:
            return _root_spec()
        if not isinstance(getattr(sys.modules.get(_ROOT), "__loader__", None), _Loader):
            return None
        return _spec(fullname)


def _root_spec() -> importlib.machinery.ModuleSpec | None:
    """Return what ``airflow`` is, with the folders of its providers; ``None`` if it is there."""
    found = importlib.machinery.PathFinder.find_spec(_ROOT)
    if found is not None and found.origin is not None:
        return None
    spec = _spec(_ROOT)
    if found is not None and found.submodule_search_locations is not None:
        spec.submodule_search_locations = list(found.submodule_search_locations)
    return spec


def _spec(name: str) -> importlib.machinery.ModuleSpec:
    # It loads as an ``importlib.abc.Loader`` does, which takes as long to import as a DAG file.
    loader: Any = _Loader()
    spec = importlib.machinery.ModuleSpec(name, loader, is_package=name in _PACKAGES)
    spec.origin = "aioflow"
    return spec


class _Loader:
    """Fills a module with the public names of one of ours."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__

        def missing(attribute: str) -> object:
            raise AttributeError(
                f"aioflow stands in for Airflow here, and its {name} has no {attribute!r}"
            )

        vars(module)["__getattr__"] = missing
        if name == _ROOT:
            vars(module)["__version__"] = STANDS_FOR
        if name in _CONTENTS:
            ours = importlib.import_module(f"{_HERE}.{_CONTENTS[name]}")
            vars(module).update({public: getattr(ours, public) for public in ours.__all__})
