"""Detection of the data files that a DAG file uses, from its source and during its import.

There are three kinds of evidence: expressions built on ``__file__``, plain strings that name a file
or folder in the DAG folder, and paths that the import opens or lists. At run time the folder of a
version contains only the version's files. So the files found here become part of the version; see
``catalog.data_files``.
"""

from __future__ import annotations

import ast
import contextlib
import os
import posixpath
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aioflow.protocol.reports import DataFiles

__all__ = ("FILE_LIMIT_BYTES", "BadFiles", "Opened", "UsedFiles", "is_inside", "patterns_of")

FILE_LIMIT_BYTES = 1024 * 1024
"""Maximum bytes of a data file in a version. A larger file does not become part of the version."""

_NAMED_AT_MOST = 1_000
_NAME_LENGTH = 255
_ABOVE = ".."

_LINE = re.compile(rb"^#\s*aioflow:\s*(files\s*=.*)$", re.MULTILINE)

_TEXT_ENDS = (
    "cfg csv env graphql hql html ini j2 jinja jinja2 json md properties sh sql tmpl "
    "toml tsv txt xml yaml yml"
)
_SUFFIXES = frozenset(f".{end}" for end in _TEXT_ENDS.split())
"""Endings of text files.

A string with such an ending counts as a file name even if the file does not exist, because it may
be created later.
"""

_SAME = frozenset({"abspath", "absolute", "fspath", "normpath", "realpath", "resolve", "str"})
"""Functions and methods that return the path passed to them."""

_CLASSES = frozenset({"Path", "PosixPath", "PurePath", "PurePosixPath"})

_READERS = ("<frozen importlib", "<frozen zipimport")
_READER_FILES = ("/linecache.py", "/tokenize.py")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class BadFiles(ValueError):
    """Raised if a declaration of a version's files is invalid. The message says why."""


def is_inside(path: str) -> bool:
    """Return whether a normalized relative path stays inside its folder."""
    return path != _ABOVE and not path.startswith((f"{_ABOVE}/", "/"))


def patterns_of(value: object, folder: str) -> tuple[str, ...]:
    """Return the declared patterns as paths relative to the DAG folder.

    Args:
        value: A string, or a list of strings.
        folder: The folder to which the declared patterns are relative.

    Raises:
        BadFiles: If the value is not a pattern, or list of patterns, of files in the DAG folder.
    """
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise BadFiles('files is a list of patterns, such as ["sql/*.sql"]')
    found = tuple(posixpath.normpath(posixpath.join(folder, one)) for one in values)
    for pattern, written in zip(found, values, strict=True):
        if not written or "\0" in written or not is_inside(pattern):
            raise BadFiles(f"{written!r} in files does not name files in the DAG folder")
    return found


