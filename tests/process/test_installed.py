"""The distributions that users install: complete, and working in an empty environment.

The wheel is built from the source distribution, so both are shown to be complete.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.process,
    pytest.mark.timeout(1200),
    pytest.mark.xdist_group("installed"),
]


def output(*command: str | Path, cwd: Path) -> str:
    """Run a command as if there were no checkout and no version pins. Return its output."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PIP_CONSTRAINT", "PYTHONPATH"} and not name.startswith("AIOFLOW_")
    }
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("distributions")
    output(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(distributions) -> Path:
    [path] = distributions.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """Return an environment with only the wheel and the dependencies that pip chose for it."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True)
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    output(folder / "bin" / "python", *pip, wheel, cwd=folder)
    return folder


def test_the_wheel_holds_the_packages_the_page_and_the_examples_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())

    built = {path.name for path in (ROOT / "aioflow/web/static").iterdir()}
    assert {name.partition("/")[0] for name in names} == {
        "aioflow",
        "aioflow_triggers",
        f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info",
    }
    assert {f"aioflow/web/static/{name}" for name in built} <= names
    assert {"aioflow/examples/dags/settlements.py", "aioflow/py.typed"} <= names
    assert not [name for name in names if re.search(r"__pycache__|\.pyc$|/tests?/|/\.", name)]


def test_the_source_distribution_holds_no_tests_and_nothing_that_was_built_for_development(
    distributions,
):
    [path] = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"LICENSE", "README.md", "pyproject.toml", "docs/tutorial.md"} <= names
    assert {"ui/package.json", "triggers/README.md", "examples/settlement_data.py"} <= names
    leftovers = r"^(tests|benchmarks)/|__pycache__|\.pyc$|node_modules|\.venv|_cache/"
    assert not [name for name in names if re.search(leftovers, name)]


def test_the_wheel_runs_the_demo_to_its_end_in_an_empty_environment(installed, tmp_path):
    printed = output(installed / "bin" / "python", "-m", "aioflow", "demo", "--exit", cwd=tmp_path)

    assert printed.rstrip().endswith(": equal")


def test_the_installed_command_finds_its_triggers_without_any_extra(installed, tmp_path):
    command = installed / "bin" / "aioflow"
    found = json.loads(output(command, "triggers", "kinds", "--json", cwd=tmp_path))

    kinds = {kind["class_path"] for plug_in in found for kind in plug_in["kinds"]}
    assert {plug_in["package"] for plug_in in found} == {"aioflow-engine"}
    assert {"aioflow_triggers.http:HttpTrigger", "aioflow_triggers.objects:NewObjects"} <= kinds
    assert output(command, "--version", cwd=tmp_path).strip() in found_version(installed)


def found_version(installed: Path) -> str:
    [info] = installed.glob("lib/python*/site-packages/aioflow_engine-*.dist-info")
    return info.name
