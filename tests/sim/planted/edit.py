"""Edits of the syntax tree: the changes that a planted bug makes in single functions.

Fragments are matched as syntax nodes, so formatting, comments, moved lines and other functions do
not matter. An edit that no longer fits raises.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ("DoesNotApply", "Edit")


class DoesNotApply(Exception):
    """The target is missing, or the fragment does not occur as often as the edit states."""


@dataclass(frozen=True)
class Edit:
    """The replacement of a fragment in one function, class or module-level constant.

    Attributes:
        module: Dotted name of the module.
        target: Qualified name in the module, such as ``Slots.release``.
        old: The fragment to replace: an expression, statements, or cases of a ``match``.
        new: The replacement, of the same kind. If empty, the fragment is removed.
        times: How often ``old`` occurs in the target.
    """

    module: str
    target: str
    old: str
    new: str = ""
    times: int = 1

    def apply(self, tree: ast.Module) -> None:
        """Apply the edit to the tree of the module.

        Raises:
            DoesNotApply: If the tree has no such target, or not as many such fragments.
        """
        target = self._find_target(tree)
        places = list(_places(target, _parse(self.old)))
        if len(places) != self.times:
            raise DoesNotApply(
                f"{self}: the fragment occurs {len(places)} times, not {self.times}:\n{self.old}"
            )
        for place in reversed(places):  # from the end: indexes before it stay valid
            place.replace(_parse(self.new))

    def __str__(self) -> str:
        return f"{self.module}:{self.target}"

    def _find_target(self, tree: ast.Module) -> ast.AST:
        node: ast.AST = tree
        for name in self.target.split("."):
            found = [child for child in getattr(node, "body", ()) if name in _names(child)]
            if len(found) != 1:
                raise DoesNotApply(f"{self}: {name!r} is defined {len(found)} times, not once")
            (node,) = found
        return node


def _names(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case _:
            return set()


def _parse(fragment: str) -> Sequence[ast.AST]:
    """Return the nodes of a fragment. An expression is returned as a statement."""
    source = textwrap.dedent(fragment).strip()
    if not source.startswith("case "):
        return ast.parse(source).body
    (match,) = ast.parse("match 0:\n" + textwrap.indent(source, "    ")).body
    assert isinstance(match, ast.Match)
    return match.cases


@dataclass(frozen=True)
class _Place:
    """An occurrence of a fragment: consecutive items of a list of nodes, or a single node."""

    owner: ast.AST
    field: str
    index: int | None
    count: int

    def replace(self, nodes: Sequence[ast.AST]) -> None:
        value = getattr(self.owner, self.field)
        first = value if self.index is None else value[self.index]
        if isinstance(first, ast.expr):
            nodes = [_expression(node) for node in nodes]
        for node in (inner for outer in nodes for inner in ast.walk(outer)):
            ast.copy_location(node, first)
        if self.index is not None:
            value[self.index : self.index + self.count] = nodes
            if not value and isinstance(first, ast.stmt):
                value.append(ast.copy_location(ast.Pass(), first))
        elif len(nodes) == 1:
            setattr(self.owner, self.field, nodes[0])
        else:
            raise DoesNotApply("one expression is replaced by one")


def _expression(node: ast.AST) -> ast.expr:
    if not isinstance(node, ast.Expr):
        raise DoesNotApply(f"an expression is replaced by an expression, not by {ast.dump(node)}")
    return node.value


def _places(target: ast.AST, old: Sequence[ast.AST]) -> Iterator[_Place]:
    """Yield the places where the nodes occur below the target.

    An expression is also found within other expressions.
    """
    wanted = [[ast.dump(node) for node in old]]
    if len(old) == 1 and isinstance(old[0], ast.Expr):
        wanted.append([ast.dump(old[0].value)])
    for owner in ast.walk(target):
        if isinstance(owner, ast.Expr):  # a statement, found in its list
            continue
        for field, value in ast.iter_fields(owner):
            if isinstance(value, list):
                nodes = [ast.dump(item) if isinstance(item, ast.AST) else "" for item in value]
                for index in range(len(nodes)):
                    if nodes[index : index + len(old)] in wanted:
                        yield _Place(owner, field, index, len(old))
            elif isinstance(value, ast.expr) and [ast.dump(value)] in wanted:
                yield _Place(owner, field, None, 1)
