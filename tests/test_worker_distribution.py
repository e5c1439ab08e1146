"""The distribution for other environments is complete, and as small as its dependencies allow."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environments import ROOT, other_python, shipped

REQUIRED = {"cronsim", "msgspec"}
OPTIONAL = {
    "httpx2": "http",
    "jinja2": "templates",
    "jsonschema": "params",
    "obstore": "objects",
    "opentelemetry": "otel",
    "pendulum": "airflow",
    "referencing": "params",
    "uvloop": "uvloop",
}
DISPENSABLE = {"airflow", "asyncinotify", "asyncpg"}
"""Packages that authors install themselves if needed, and without which the catalogue works."""

PROJECT = tomllib.loads((ROOT / "packaging" / "worker" / "pyproject.toml").read_text())["project"]


def imports(source: Path) -> Iterator[tuple[str, bool]]:
    """Yield the modules that a file imports, and whether it does so when it is imported itself."""
    tree = ast.parse(source.read_bytes())
    at_once = set(map(id, tree.body))
    for node in ast.walk(tree):
        is_at_once = id(node) in at_once
        if isinstance(node, ast.Import):
            yield from ((alias.name, is_at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, is_at_once
            yield from ((f"{node.module}.{alias.name}", is_at_once) for alias in node.names)


def module_of(path: Path) -> str:
    return path.with_suffix("").as_posix().removesuffix("/__init__").replace("/", ".")


def test_it_has_every_module_that_its_modules_import():
    files = shipped()
    there = {module_of(Path(name)) for name in files}
    ours = {module_of(path.relative_to(ROOT)) for path in (ROOT / "aioflow").rglob("*.py")}
    missing = {
        f"{name}: {module}"
        for name, source in files.items()
        if name.endswith(".py")
        for module, _ in imports(source)
        if module in ours and module not in there
    }
    assert missing == set()


def test_it_needs_no_library_but_its_own():
    needed, lazily = set(), set()
    for name, source in shipped().items():
        for module, at_once in imports(source) if name.endswith(".py") else ():
            top = module.partition(".")[0]
            if top in sys.stdlib_module_names or top in {"aioflow", "aioflow_triggers"}:
                continue
            (needed if at_once else lazily).add(top)
    assert needed == REQUIRED
    assert lazily - needed <= OPTIONAL.keys() | DISPENSABLE
    assert {text.partition(">")[0] for text in PROJECT["dependencies"]} == REQUIRED
    assert set(OPTIONAL.values()) == PROJECT["optional-dependencies"].keys()


def test_its_libraries_are_those_of_the_daemon():
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = {*whole["dependencies"]}
    for extra in whole["optional-dependencies"].values():
        known |= set(extra)
    named = {text for extra in PROJECT["optional-dependencies"].values() for text in extra}
    assert named | set(PROJECT["dependencies"]) <= known
    assert PROJECT["requires-python"] == whole["requires-python"]


@pytest.mark.nightly
def test_its_wheel_is_built_and_installed_beside_another_python(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path]
    subprocess.run([*build, ROOT / "packaging" / "worker"], check=True)
    [wheel] = tmp_path.glob("aioflow_worker-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == set(shipped())

    subprocess.run([other_python(), "-m", "venv", "--without-pip", tmp_path / "lab"], check=True)
    python = tmp_path / "lab" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", wheel]
    subprocess.run([*pip, "-c", ROOT / "constraints.txt"], check=True)
    said = "from aioflow.worker.identity import identity; print(identity())"
    done = subprocess.run([python, "-P", "-c", said], capture_output=True, check=True, text=True)
    assert "'distribution': 'aioflow-worker'" in done.stdout
