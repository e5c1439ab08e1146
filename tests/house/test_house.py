"""Rules of the code base: small modules, a complete error tree, clean files."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from aioflow import errors

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    path for folder in ("aioflow", "triggers") for path in (ROOT / folder).rglob("*.py")
)

# ── Size ──────────────────────────────────────────────────────────────────────────────────────────

MODULE_LINES = 800
FUNCTION_LINES = 60  # without the docstring

# Exceptions with their limits: "aioflow/x.py" or "aioflow/x.py:Class.method". An entry may shrink
# or be removed, but never grow; a new entry needs a reason in its commit.
EXCEPTIONS: dict[str, int] = {}


def test_every_module_and_function_is_of_readable_size():
    sizes = dict(itertools.chain.from_iterable(map(_sizes, MODULES)))
    too_large = {
        name: lines
        for name, lines in sizes.items()
        if lines > EXCEPTIONS.get(name, FUNCTION_LINES if ":" in name else MODULE_LINES)
    }
    assert not too_large, "split what grew too large"

    loose = {
        name: sizes.get(name, 0)
        for name, allowed in EXCEPTIONS.items()
        if sizes.get(name, 0) < allowed
    }
    assert not loose, "shrunk: tighten the exception to this figure, or remove it"


def _sizes(path: Path) -> Iterator[tuple[str, int]]:
    source = path.read_text()
    module = path.relative_to(ROOT).as_posix()
    yield module, source.count("\n")
    for name, function in _functions(ast.parse(source), prefix=""):
        yield f"{module}:{name}", _lines(function)


def _functions(
    node: ast.AST, prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", child
        name = f"{prefix}{child.name}." if hasattr(child, "name") else prefix
        if not isinstance(child, ast.expr):  # no function is defined in one
            yield from _functions(child, name)


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        assert first.end_lineno is not None
        lines -= first.end_lineno - first.lineno + 1
    return lines


# ── Errors ────────────────────────────────────────────────────────────────────────────────────────


def test_every_error_has_a_code_of_its_own():
    owners: dict[str, type[errors.AioflowError]] = {}
    for error in _real_classes(errors.AioflowError):
        assert "code" in vars(error), f"{error.__name__} inherits its code"
        other = owners.setdefault(error.code, error)
        assert other is error, f"{error.code!r} belongs to {other.__name__} and {error.__name__}"


def test_errors_are_listed_for_import():
    named = {error.__name__ for error in _real_classes(errors.AioflowError)}
    assert named <= set(errors.__all__)
    assert len(errors.__all__) == len(set(errors.__all__))


def _real_classes(root: type[errors.AioflowError]) -> Iterator[type[errors.AioflowError]]:
    yield root
    for error in root.__subclasses__():
        if error.__module__ == errors.__name__:
            yield from _real_classes(error)


# ── Files ─────────────────────────────────────────────────────────────────────────────────────────

FOLDERS = ("aioflow", "benchmarks", "docs", "examples", "tests", "triggers", "ui", ".ci")
MADE_BY_TOOLS = {"__pycache__", "dist", "node_modules"}

# Each name is split in two, so that this file does not contain what it forbids.
REGISTRIES = tuple(
    f"{host}.{top}".encode()
    for host, top in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("yarnpkg", "com"),
        ("conda.anaconda", "org"),
        ("proxy.golang", "org"),
    )
)


def _texts() -> Iterator[tuple[Path, bytes]]:
    folders = (path for name in FOLDERS for path in (ROOT / name).rglob("*"))
    for path in itertools.chain(ROOT.iterdir(), folders):
        inside = path.relative_to(ROOT)
        if path.is_file() and not MADE_BY_TOOLS.intersection(inside.parts):
            content = path.read_bytes()
            if b"\0" not in content:
                yield inside, content


def test_no_file_depends_on_one_registry():
    named = [
        (str(path), host.decode())
        for path, content in _texts()
        for host in REGISTRIES
        if host in content
    ]
    assert not named


def test_every_file_has_unix_line_ends():
    assert not [str(path) for path, content in _texts() if b"\r\n" in content]


def test_pins_are_exact():
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert pins
    assert not [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)]


def test_nested_functions_are_measured_under_their_full_name(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    module = tmp_path / "m.py"
    module.write_text('class A:\n    def b(self):\n        """Say.\n\n        More.\n        """\n')

    assert dict(_sizes(module)) == {"m.py": 6, "m.py:A.b": 1}
