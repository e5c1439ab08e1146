"""What ``.aioflowignore`` files leave out of a DAG folder, by the patterns of ``.gitignore``.

A file that is left out is no DAG file; others may import it all the same. A folder that is left
out is not looked into.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pathspec import GitIgnoreSpec

__all__ = ("NAME", "Ignored")

NAME = ".aioflowignore"


class Ignored:
    """The patterns that hold in one folder: those of the folder itself, and of all above it.

    Args:
        specs: Of the outermost folder first, each with the path of its folder below the DAG folder,
            with a slash behind it; empty for that itself.
    """

    def __init__(self, specs: tuple[tuple[str, GitIgnoreSpec], ...] = ()) -> None:
        self._specs = specs

    def below(self, place: Path, prefix: str, on_error: Callable[[Path, OSError], None]) -> Ignored:
        """Return what holds in a folder that has patterns of its own.

        Args:
            place: The folder.
            prefix: Its path below the DAG folder, as above.
            on_error: Told of a file that cannot be read; it is as if there were none.
        """
        file = place / NAME
        try:
            text = file.read_text(errors="replace")
            spec = GitIgnoreSpec.from_lines(text.splitlines())
        except OSError as exc:
            on_error(file, exc)
            return self
        except ValueError as exc:  # a pattern that is none
            on_error(file, OSError(0, f"{NAME} is not understood: {exc}"))
            return self
        return Ignored((*self._specs, (prefix, spec)))

    def hides(self, path: str) -> bool:
        """Whether a path below the DAG folder is left out; that of a folder ends in a slash.

        As in git, what lies deeper has the last word.
        """
        for prefix, spec in reversed(self._specs):
            verdict = spec.check_file(path.removeprefix(prefix)).include
            if verdict is not None:
                return verdict
        return False
