"""The tree stays easy to search: few files per folder, and no modules that are mere slivers."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "aioflow"

ROOT_MODULES = 12
FOLDER_MODULES = 30
SMALL_LINES = 80


def modules_of(package: Path) -> dict[str, Path]:
    """Return the modules of a package by their dotted names, without migrations."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package.parent).with_suffix("")
        parts = [part for part in inside.parts if part != "__init__"]
        if "migrations" not in parts:
            found[".".join(parts)] = path
    return found


def imports_of(path: Path, known: Iterable[str]) -> set[str]:
    """Return which of the known modules a module imports, at any place."""
    known, found = set(known), set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in known else node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found & known


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements of a module, but not their expressions, which contain no imports."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        inside = getattr(node, name, None)
        for one in inside if isinstance(inside, list) else ():
            yield one
            yield from statements(one)


def crowded(package: Path) -> dict[str, int]:
    """Return the folders that have too many modules."""
    folders = defaultdict[Path, int](int)
    for path in modules_of(package).values():
        folders[path.parent] += 1
    limits = {package: ROOT_MODULES}
    return {
        str(folder.relative_to(package.parent)): count
        for folder, count in folders.items()
        if count > limits.get(folder, FOLDER_MODULES)
    }


def slivers(package: Path) -> dict[str, str]:
    """Return the small modules that only one other module imports, and that module for each."""
    modules = modules_of(package)
    importers = defaultdict[str, set[str]](set)
    for name, path in modules.items():
        for imported in imports_of(path, modules):
            importers[imported].add(name)
    return {
        name: min(importers[name])
        for name, path in modules.items()
        if path.name not in {"__init__.py", "__main__.py"}
        and path.read_text().count("\n") < SMALL_LINES
        and len(importers[name]) == 1
    }


def test_no_folder_has_more_modules_than_a_reader_takes_in_at_a_glance():
    assert crowded(PACKAGE) == {}


@pytest.mark.parametrize("package", [PACKAGE, ROOT / "triggers" / "aioflow_triggers"])
def test_no_small_module_serves_a_single_other_one(package):
    assert slivers(package) == {}, "merge it into the one that imports it"


def test_violations_are_noticed(tmp_path):
    package = tmp_path / "thing"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "small.py").write_text("X = 1\n")
    (package / "shared.py").write_text("Y = 1\n")
    (package / "large.py").write_text("Z = 1\n" * SMALL_LINES)
    for name in ("first", "second"):
        imports = "from thing import shared\nfrom thing.large import Z\n"
        more = "from thing.small import X\n" if name == "first" else ""
        (package / f"{name}.py").write_text((imports + more) * SMALL_LINES)

    assert slivers(package) == {"thing.small": "thing.first"}
    assert crowded(package) == {}

    for number in range(ROOT_MODULES):
        (package / f"more{number}.py").write_text("")

    assert crowded(package) == {"thing": 6 + ROOT_MODULES}
