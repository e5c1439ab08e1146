"""The DAGs and trigger classes of the versions a process serves."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from aioflow.author.dag import DAG, forget_registered, registered
from aioflow.author.describe import describe
from aioflow.author.trigger import portable
from aioflow.errors import DagError
from aioflow.worker.loader import CodeMissing, Namespace, OwnNamespace, WholeProcess

__all__ = ("Code", "CodeCache")

_VERSIONS_LIMIT = 16


class Code:
    """The definitions of one version, imported on first use."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._dags: dict[str, dict[str, DAG]] = {}
        self._registered: list[DAG] = []

    def dag(self, file: str, dag_id: str) -> DAG:
        """Return a DAG of the version, described, so that its nodes have their specs.

        Raises:
            CodeMissing: If the file is missing.
            DagError: If the file does not define the DAG, or a task of it, in this process,
                although it did so in the parser.
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
        # If two DAGs have the same id, the file's own wins over that of a file it imports.
        found = sorted(self._registered, key=lambda dag: dag.file == own)
        return {dag.dag_id: dag for dag in found}

    def _noting_dags(self, load: Callable[[str], ModuleType], name: str) -> ModuleType:
        """Load a module and collect its DAGs, which are registered only on the first import."""
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
        exclusive: Serve a single version for the life of the process, under plain module names.
    """

    def __init__(self, folder: Path, *, exclusive: bool) -> None:
        self._folder = folder
        self._exclusive = exclusive
        self._codes: dict[str, tuple[Code, OwnNamespace | None]] = {}

    def version(self, version: str) -> Code:
        """Return the code of a version, without importing any of it yet.

        Raises:
            CodeMissing: If its folder is missing.
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

    def put_back(self, in_use: Callable[[], Collection[str]]) -> list[str]:
        """Unload unused versions if more than ``_VERSIONS_LIMIT`` are loaded, the oldest first.

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