class UsedFiles:
    """Collects the files that one DAG file uses.

    Args:
        folder: The DAG folder.
        file: The DAG file in it.
    """

    def __init__(self, folder: Path, file: str) -> None:
        self._folder = folder
        self._file = file
        self._paths: dict[str, int] = {}
        self._named: dict[str, None] = {}
        self._entries: dict[str, set[str]] = {}
        self.opened = Opened(folder)

    def take(self, file: str, tree: ast.AST) -> None:
        """Collect the paths that the source of one module names."""
        own = file == self._file
        places = {posixpath.dirname(file), posixpath.dirname(self._file), ""}
        for node, path in _Paths(file, tree):
            if path is not None:
                self._paths.setdefault(path, getattr(node, "lineno", 0) if own else 0)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._take_text(node.value, places)

    def _take_text(self, text: str, places: set[str]) -> None:
        name = text.rstrip("/")
        if not 0 < len(name) <= _NAME_LENGTH or not name.isprintable() or name[0] in "/~.":
            return
        if len(self._named) >= _NAMED_AT_MOST or "://" in name or name != name.strip():
            return
        may_come = posixpath.splitext(name)[1] in _SUFFIXES
        for place in places:
            path = posixpath.normpath(posixpath.join(place, name))
            if is_inside(path) and (may_come or self._is_there(place, name, path)):
                self._named[path] = None

    def _is_there(self, place: str, name: str, path: str) -> bool:
        if place not in self._entries:
            self._entries[place] = set()
            with contextlib.suppress(OSError):
                self._entries[place] = {path.name for path in (self._folder / place).iterdir()}
        return name.partition("/")[0] in self._entries[place] and (self._folder / path).exists()

    def files(self) -> list[str]:
        """Return the named files that exist and are small enough for a version."""
        found = []
        for name in sorted({*self._paths, *self._named} - {self._file}):
            path = self._folder / name
            with contextlib.suppress(OSError, ValueError):
                if path.is_file() and path.stat().st_size <= FILE_LIMIT_BYTES:
                    found.append(name)
        return found

    def found(self, reads: tuple[str, ...] = ()) -> DataFiles:
        """Return all files, folders and patterns found.

        Args:
            reads: Paths that DAGs of the file declare with ``reads``.

        Raises:
            BadFiles: If the comment line that declares the files is invalid.
        """
        folder, opened = posixpath.dirname(self._file), self.opened
        read = [posixpath.normpath(posixpath.join(folder, one)) for one in reads]
        return DataFiles(
            paths=self._paths,
            named=tuple(dict.fromkeys([*self._named, *opened.listed])),
            opened=opened.read,
            written=tuple(sorted(opened.written)),
            patterns=self._patterns(),
            reads=tuple(one for one in read if is_inside(one)),
        )

    def _patterns(self) -> tuple[str, ...] | None:
        try:
            line = _LINE.search((self._folder / self._file).read_bytes())
            if line is None:
                return None
            value = tomllib.loads(line[1].decode())["files"]
        except OSError:
            return None
        except ValueError as exc:
            raise BadFiles(f"the line '# aioflow: files = [...]' is not understood: {exc}") from exc
        return patterns_of(value, posixpath.dirname(self._file))


class Opened:
    """Records the paths in a folder that this process opens or lists between ``begin`` and ``end``.

    Attributes:
        read: Files opened for reading, each with its stamp at that time: modification time in ns,
            size and inode. The stamp is empty if the file was missing.
        written: Files opened for writing.
        listed: Folders that were listed.
    """

    def __init__(self, folder: Path) -> None:
        self.read: dict[str, tuple[int, ...]] = {}
        self.written: set[str] = set()
        self.listed: dict[str, None] = {}
        self._is_on = False
        self._has_hook = False
        real = os.path.realpath(folder)
        self._above = tuple(dict.fromkeys((f"{folder}/", f"{real}/")))

    def begin(self) -> None:
        """Start recording.

        Use only in a short-lived process, because an audit hook cannot be removed.
        """
        self._is_on = True
        if not self._has_hook:
            self._has_hook = True
            sys.addaudithook(self._on_audit_event)

    def end(self) -> None:
        """Stop recording."""
        self._is_on = False

    def _on_audit_event(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._is_on or event not in _EVENTS:
            return
        with contextlib.suppress(Exception):  # an exception here would be raised by open()
            self._note(event, args, sys._getframe(1).f_code.co_filename)  # noqa: SLF001

    def _note(self, event: str, args: tuple[Any, ...], caller: str) -> None:
        if caller.startswith(_READERS) or caller.endswith(_READER_FILES):
            return
        place = "." if args[0] is None else os.fsdecode(args[0])
        path = os.path.abspath(place)  # noqa: PTH100 - symbolic links must not be resolved
        for above in self._above:
            if path.startswith(above):
                name = path.removeprefix(above)
                break
        else:
            return
        name.encode()  # raises if the name is not UTF-8, because it could not be sent
        if event != "open":
            self.listed[name] = None
        elif args[2] & _WRITING:
            self.written.add(name)
        elif name not in self.read:
            self.read[name] = _stamp(path)


_EVENTS = frozenset({"open", "os.listdir", "os.scandir"})


def _stamp(path: str) -> tuple[int, ...]:
    try:
        status = Path(path).stat()
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino)


