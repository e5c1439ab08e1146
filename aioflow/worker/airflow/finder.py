"""The import finder that provides ``import airflow...`` in a child process without Airflow."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import Any

from aioflow.errors import AirflowImport

__all__ = ("CONTENTS", "STANDS_FOR", "install", "names_of")

STANDS_FOR = "3.3.2"
"""The Airflow release that the stand-in imitates."""

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
_EXCEPTIONS = ("sdk", ("AirflowException", "AirflowFailException", "AirflowSkipException"))
_TIMEZONE = (
    "timezone",
    (
        *("convert_to_utc", "datetime", "is_localized", "is_naive", "make_aware", "make_naive"),
        *("parse", "utc", "utcnow"),
    ),
)
CONTENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "airflow.configuration": ("sdk", ("AirflowConfigException", "conf")),
    "airflow.exceptions": _EXCEPTIONS,
    "airflow.models": ("sdk", ("BaseOperator",)),
    "airflow.models.baseoperator": ("sdk", ("BaseOperator",)),
    "airflow.sdk": (
        "sdk",
        (
            *("AirflowException", "BaseOperator", "BaseSensorOperator", "BaseTrigger", "Context"),
            *("PokeReturnValue", "TriggerEvent"),
        ),
    ),
    "airflow.sdk.definitions._internal.types": ("sdk", ("NOTSET", "ArgNotSet", "is_arg_set")),
    "airflow.sdk.exceptions": _EXCEPTIONS,
    "airflow.sdk.timezone": _TIMEZONE,
    "airflow.sensors.base": ("sdk", ("BaseSensorOperator", "PokeReturnValue")),
    "airflow.triggers.base": (
        "triggers",
        (
            *("BaseEventTrigger", "BaseTrigger", "StartTriggerArgs", "TaskFailedEvent"),
            *("TaskSkippedEvent", "TaskSuccessEvent", "TriggerEvent"),
        ),
    ),
    "airflow.triggers.temporal": ("triggers", ("DateTimeTrigger", "TimeDeltaTrigger")),
    "airflow.utils.context": ("sdk", ("Context",)),
    "airflow.utils.timezone": _TIMEZONE,
}
"""For each Airflow module, the module of this package that defines its names, and the names."""


def install() -> None:
    """Install the finder. Idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """The finder of the stand-in's modules.

    It must be the first finder. If providers are installed without Airflow, Python's own finder
    would find ``airflow`` as a namespace package.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != _ROOT:
            return None
        if fullname == _ROOT:
            return _root_spec()
        if not isinstance(getattr(sys.modules.get(_ROOT), "__loader__", None), _Loader):
            return None
        if fullname in _PACKAGES or fullname in CONTENTS:
            return _spec(fullname)
        return self._others(fullname, path, target) or _refuse(fullname)

    def _others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec that another finder finds, such as a provider's, or ``None``."""
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None


def _refuse(fullname: str) -> importlib.machinery.ModuleSpec | None:
    """Raise an error that says what to write instead of a module or name that is missing here.

    Python looks for missing names here, too: for a missing ``dag``, ``from airflow.sdk import dag``
    tries to import a module ``airflow.sdk.dag``.

    Returns:
        ``None`` if no import statement is running, because code only checks whether the module
        exists.

    Raises:
        AirflowImport: If an import statement is running.
    """
    wanted = _imported(fullname)
    if wanted is not None:
        module = wanted.rpartition(".")[0]
        # Name only the parent, because importlib ignores an error that names the module it looks
        # for.
        raise AirflowImport(_instead_of(wanted, module), fullname.rpartition(".")[0])
    return None


def _instead_of(wanted: str, module: str) -> str:
    from aioflow.worker.airflow.instead import instead_of  # only needed after a failed import

    return instead_of(wanted, names_of(module) if module != _ROOT else ())


def _imported(fullname: str) -> str | None:
    """Return the full name in the import statement whose first missing part is ``fullname``."""
    import inspect  # takes as long to import as the stand-in itself, and only errors need it

    frame = inspect.currentframe()
    wanted = None
    while frame is not None and not _is_machinery(frame):
        frame = frame.f_back
    while frame is not None and _is_machinery(frame):
        if frame.f_code.co_name == "_find_and_load":
            wanted = frame.f_locals.get("name", fullname)
        frame = frame.f_back
    return wanted


def _is_machinery(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib")


def names_of(module: str) -> tuple[str, ...]:
    """Return the names in the stand-in for an Airflow module."""
    if module == _ROOT:
        return ("__version__",)
    _, names = CONTENTS.get(module, ("", ()))
    return names


def _root_spec() -> importlib.machinery.ModuleSpec | None:
    """Return the spec of ``airflow`` with the providers' folders, unless Airflow is installed."""
    found = importlib.machinery.PathFinder.find_spec(_ROOT)
    if found is not None and found.origin is not None:
        return None
    spec = _spec(_ROOT)
    if found is not None and found.submodule_search_locations is not None:
        spec.submodule_search_locations = list(found.submodule_search_locations)
    return spec


def _spec(name: str) -> importlib.machinery.ModuleSpec:
    # Not a subclass, because ``importlib.abc.Loader`` takes as long to import as a DAG file.
    loader: Any = _Loader()
    # Make each module a package, so that Python asks this finder for a missing name, as a
    # submodule.
    spec = importlib.machinery.ModuleSpec(name, loader, is_package=True)
    spec.origin = "aioflow"
    return spec


class _Loader:
    """A loader that fills a module with its names, taken from the module that defines them here."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__

        def missing(attribute: str) -> object:
            raise AttributeError(_instead_of(f"{name}.{attribute}", name))

        vars(module)["__getattr__"] = missing
        if name == _ROOT:
            vars(module)["__version__"] = STANDS_FOR
        if name in CONTENTS:
            source, names = CONTENTS[name]
            ours = importlib.import_module(f"{_HERE}.{source}")
            vars(module).update({public: getattr(ours, public) for public in names})
