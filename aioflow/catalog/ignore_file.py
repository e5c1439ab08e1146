"""Files excluded from a DAG folder by ``.aioflowignore``, with the patterns of ``.gitignore``.

An excluded file is not a DAG file, but others may still import it. An excluded folder is not
searched.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pathspec import GitIgnoreSpec

__all__ = ("NAME", "Ignored")

NAME = ".aioflowignore"


class Ignored:
    """The patterns that apply in one folder: its own, and those of all folders above it.

    Args:
        specs: The patterns, outermost folder first. Each has the path of its folder below the DAG
            folder with a trailing slash, or an empty path for the DAG folder itself.
    """

    def __init__(self, specs: tuple[tuple[str, GitIgnoreSpec], ...] = ()) -> None:
        self._specs = specs

    def below(self, place: Path, prefix: str, on_error: Callable[[Path, OSError], None]) -> Ignored:
        """Return the patterns for a folder that has a file of its own.

        Args:
            place: The folder.
            prefix: Its path below the DAG folder, as above.
            on_error: Called if the file cannot be read, which counts as no file.
        """
        file = place / NAME
        try:
            text = file.read_text(errors="replace")
            spec = GitIgnoreSpec.from_lines(text.splitlines())
        except OSError as exc:
            on_error(file, exc)
            return self
        except ValueError as exc:  # an invalid pattern
            on_error(file, OSError(0, f"{NAME} is not understood: {exc}"))
            return self
        return Ignored((*self._specs, (prefix, spec)))

    def hides(self, path: str) -> bool:
        """Return whether a path below the DAG folder is excluded. Folders end in a slash.

        As in git, the patterns of deeper folders take precedence.
        """
        for prefix, spec in reversed(self._specs):
            verdict = spec.check_file(path.removeprefix(prefix)).include
            if verdict is not None:
                return verdict
        return False
