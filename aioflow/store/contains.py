"""The SQL function that finds a text or blob within another one, on both databases."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

__all__ = ("Contains",)


class Contains(FunctionElement[bool]):
    """Whether a text or a blob contains another one."""

    type = Boolean()
    inherit_cache = True


@compiles(Contains, "sqlite")
def _on_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    whole, part = (compiler.process(one, **options) for one in element.clauses)
    return f"instr({whole}, {part}) > 0"


@compiles(Contains, "postgresql")
def _on_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    whole, part = list(element.clauses)
    # Parameters are compiled in the order in which they appear in the statement.
    part_text = compiler.process(part, **options)
    return f"position({part_text} IN {compiler.process(whole, **options)}) > 0"
