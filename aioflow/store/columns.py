"""Constructors of columns, and checks of rows against the columns they come from.

There is one constructor for each kind of value.

A database file may contain any value, regardless of its schema. The type and the range of each
column are taken from the tables, so a new column is checked without further code. If all rows are
valid, a single call checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar, cast

import msgspec
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    Integer,
    Label,
    LargeBinary,
    Select,
    SmallInteger,
    Text,
    literal_column,
)
from sqlalchemy.sql.functions import FunctionElement

from aioflow.model.rows import Damage
from aioflow.store.rows import Values

__all__ = (
    "NUMBER",
    "PLACEHOLDER",
    "RANGE",
    "RowChecker",
    "blob",
    "count",
    "flag",
    "in_range",
    "index",
    "instant",
    "key",
    "name",
    "number",
    "read_rows",
    "row_checker",
    "small",
    "state",
    "text",
)

RANGE = "range"
"""Key in the ``info`` of a numeric column for its lowest and highest valid value."""

PLACEHOLDER = "placeholder"
"""Key in the ``info`` of a column for the substitute of an unreadable value."""

_MOST, _WIDEST = 2**53, 2**31 - 1
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999  # of years 1 and 9999

# Strict tables in SQLite have only one integer type.
NUMBER = BigInteger().with_variant(Integer(), "sqlite")
_SMALL = SmallInteger().with_variant(Integer(), "sqlite")


def key(column: str, *, most: int | None = None) -> Column[int]:
    """Return a primary key column for numbers that the program assigns.

    Args:
        most: The highest valid number; ``None`` for no limit.
    """
    info = {} if most is None else {RANGE: (0, most)}
    return Column(column, NUMBER, primary_key=True, autoincrement=False, info=info)


def in_range(column: Column[int]) -> ColumnElement[bool]:
    """Return the condition that a column's value is within the column's valid range."""
    least, most = column.info[RANGE]
    return column.between(literal_column(str(least)), literal_column(str(most)))


def number(
    column: str, *more: Any, null: bool = False, server_default: str | None = None
) -> Column[int]:
    """Return a column for a number of any size, such as the key of another row."""
    return Column(column, NUMBER, *more, nullable=null, server_default=server_default)


def count(column: str, *, server_default: str | None = None, placeholder: int = 0) -> Column[int]:
    """Return a column for a count."""
    info = {RANGE: (0, _MOST), PLACEHOLDER: placeholder}
    return Column(column, NUMBER, nullable=False, server_default=server_default, info=info)


def index(
    column: str, *, least: int = 0, null: bool = False, server_default: str | None = None
) -> Column[int]:
    """Return a column for an index or a width.

    Its range is limited, because memory is allocated in proportion to the value.
    """
    info = {RANGE: (least, _WIDEST)}
    return Column(column, NUMBER, nullable=null, server_default=server_default, info=info)


def instant(column: str, *, null: bool = False) -> Column[int]:
    """Return a column for a past time in microseconds since 1970, within years 1 to 9999.

    A future time may be later than any calendar year, so its column is a ``number``.
    """
    return Column(column, NUMBER, nullable=null, info={RANGE: (_FIRST, _LAST)})


def text(
    column: str, *more: Any, null: bool = False, server_default: str | None = None
) -> Column[str]:
    """Return a column for a text of any length."""
    return Column(column, Text(), *more, nullable=null, server_default=server_default)


def name(column: str, limit: int) -> Column[str]:
    """Return a column for a text that is the primary key, or a part of it.

    Its length is limited because PostgreSQL cannot index a text of more than about 2,700 bytes.
    """
    check = CheckConstraint(f"length({column}) <= {limit}")
    return Column(column, Text(), check, primary_key=True)


def blob(column: str, *, null: bool = False, placeholder: bytes = b"") -> Column[bytes]:
    """Return a column for packed or encrypted bytes."""
    info = {PLACEHOLDER: None if null else placeholder}
    return Column(column, LargeBinary(), nullable=null, info=info)


def flag(column: str, *, server_default: str | None = None) -> Column[int]:
    """Return a column for 0 or 1."""
    check = CheckConstraint(f"{column} BETWEEN 0 AND 1")
    info = {RANGE: (0, 1)}
    return Column(column, _SMALL, check, nullable=False, server_default=server_default, info=info)


def small(column: str) -> Column[int]:
    """Return a column for a small number. It has no database constraint: only aioflow checks it."""
    return Column(column, _SMALL, nullable=False)


def state(last: int, column: str = "state", *, server_default: str | None = None) -> Column[int]:
    """Return a column for a numbered state, from 0 to ``last``."""
    check = CheckConstraint(f"{column} BETWEEN 0 AND {last}")
    info = {RANGE: (0, last)}
    return Column(column, _SMALL, check, nullable=False, server_default=server_default, info=info)


Row = TypeVar("Row")

_SHOWN = 60
_AS_THEY_ARE = (bytes,)
"""Without this, msgspec would decode a text as base64 where bytes are expected."""
_ANY_NUMBER = (-(2**63), 2**63 - 1)


class RowChecker:
    """Checks the rows of one statement.

    Args:
        columns: The columns that the statement selects, in order.
    """

    def __init__(self, columns: Iterable[Any]) -> None:
        selected = list(columns)
        self._columns = [column if isinstance(column, Column) else None for column in selected]
        self._types = [_type_of(column) for column in selected]
        # msgspec analyses a Struct only once, but any other type in each call.
        rows: Any = list[tuple[tuple(self._types)]]  # type: ignore[misc]
        self._rows = msgspec.defstruct("Rows", [("rows", rows)])

    def checked(self, found: Sequence[Values]) -> list[Values]:
        """Return the rows if all values fit their columns.

        Raises:
            msgspec.ValidationError: If a value does not fit its column.
        """
        if found and type(found[0]) is not tuple:
            found = list(map(tuple, found))
        rows = msgspec.convert({"rows": found}, self._rows, builtin_types=_AS_THEY_ARE)
        return cast("list[Values]", rows.rows)  # type: ignore[attr-defined]

    def repaired(
        self, values: Values, made: Callable[[Values], Row]
    ) -> tuple[Row | None, Damage | None]:
        """Return one row with placeholders for unreadable values, and its damage.

        The row is ``None`` if it cannot be built even with placeholders. The damage is also
        ``None`` if no column belongs to a table, as in aggregate queries. Reads of the rows
        themselves report it then.
        """
        repaired, damage = list(values), None
        for at, (column, kind) in enumerate(zip(self._columns, self._types, strict=True)):
            try:
                msgspec.convert(values[at], kind, builtin_types=_AS_THEY_ARE)
            except (msgspec.ValidationError, UnicodeError) as exc:
                if column is None:  # a minimum or maximum: reads of the rows report the damage
                    repaired[at] = None
                    continue
                damage = damage or self.damage(values, column, f"{_shown(values[at])}: {exc}")
                repaired[at] = _placeholder(column)
        try:
            return made(repaired), damage
        except Exception as exc:  # noqa: BLE001 - the row may contain anything; report it
            return self._unpacked(values, repaired, made, damage, exc)

    def _unpacked(
        self,
        values: Values,
        repaired: list[Any],
        made: Callable[[Values], Row],
        damage: Damage | None,
        exc: Exception,
    ) -> tuple[Row | None, Damage | None]:
        """Find the packed column that cannot be decoded, or use placeholders for all of them."""
        packed = [
            at
            for at, column in enumerate(self._columns)
            if column is not None and isinstance(column.type, LargeBinary)
        ]
        for some in ([[at] for at in packed] + [packed]) if packed else ():
            trial = list(repaired)
            for at in some:
                trial[at] = _placeholder(self._column(at))
            try:
                row = made(trial)
            except Exception as again:  # noqa: BLE001 - another column is damaged, or several are
                exc = again
            else:
                return row, damage or self.damage(values, self._column(some[0]), repr(exc))
        known = next((column for column in self._columns if column is not None), None)
        known = self._column(packed[0]) if packed else known
        if damage is None and known is not None:
            damage = self.damage(values, known, repr(exc))
        return None, damage

    def _column(self, at: int) -> Column[Any]:
        column = self._columns[at]
        assert column is not None  # noqa: S101 - a packed column is a column of a table
        return column

    def damage(self, values: Values, column: Column[Any], reason: str) -> Damage:
        """Return the damage of a column in a row of the statement."""
        table = column.table
        named = {
            one.name: value
            for one, value in zip(self._columns, values, strict=True)
            if one is not None and one.table is table
        }
        keys = [str(one.name) for one in table.primary_key]
        is_keyed = all(name in named for name in keys)
        shown = keys if is_keyed else list(named)
        run_no, dag_id = named.get("run_no"), named.get("dag_id")
        return Damage(
            table=str(table.name),
            key=", ".join(f"{name}={_shown(named[name])}" for name in shown),
            key_values=tuple(named[name] for name in keys) if is_keyed else (),
            column=str(column.name),  # SQLAlchemy's names are instances of a subclass of str
            reason=reason,
            run_no=run_no if type(run_no) is int else None,
            dag_id=dag_id if type(dag_id) is str else None,
        )


@cache
def row_checker(statement: Select[Any]) -> RowChecker:
    """Return the checker for the rows of a statement."""
    return RowChecker(statement.selected_columns)


def read_rows(
    statement: Select[Any],
    made: Callable[[Values], Row],
    found: Sequence[Values],
    damaged: Callable[[Damage, Row | None], Row | None],
) -> list[Row]:
    """Convert the result of a statement to rows.

    Args:
        damaged: Called for each unreadable row. Returns its substitute, or ``None`` to omit it.
    """
    if not found:
        return []
    check = row_checker(statement)
    try:
        return list(map(made, check.checked(found)))
    except Exception:  # noqa: BLE001 - a row cannot be read: check each row separately
        return list(_one_by_one(check, made, found, damaged))


def _one_by_one(
    check: RowChecker,
    made: Callable[[Values], Row],
    found: Sequence[Values],
    damaged: Callable[[Damage, Row | None], Row | None],
) -> Iterable[Row]:
    for values in map(tuple, found):
        row, damage = check.repaired(values, made)
        if damage is not None:
            row = damaged(damage, row)
        if row is not None:
            yield row


def _type_of(column: Any) -> Any:
    if isinstance(column, Label | FunctionElement):
        inner = column.element if isinstance(column, Label) else column
        if isinstance(inner, FunctionElement) and inner.name in {"min", "max"}:
            (of,) = inner.clauses
            return _type_of(of) | None if isinstance(of, Column) else Any
        return Any
    if not isinstance(column, Column):
        return Any
    kind: Any
    match column.type:
        case Integer():
            least, most = column.info.get(RANGE, _ANY_NUMBER)
            kind = Annotated[int, msgspec.Meta(ge=least, le=most)]
        case Text():
            kind = str
        case LargeBinary():
            kind = bytes
        case _:
            raise AssertionError(f"{column} has a type that nothing checks")
    return kind | None if column.nullable else kind


def _placeholder(column: Column[Any]) -> Any:
    if PLACEHOLDER in column.info:
        return column.info[PLACEHOLDER]
    if column.nullable:
        return None
    match column.type:
        case Integer():
            return max(0, column.info.get(RANGE, _ANY_NUMBER)[0])
        case Text():
            return ""
        case _:
            return b""


def _shown(value: object) -> str:
    """Return a short readable form of a value."""
    match value:
        case bytes():
            return f"{len(value)} bytes"
        case str() if len(value) > _SHOWN:
            return repr(value[:_SHOWN]) + " ..."
        case str():
            return repr(value)
        case _:
            return str(value)[:_SHOWN]
