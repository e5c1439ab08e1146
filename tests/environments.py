"""Virtual environments with ``aioflow-worker``, if possible of another Python version."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ("ROOT", "install_worker", "make_environment", "other_python", "put_package", "shipped")

ROOT = Path(__file__).parent.parent
_PACKAGING = ROOT / "packaging" / "worker"


def other_python() -> Path:
    """Return the newest Python on this machine whose version differs from ours, or else our own."""
    found = []
    for minor in range(11, 14):
        places = [*Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}")]
        on_path = shutil.which(f"python3.{minor}")
        places += [Path(on_path)] if on_path else []
        found += [(minor, place) for place in places if _runs(place)]
    others = [place for minor, place in found if minor != sys.version_info.minor]
    return others[-1] if others else Path(sys._base_executable)  # type: ignore[attr-defined]


def _runs(python: Path) -> bool:
    """Return whether a program is a working Python, and not just a stub of that name."""
    asked = subprocess.run([python, "-c", "import venv"], capture_output=True, check=False)
    return asked.returncode == 0


def make_environment(folder: Path, *packages: str, python: Path | None = None) -> Path:
    """Make an environment with ``aioflow-worker`` and packages. Return its interpreter."""
    made = python or other_python()
    subprocess.run([made, "-m", "venv", "--without-pip", folder], check=True)
    interpreter = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "-q"]
    pip += ["-c", str(ROOT / "constraints.txt"), "--no-compile", "msgspec", "cronsim", *packages]
    subprocess.run(pip, check=True)
    site = site_of(interpreter)
    install_worker(site)
    subprocess.run([interpreter, "-m", "compileall", "-q", site], check=True)  # as pip does
    return interpreter


def site_of(interpreter: Path) -> Path:
    """Return the package folder of an environment."""
    [site] = interpreter.parent.parent.glob("lib/python3*/site-packages")
    return site


def shipped() -> Mapping[str, Path]:
    """Return the files of the distribution by their paths in the distribution."""
    table = tomllib.loads((_PACKAGING / "pyproject.toml").read_text())
    named = table["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    return {
        name: source
        for place, target in named.items()
        for name, source in _files((_PACKAGING / place).resolve(), Path(target))
    }


def _files(source: Path, target: Path) -> Iterator[tuple[str, Path]]:
    if source.is_file():
        yield str(target), source
        return
    for path in source.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(target / path.relative_to(source)), path


def install_worker(site: Path) -> None:
    """Copy the files of the distribution, as installing its wheel does."""
    for name, source in shipped().items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, site / name)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = site / f"aioflow_worker-{project['version']}.dist-info"
    metadata.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: aioflow-worker\nVersion: {project['version']}\n"
    (metadata / "METADATA").write_text(text)


def put_package(site: Path, name: str, version: str) -> None:
    """Install a package that reports its version."""
    (site / f"{name}.py").write_text(f"VERSION = {version!r}\n")
