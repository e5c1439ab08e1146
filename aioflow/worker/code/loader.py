"""Loading of a version's code: its DAG file, the local modules beside it, and its trigger classes.

A version is a folder ``<code>/<version>/``. A process that serves a single version has that folder
first in ``sys.path`` and its modules under their own names, as if the file were run there.

A shared child serves many versions. There each version is a separate package,
``aioflow_v_<version>``. The modules of the package get a special ``__import__``, which searches the
version's folder first. Two versions of a file or of its helper module are never mixed. Limitations:
``importlib.import_module("helper")`` and other imports by a computed name do not search the
folder, ``sys.path`` changes of one version affect all, and packages outside the folder are shared.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from aioflow.author.dag import DAG, forget_registered, registered
from aioflow.author.dag_spec import describe
from aioflow.author.trigger import MODULE_PREFIX, portable
from aioflow.errors import DagError

__all__ = (
    "Code",
    "CodeCache",
    "CodeMissing",
    "Namespace",
    "OwnNamespace",
    "WholeProcess",
    "module_name",
)

_import = builtins.__import__


class CodeMissing(Exception):
    """Raised if the folder of a version, or a file in it, is missing on this machine.

    It can be restored.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(f"the code of this version is not at {folder}")


def module_name(file: str) -> str:
    """Return the module name of a version's file: its path, with dots.

    A dot in a file or folder name is escaped: ``daily.v2.py`` becomes ``daily%2Ev2``.
    """
    parts = Path(file).with_suffix("").parts
    parts = parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts
    return ".".join(part.replace("%", "%25").replace(".", "%2E") for part in parts)


def _place(module: str) -> Path:
    """Return the path of a module without its suffix. The inverse of ``module_name``."""
    parts = module.split(".")
    return Path(*(part.replace("%2E", ".").replace("%25", "%") for part in parts))


def _with_suffix(place: Path) -> Path:
    return place.with_name(f"{place.name}.py")


class Namespace(Protocol):
    """The modules of a version in this process."""

    folder: Path

    def load_file(self, file: str) -> ModuleType:
        """Import a file of the version, once; exceptions of its code propagate.

        Raises:
            CodeMissing: If the version has no such file.
        """
        ...

    def load_module(self, name: str) -> ModuleType:
        """Import a module by its ``module_name``, or an installed one.

        A file of the version takes precedence over an installed module of the same name.
        """
        ...


class WholeProcess:
    """Loads modules from one folder for the whole life of a process: a parser or a slot worker.

    Do not create a second instance for another folder, because their modules would mix.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise CodeMissing(folder)
        self.folder = folder
        if sys.path[:1] != [str(folder)]:
            sys.path.insert(0, str(folder))
            importlib.invalidate_caches()

    def load_file(self, file: str) -> ModuleType:
        path = self.folder / file
        if not path.is_file():
            raise CodeMissing(path)
        name = module_name(file)
        own_name = name
        if name in sys.stdlib_module_names or not self._is_ours(name, path):
            # A DAG file that is named like an existing module, such as json.py, must not replace
            # that module.
            own_name = f"{MODULE_PREFIX}own.{name}"
        if own_name in sys.modules:
            return sys.modules[own_name]
        spec = importlib.util.spec_from_file_location(own_name, path)
        assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - it ends in .py
        module = importlib.util.module_from_spec(spec)
        sys.modules[own_name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(own_name, None)
            raise
        return module

    def _is_ours(self, name: str, path: Path) -> bool:
        loaded = sys.modules.get(name)
        return loaded is None or getattr(loaded, "__file__", None) == str(path)

    def load_module(self, name: str) -> ModuleType:
        file = _with_suffix(_place(name))
        if (self.folder / file).is_file():
            return self.load_file(str(file))
        return importlib.import_module(name)


class OwnNamespace:
    """Loads one of many versions in a shared child.

    Attributes:
        folder: Folder of the version.
    """

    def __init__(self, folder: Path, version: str) -> None:
        if not folder.is_dir():
            raise CodeMissing(folder)
        self.folder = folder
        self._package = f"{MODULE_PREFIX}{version}"
        self._local: dict[str, bool] = {}
        scope = dict(vars(builtins))
        scope["__import__"] = self._import
        self._finder = _VersionFinder(self._package, folder, scope)
        if self._package not in sys.modules:
            package = ModuleType(self._package)
            package.__path__ = [str(folder)]
            package.__package__ = self._package
            sys.modules[self._package] = package
        sys.meta_path[:] = [
            finder
            for finder in sys.meta_path
            if not (isinstance(finder, _VersionFinder) and finder.package == self._package)
        ]
        sys.meta_path.insert(0, self._finder)

    def load_file(self, file: str) -> ModuleType:
        if not (self.folder / file).is_file():
            raise CodeMissing(self.folder / file)
        return self._load(module_name(file))

    def load_module(self, name: str) -> ModuleType:
        is_loaded = f"{self._package}.{name}" in sys.modules  # the common case for triggers
        is_file = is_loaded or (self.folder / _with_suffix(_place(name))).is_file()
        if is_file or self._is_local(name):
            return self._load(name)
        return importlib.import_module(name)

    def forget(self) -> None:
        """Unload the version from this process. Objects created from it stay valid."""
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        prefix = f"{self._package}."
        for name in [n for n in sys.modules if n == self._package or n.startswith(prefix)]:
            del sys.modules[name]

    def _load(self, name: str) -> ModuleType:
        return importlib.import_module(f"{self._package}.{name}")

    def _is_local(self, name: str) -> bool:
        top = name.partition(".")[0]
        local = self._local.get(top)
        if local is None:
            folder = self.folder / _place(top)
            # As usual in Python, a regular package takes precedence over a folder without
            # __init__.py.
            local = (
                _with_suffix(folder).is_file()
                or (folder / "__init__.py").is_file()
                or (folder.is_dir() and importlib.machinery.PathFinder.find_spec(top) is None)
            )
            self._local[top] = local
        return local

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - the signature of __import__
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Import a module for the modules of this version.

        The version's folder is searched first.
        """
        if level > 0 or not self._is_local(name):
            return _import(name, globals, locals, fromlist or (), level)
        own = f"{self._package}.{name}"
        if fromlist:
            return _import(own, globals, locals, fromlist, 0)
        importlib.import_module(own)
        # The statement "import a.b" binds a.
        return sys.modules[f"{self._package}.{name.partition('.')[0]}"]


