"""Private parts of libraries are not used, except for those listed here with a reason."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]

# "file: private name" with the library and the reason. For the standard library, no upper bound of
# the version is needed.
ALLOWED = {
    "aioflow/store/sqlite/writer.py: _execute": "aiosqlite: runs a function in its thread",
    "aioflow/store/sqlite/writer.py: _conn": "aiosqlite: the connection of that thread",
    "aioflow/testing/fake_time.py: anyio._backends._asyncio": "anyio: starts it on a virtual loop",
    "aioflow/worker/code/shared_state.py: _locale": "stdlib: state that a reset has to compare",
    "aioflow/worker/code/shared_state.py: _signal": "stdlib: its functions make no enums",
    "aioflow/worker/code/shared_state.py: _socket": "stdlib: state that a reset has to compare",
    "aioflow/worker/process_tree.py: _signal": "stdlib: its functions make no enums",
    "aioflow/worker/watchdog.py: _current_frames": "stdlib: what another thread is doing",
    "aioflow/testing/fake_time.py: _current_frames": "stdlib: what another thread is doing",
    "aioflow/testing/fake_time.py: _get_running_loop": "stdlib: the public one raises",
    "aioflow/testing/sim_node.py: _log_destroy_pending": "stdlib: a crash leaves tasks pending",
    "aioflow/worker/code/data_files.py: _getframe": "stdlib: who opens a file",
}
# Our own classes, whose private attributes are set by a neighbouring module.
OWN = {
    "aioflow/author/dag.py: _from_function",
    "aioflow/author/ref.py: _source",
    "aioflow/author/trigger.py: _wanted",
    "aioflow/store/postgres/store.py: _readers",
    "aioflow/store/postgres/store.py: _seconds",
    "aioflow/store/sqlite/store.py: _seconds",
    "aioflow/worker/trigger/description.py: _hosted_check",
}

IMPORTS_PRIVATE = re.compile(r"^\s*(import|from)\b.*[\s.]_[a-z]", re.MULTILINE)


def private_uses(path: Path, source: str) -> Iterator[str]:
    """Yield "file: name" for each private import and each private attribute of another object."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Attribute) and not _is_of_itself(node.value):
            names = [node.attr]
        for name in names:
            if not name.startswith("aioflow") and any(map(_is_private, name.split("."))):
                yield f"{path.as_posix()}: {name}"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _is_of_itself(value: ast.expr) -> bool:
    """Return whether an attribute belongs to the object, to its class, or to another instance."""
    return isinstance(value, ast.Name) and value.id in {"self", "cls", "other"}


def found_in_package() -> set[str]:
    """Return private imports, and private attributes on lines that suppress the linter's rule."""
    found = set[str]()
    for path in sorted((ROOT / "aioflow").rglob("*.py")):
        source = path.read_text()
        if "SLF001" not in source and not IMPORTS_PRIVATE.search(source):
            continue  # most files: they need not be parsed
        inside, lines = path.relative_to(ROOT).as_posix(), source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if (
                isinstance(node, ast.Attribute)
                and "SLF001" in lines[node.lineno - 1]
                and _is_private(node.attr)
                and not _is_of_itself(node.value)
            ):
                found.add(f"{inside}: {node.attr}")
        imports = private_uses(Path(inside), source)
        found.update(use for use in imports if _names_a_module(use.partition(": ")[2]))
    return found


def _names_a_module(name: str) -> bool:
    root = name.partition(".")[0]
    return "." in name or root in sys.stdlib_module_names


def test_each_private_part_of_a_library_in_use_is_listed_with_its_reason():
    assert found_in_package() - OWN == set(ALLOWED)


@pytest.mark.parametrize("library", ["aiosqlite", "anyio"])
def test_a_library_whose_private_parts_are_used_is_limited_to_a_tried_minor_version(library):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [needed] = [
        found for text in project["dependencies"] if (found := Requirement(text)).name == library
    ]
    pins = dict(pin.split("==") for pin in (ROOT / "constraints.txt").read_text().split())
    major, minor, *_ = pins[library].split(".")

    assert needed.specifier.contains(pins[library])
    assert not needed.specifier.contains(f"{major}.{int(minor) + 1}.0")


def test_a_private_use_is_noticed():
    source = "import lib._inner\nfrom lib import _part\nlib.thing._attribute\nself._own\n"

    assert set(private_uses(Path("a.py"), source)) == {
        "a.py: lib._inner",
        "a.py: _part",
        "a.py: _attribute",
    }
