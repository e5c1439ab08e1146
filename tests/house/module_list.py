"""Write docs/modules.md: every module of the product with the first line of its docstring.

Run ``make modules`` after a module is added, moved, renamed or deleted, and after the first line of
its docstring changes. A test fails while the page and the modules differ.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ("PAGE", "render")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "modules.md"
PACKAGES = (ROOT / "aioflow", ROOT / "triggers" / "aioflow_triggers")

_FIRST_LINE = re.compile(r'(?:#.*\n)*"""(.*?)(?:"""|\n)')

HEAD = """\
# Modules

Every module with the first line of its docstring. `make modules` writes this page.
[Architecture](architecture.md) says how the parts work together.
"""


def main() -> None:
    PAGE.write_text(render())


def render() -> str:
    """Return the text of the page for the modules that exist at present."""
    sections = [HEAD]
    for root in PACKAGES:
        folders = sorted({path.parent for path in root.rglob("*.py")})
        sections += [_section(folder) for folder in folders if folder.name != "versions"]
    return "\n".join(sections)


def _section(folder: Path) -> str:
    modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    lines = [f"## `{folder.relative_to(ROOT).as_posix()}/`", "", _summary(folder / "__init__.py")]
    if modules:
        lines += ["", "| module | |", "|---|---|"]
        lines += [f"| `{path.name}` | {_summary(path)} |" for path in modules]
    return "\n".join([*lines, ""])


def _summary(path: Path) -> str:
    found = _FIRST_LINE.match(path.read_text())
    return "" if found is None else found[1].replace("``", "`").replace("|", r"\|")


if __name__ == "__main__":
    main()