class _VersionFinder:
    """Finds the modules of one version. Installed in ``sys.meta_path``."""

    def __init__(self, package: str, folder: Path, scope: dict[str, Any]) -> None:
        self.package = package
        self._folder = folder
        self._scope = scope

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{self.package}."):
            return None
        place = self._folder / _place(fullname[len(self.package) + 1 :])
        package_file = place / "__init__.py"
        if package_file.is_file():
            return self._spec(fullname, package_file, [str(place)])
        file = _with_suffix(place)
        if file.is_file():
            return self._spec(fullname, file, None)
        if place.is_dir():
            spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        return None

    def _spec(
        self, fullname: str, file: Path, locations: list[str] | None
    ) -> importlib.machinery.ModuleSpec | None:
        loader = _VersionLoader(fullname, str(file), self._scope)
        return importlib.util.spec_from_file_location(
            fullname, file, loader=loader, submodule_search_locations=locations
        )


class _VersionLoader(importlib.machinery.SourceFileLoader):
    """Executes a module with the version's own ``__import__``."""

    def __init__(self, fullname: str, path: str, scope: dict[str, Any]) -> None:
        super().__init__(fullname, path)
        self._scope = scope

    def exec_module(self, module: ModuleType) -> None:
        # A function keeps the builtins of the globals it was defined in. So an import inside a
        # function body that runs much later uses the same scope.
        vars(module)["__builtins__"] = self._scope
        super().exec_module(module)


_VERSIONS_LIMIT = 16


class Code:
    """The definitions of one version, imported on first use."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._dags: dict[str, dict[str, DAG]] = {}
        self._registered: list[DAG] = []

    def dag(self, file: str, dag_id: str) -> DAG:
        """Return a DAG of the version, with the spec of each of its nodes.

        Raises:
            CodeMissing: If the file is missing.
            DagError: If the file, when imported in this process, does not define the DAG or one of
                its tasks, although it did so in the parser.
        """
        dags = self._dags.get(file)
        if dags is None:
            dags = self._dags[file] = self._load(file)
        dag = dags.get(dag_id)
        if dag is None:
            raise DagError(
                f"{file} defines no DAG {dag_id!r} in this process; does its code depend on "
                "the environment or the machine?"
            )
        if any(node.spec is None for node in dag.nodes):
            _, failures = describe(dag, file=file)
            if any(node.spec is None for node in dag.nodes):
                raise DagError(failures[0].message)
        return dag

    def _load(self, file: str) -> dict[str, DAG]:
        self._noting_dags(self._namespace.load_file, file)
        own = str(self._namespace.folder / file)
        # If two DAGs have the same id, the one defined in the file itself wins over one that it
        # imports.
        found = sorted(self._registered, key=lambda dag: dag.file == own)
        return {dag.dag_id: dag for dag in found}

    def _noting_dags(self, load: Callable[[str], ModuleType], name: str) -> ModuleType:
        """Load a module and collect its DAGs. They are registered only on the first import."""
        forget_registered()
        try:
            module = load(name)
            self._registered += registered()
        finally:
            forget_registered()
        return module

    def find_class(self, class_path: str) -> Any:
        """Resolve ``module:Qualname`` in the version or in an installed package.

        Raises:
            ImportError: If the module is neither installed nor in the version.
            AttributeError: If the module has no such name.
        """
        module, _, qualname = portable(class_path).partition(":")
        found: Any = self._noting_dags(self._namespace.load_module, module)
        for name in qualname.split("."):
            found = getattr(found, name)
        return found


class CodeCache:
    """Cache of the versions in this process.

    Args:
        folder: Folder of all versions.
        exclusive: Whether the process serves a single version for its whole life. Its modules then
            have plain names.
    """

    def __init__(self, folder: Path, *, exclusive: bool) -> None:
        self._folder = folder
        self._exclusive = exclusive
        self._codes: dict[str, tuple[Code, OwnNamespace | None]] = {}

    def version(self, version: str) -> Code:
        """Return the code of a version, without importing any of it yet.

        Raises:
            CodeMissing: If the version's folder is missing, or if the process serves only another
                version.
        """
        known = self._codes.get(version)
        if known is not None:
            return known[0]
        folder = self._folder / version
        if self._exclusive:
            if self._codes:
                raise CodeMissing(folder)
            code, own = Code(WholeProcess(folder)), None
        else:
            own = OwnNamespace(folder, version)
            code = Code(own)
        self._codes[version] = (code, own)
        return code

    def unload_unused(self, in_use: Callable[[], Collection[str]]) -> list[str]:
        """Unload the oldest unused versions if more than ``_VERSIONS_LIMIT`` are loaded.

        Returns:
            The unloaded versions.
        """
        excess = len(self._codes) - _VERSIONS_LIMIT
        if excess <= 0:
            return []
        used = in_use()
        gone = [version for version in self._codes if version not in used][:excess]
        for version in gone:
            own = self._codes.pop(version)[1]
            if own is not None:
                own.forget()
        return gone
