"""Hooks of the documentation site: pages from outside of ``docs/``, their links, and the API.

The pages link to each other by their paths in the repository, so that they can be read there. Here
these links are rewritten to the pages of the site. A link to a file without a page becomes text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import aioflow
import aioflow.testing

ROOT = Path(__file__).parents[2]

OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "measurements.md",
    "tests/sim/planted/README.md": "planted-bugs.md",
    "triggers/README.md": "triggers.md",
}
"""Pages from outside of ``docs/``, by their paths in the repository and on the site."""

API = "reference/api.md"

_LINK = re.compile(
    r"(!?)\[([^\]\[]*(?:\[[^\]]*\][^\]\[]*)*)\]\((?!\w+:|#|/)([^)#\s]+)(#[^)\s]*)?\)"
)
_SOURCE = re.compile(r'\b(src|srcset)="(?!\w+:)([^"]+)"')


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages from outside of ``docs/``, and the page of the API."""
    from mkdocs.structure.files import File

    for path, place in OUTSIDE.items():
        files.append(File.generated(config, place, content=(ROOT / path).read_text()))
    files.append(File.generated(config, API, content=_api()))
    return files


def _api() -> str:
    public = _members("aioflow.author.public", aioflow.__all__)
    testing = _members("aioflow.testing", aioflow.testing.__all__)
    return (
        "# Python API\n\nThe docstrings of all public names. "
        "[Authoring](authoring.md) explains how they work together.\n\n"
        f"## aioflow\n\n{public}\n## aioflow.testing\n\n{testing}"
    )


def _members(module: str, names: Any) -> str:
    listed = "\n".join(f"        - {name}" for name in sorted(names))
    return f"::: {module}\n    options:\n      members:\n{listed}\n"


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrite links between paths in the repository to links between pages."""
    place = page.file.src_uri
    known = {site: path for path, site in OUTSIDE.items()}
    folder = posixpath.dirname(known.get(place, f"docs/{place}"))

    def moved(target: str) -> str | None:
        path = posixpath.normpath(posixpath.join(folder, target))
        if not (ROOT / path).exists():
            return target  # the strict build reports it
        inside = OUTSIDE.get(path, path.removeprefix("docs/"))
        if inside == path and path not in OUTSIDE:
            return None
        if (ROOT / path).is_dir():
            inside = f"{inside}/{min(file.name for file in (ROOT / path).glob('*.md'))}"
        return posixpath.relpath(inside, posixpath.dirname(place) or ".")

    def link(found: re.Match[str]) -> str:
        mark, text, target, anchor = found.groups()
        to = moved(target)
        return text if to is None else f"{mark}[{text}]({to}{anchor or ''})"

    def source(found: re.Match[str]) -> str:
        return f'{found[1]}="{moved(found[2])}"'

    return _SOURCE.sub(source, _LINK.sub(link, markdown))