# ── expressions built on __file__ ─────────────────────────────────────────────────────────


class _Paths:
    """The path expressions of a module with their paths, and its other constants with ``None``.

    Args:
        file: Path of the module. It is relative to the DAG folder, as are the yielded paths.
    """

    def __init__(self, file: str, tree: ast.AST) -> None:
        self._tree = tree
        self._known: dict[str, str] = {"__file__": file}
        for node in getattr(tree, "body", ()):
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    path = self._path(value)
                    if path is not None:
                        self._known.setdefault(name, path)
                case _:
                    pass

    def __iter__(self) -> Iterator[tuple[ast.AST, str | None]]:
        pending: list[ast.AST] = [self._tree]
        while pending:
            node = pending.pop()
            path = self._path(node) if isinstance(node, ast.expr) else None
            if path is None:
                pending += ast.iter_child_nodes(node)
            if path is not None or isinstance(node, ast.Constant):
                yield node, path

    def _path(self, node: ast.AST) -> str | None:
        match node:
            case ast.Name(id=name):
                return self._known.get(name)
            case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant(value=str() as text)):
                return self._joined(left, (text,))
            case ast.BinOp(left=left, op=ast.Add(), right=ast.Constant(value=str() as text)):
                return self._appended(left, text)
            case ast.JoinedStr(values=[ast.FormattedValue(value=left), ast.Constant(value=text)]):
                return self._appended(left, text)
            case ast.Attribute(value=value, attr="parent"):
                return self._above(value, 1)
            case ast.Subscript(
                value=ast.Attribute(value=value, attr="parents"),
                slice=ast.Constant(value=int() as number),
            ) if 0 <= number < _NAME_LENGTH:
                return self._above(value, number + 1)
            case ast.Call(func=func, args=args):
                return self._called(func, args)
            case _:
                return None

    def _called(self, func: ast.expr, args: list[ast.expr]) -> str | None:
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        texts = _texts(args)
        first = args[0] if args else None
        if isinstance(func, ast.Attribute) and texts is not None:
            match name:
                case "joinpath":
                    return self._joined(func.value, texts)
                case "with_name" if len(texts) == 1:
                    above = self._above(func.value, 1)
                    return None if above is None else _join(above, texts)
                case _ if name in _SAME and not args:
                    return self._path(func.value)
        if first is None:
            return None
        if name == "dirname":
            return self._above(first, 1)
        if name in _SAME and len(args) == 1:
            return self._path(first)
        rest = _texts(args[1:])
        if (name in _CLASSES or name == "join") and rest is not None:
            return self._joined(first, rest)
        return None

    def _joined(self, left: ast.expr, texts: tuple[str, ...]) -> str | None:
        path = self._path(left)
        return None if path is None else _join(path, texts)

    def _appended(self, left: ast.expr, text: object) -> str | None:
        path = self._path(left)
        if path is None or not isinstance(text, str):
            return None
        return posixpath.normpath(path + text) if path != "." else _join("", (text.lstrip("/"),))

    def _above(self, node: ast.expr, levels: int) -> str | None:
        path = self._path(node)
        return None if path is None else _join(path, (_ABOVE,) * levels)


def _texts(nodes: list[ast.expr]) -> tuple[str, ...] | None:
    """Return the values of string constants, or ``None`` if any expression is something else."""
    values = tuple(node.value for node in nodes if isinstance(node, ast.Constant))
    texts = tuple(value for value in values if isinstance(value, str))
    return texts if len(texts) == len(nodes) else None


def _join(path: str, texts: tuple[str, ...]) -> str | None:
    if any(text.startswith("/") or "\0" in text for text in texts):
        return None
    return posixpath.normpath(posixpath.join(path, *texts))
