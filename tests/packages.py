"""Installed packages that tests upgrade while processes that have imported them are running."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

__all__ = ("SitePackages",)

_LONG_AGO = 1_600_000_000


class SitePackages:
    """A folder of packages, as in ``sys.path``.

    Args:
        parent: The folder in which it is created.
    """

    def __init__(self, parent: Path) -> None:
        self.folder = parent / "site-packages"
        self.folder.mkdir()
        self._changes = itertools.count()

    def install(self, name: str, version: str, source: str, *, written: int = _LONG_AGO) -> None:
        """Install a package of one module, replacing any other version of it, as pip does.

        Args:
            written: Modification time of all its files, in seconds since 1970. By default it is so
                long ago that the installation has certainly been completed.
        """
        for old in self.folder.glob(f"{name}-*.dist-info"):
            shutil.rmtree(old)
        metadata = self.folder / f"{name}-{version}.dist-info"
        metadata.mkdir()
        module = self.folder / f"{name}.py"
        module.write_text(source)
        shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)
        self._note(written, module, metadata)

    def remove(self, name: str) -> None:
        """Remove a package."""
        (self.folder / f"{name}.py").unlink()
        for metadata in self.folder.glob(f"{name}-*.dist-info"):
            shutil.rmtree(metadata)
        self._note(_LONG_AGO)

    def _note(self, written: int, *paths: Path) -> None:
        """Set a modification time on these paths and on the folder that no earlier call has set."""
        written_ns = written * 1_000_000_000 + next(self._changes)
        for path in (*paths, self.folder):
            os.utime(path, ns=(written_ns, written_ns))
