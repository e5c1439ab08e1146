"""Items of mapped tasks and streams: the item and label of a child, and results of all children.

The item of a mapped child is picked from one or more lists, which may be joined, and passed through
``map`` functions. The results of a mapped parent are a sequence that is fetched page by page.
Stream items are passed between tasks while the producing task still runs, with backpressure from
the store.
"""

from __future__ import annotations

import asyncio
import inspect
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Any, Protocol, TypeAlias, get_args, get_origin, overload

import msgspec

from aioflow.author import codec
from aioflow.author.codec import Steps, decode
from aioflow.author.decode import type_hints
from aioflow.author.node import Node, Source
from aioflow.core.tasks.expand import pick, split
from aioflow.errors import ValueTooLarge
from aioflow.model.dag import MapSpec
from aioflow.model.ids import TaskNo
from aioflow.model.states import Failure, TaskState
from aioflow.protocol.commands import StartTask
from aioflow.protocol.reports import ItemYielded, Report
from aioflow.results import RESULT_LIMIT, ResultFiles, read_items, read_value
from aioflow.worker.failures import one_line, print_traceback
from aioflow.worker.query.messages import ResultsPage
from aioflow.worker.query.values import masks

__all__ = (
    "ITEM_LIMIT",
    "LABEL_LIMIT",
    "FailedChild",
    "FetchItem",
    "ItemStream",
    "ItemTooLarge",
    "MapInput",
    "MapRaised",
    "Pages",
    "Results",
    "all_items",
    "decode_item",
    "encoded_item",
    "gathered_items",
    "label_of",
    "one_item",
)

FetchItem: TypeAlias = Callable[[Source, int, Any], Any]
"""Returns the item of a list for ``(leaf, index, annotation)``, decoded to the annotated type."""


class MapRaised(Exception):
    """Raised if a function given to ``map`` raised. ``problem`` is its exception."""

    def __init__(self, problem: BaseException) -> None:
        super().__init__(str(problem))
        self.problem = problem


class MapInput:
    """Resolves the items of one child."""

    def __init__(self, node: Node, spec: MapSpec, start: StartTask) -> None:
        self._sources = node.sources
        self._picks: Sequence[int] = (start.map_index,)
        if len(start.widths) == 1:  # a single list
            self._picks = split(start.map_index, start.widths)
        elif start.widths:  # a child of a stream gets the item at its own index
            self._picks = pick(spec, start.map_index, start.widths)

    def picked(self) -> Iterator[tuple[Source, int]]:
        """Yield each list from which an item is picked, with the index of the item."""
        lists = (leaf for source in self._sources for leaf in source.leaves)
        for leaf, index in zip(lists, self._picks, strict=True):
            if index >= 0:
                yield leaf, index

    def item(self, number: int, annotation: Any, fetch: FetchItem) -> Any:
        """Return the item of one source.

        Args:
            fetch: Called for each list from which an item is picked.

        Raises:
            MapRaised: If a function given to ``map`` raised.
        """
        source, picks = self._sources[number], self._picks
        if number:
            before = islice(self._sources, number)
            picks = picks[sum(len(list(source.leaves)) for source in before) :]
        return _mapped_item(source, picks, annotation, fetch)


def _mapped_item(source: Source, picks: Sequence[int], annotation: Any, fetch: FetchItem) -> Any:
    if source.functions:
        annotation = _parameter_annotation(source.functions[0])
    if not source.join:
        value = fetch(source, picks[0], annotation)
    else:
        value = _joined_item(source, picks, annotation, fetch)
    for function in source.functions:
        try:
            value = function(value)
        except BaseException as exc:  # user code may raise anything
            raise MapRaised(exc) from exc
    return value


def _joined_item(source: Source, picks: Sequence[int], annotation: Any, fetch: FetchItem) -> Any:
    wanted = _part_annotations(annotation, source)
    values = []
    for part, kind in zip(source.parts, wanted, strict=True):
        size = len(list(part.leaves))
        mine, picks = picks[:size], picks[size:]
        is_there = max(mine) >= 0
        if is_there or source.join != "concat":
            values.append(_mapped_item(part, mine, kind, fetch) if is_there else source.fill)
    return values[0] if source.join == "concat" else tuple(values)


def _part_annotations(annotation: Any, source: Source) -> list[Any]:
    """Return the expected item type of each part."""
    count = len(source.parts)
    if source.join == "concat":
        return [annotation] * count
    kinds = get_args(annotation) if get_origin(annotation) is tuple else ()
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return [kinds[0]] * count
    return list(kinds) if len(kinds) == count else [Any] * count


def _parameter_annotation(function: Callable[..., Any]) -> Any:
    """Return the annotated type of a function's first parameter; ``Any`` if there is none."""
    if not inspect.isfunction(function):
        return Any
    names = function.__code__.co_varnames[:1]
    return type_hints(function).get(names[0], Any) if names else Any


LABEL_LIMIT = 200
"""Maximum characters of a label."""


def label_of(node: Node, start: StartTask, arguments: Mapping[str, Any]) -> str | None:
    """Return the label of a child at the start of a try; ``None`` if it has none.

    If user code raises, the traceback is printed to the log and the try continues.
    """
    label = node.settings.map_label
    if label is None or start.map_index < 0 or start.method:
        return None
    try:
        said = (
            label.format(**arguments) if isinstance(label, str) else _called_label(label, arguments)
        )
        return _shortened_label(one_line(masks.masked_text(str(said)).replace("\0", " ")))
    except BaseException as exc:  # noqa: BLE001 - user code may raise anything
        print_traceback(exc)
        return None


def _called_label(function: Callable[..., object], arguments: Mapping[str, Any]) -> object:
    parameters = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return function(**arguments)
    return function(**{name: arguments[name] for name in parameters if name in arguments})


def _shortened_label(label: str) -> str:
    return label if len(label) <= LABEL_LIMIT else f"{label[: LABEL_LIMIT - 3]}..."


Pages: TypeAlias = Callable[[int, int], ResultsPage]
"""Returns the page of a parent's results that follows ``after``, for ``(task_index, after)``."""

_PAGES_LIMIT = 4


class FailedChild(msgspec.Struct, frozen=True):
    """A child of a mapped task that has no result.

    Attributes:
        state: ``failed``, ``skipped``, ``upstream_failed``, ``cancelled`` or ``removed``.
        error: The reason, if there is one.
    """

    index: int
    state: str
    error: str = ""


class Results(Sequence[Any]):
    """The results of a mapped task's successful children, in map order.

    Pages are fetched lazily and only a few are cached, so iterating takes little memory, whatever
    the number of children. The first call of ``len`` fetches all pages.

    Attributes:
        width: Number of children, including failed ones.
    """

    def __init__(
        self,
        fetch: Callable[[int], ResultsPage],
        read: Callable[[int, int, bytes | None], Any],
    ) -> None:
        self._fetch = fetch
        self._read = read
        self._pages: OrderedDict[int, ResultsPage] = OrderedDict()
        self._afters = [-2]  # the `after` value of each known page
        self._starts = [0]  # number of results before each known page
        self._complete = False
        self._indexes = array("q")
        self._failed: list[FailedChild] = []
        self.width = self._page(0).width

    @property
    def indexes(self) -> Sequence[int]:
        """The map index of each result."""
        self._walk()
        return tuple(self._indexes)

    @property
    def failed(self) -> Sequence[FailedChild]:
        """The children without a result, in map order."""
        self._walk()
        return tuple(self._failed)

    def __len__(self) -> int:
        self._walk()
        return len(self._indexes)

    def __iter__(self) -> Iterator[Any]:
        number = 0
        while True:
            page = self._page(number)
            for _, task_no, start_no, body in page.items:
                yield self._read(task_no, start_no, body)
            if not page.more:
                return
            number += 1

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        while index >= len(self._indexes) and not self._complete:
            self._page(len(self._afters) - 1)
        if not 0 <= index < len(self._indexes):
            raise IndexError(f"result {index} of {len(self._indexes)}")
        number = bisect_right(self._starts, index) - 1
        while not (item := self._page(number).items[index - self._starts[number] :]):
            number += 1  # an empty page has the same first index as the next page
        return self._read(*item[0][1:])

    def __repr__(self) -> str:
        return f"<results of {self.width} children>"

    def _walk(self) -> None:
        while not self._complete:
            self._page(len(self._afters) - 1)

    def _page(self, number: int) -> ResultsPage:
        """Return a page that was fetched earlier, or the next one."""
        page = self._pages.get(number)
        if page is not None:
            self._pages.move_to_end(number)
        else:
            page = self._pages[number] = self._fetch(self._afters[number])
            if len(self._pages) > _PAGES_LIMIT:
                self._pages.popitem(last=False)
        if number == len(self._afters) - 1 and not self._complete:
            self._learn(page)
        return page

    def _learn(self, page: ResultsPage) -> None:
        self._indexes.extend(item[0] for item in page.items)
        self._failed += [
            FailedChild(index, TaskState(state).label, _why(failure))
            for index, state, failure in page.failed
        ]
        if page.more:
            self._afters.append(page.last)
            self._starts.append(len(self._indexes))
        else:
            self._complete = True


def _why(failure: Failure | None) -> str:
    return "" if failure is None else f"{failure.type}: {failure.message}"


def decode_item(
    files: ResultFiles,
    run_no: int,
    task_no: int,
    start_no: int,
    body: bytes | None,
    annotation: Any = Any,
    *,
    is_list: bool = False,
) -> Any:
    """Return one result of a page. The result is inline, in a file, or ``None``.

    Args:
        files: The files of large results.
        is_list: Whether the file has an index, because another task expands over the result.
    """
    if body is not None:
        return decode(body, annotation)
    if start_no == 0:
        return None
    if is_list:
        items = files.read(run_no, task_no, start_no, read_items)
        return [decode(item, annotation) for item in items]
    return decode(files.read(run_no, task_no, start_no, read_value), annotation)


ITEM_LIMIT = 1024 * 1024
"""Maximum size of an item, in bytes of msgpack."""


_ITEM_BYTES = 32
"""Minimum size that an unsent item counts for, however small it is."""


class ItemTooLarge(Exception):
    """Raised if an item, or all items that a handler returned together, exceed the size limit."""


def encoded_item(value: object, what: str) -> Steps[bytes]:
    """Encode an item.

    Raises:
        ItemTooLarge: If the item has more than ``ITEM_LIMIT`` bytes.
        Unserializable: If the item cannot be encoded.
    """
    try:
        return (yield from codec.in_steps(value, what, ITEM_LIMIT))
    except ValueTooLarge as exc:
        raise ItemTooLarge(str(exc)) from None


def gathered_items(node: Node, value: object) -> Steps[tuple[bytes, ...]]:
    """Return the encoded items that a handler adds to the task's output: one value, or a list.

    Raises:
        ItemTooLarge: If one item, or all items together, exceed the size limit.
        Unserializable: If an item cannot be encoded.
    """
    if value is None:
        return ()
    several = isinstance(value, list | tuple) or inspect.isgenerator(value)
    values = value if several else (value,)
    items: list[bytes] = []
    size = 0
    for item in values:  # type: ignore[attr-defined]  # one of the three
        what = f"item {len(items)} of what {node.task_id!r} returned"
        items.append((yield from encoded_item(item, what)))
        size += max(len(items[-1]), _ITEM_BYTES)
        if size > RESULT_LIMIT:
            raise ItemTooLarge(str(ValueTooLarge(f"what {node.task_id!r} returned", RESULT_LIMIT)))
        yield
    return tuple(items)


def one_item(pages: Pages, task_no: TaskNo, index: int) -> bytes:
    """Return one stream item of a task.

    Raises:
        LookupError: If there is no such item.
    """
    for at, _, _, body in pages(~task_no, index - 1).items:
        if at == index and body is not None:
            return body
    raise LookupError(f"item {index} of task {task_no} is gone")


def all_items(pages: Pages, task_no: TaskNo, annotation: Any = Any) -> list[Any]:
    """Return all stream items of a task, in order."""
    values: list[Any] = []
    after, more = -1, True
    while more:
        page = pages(~task_no, after)
        bodies = (body for _, _, _, body in page.items)
        values += [codec.decode(body, annotation) for body in bodies if body is not None]
        after, more = page.last, page.more
    return values


class ItemReporter(Protocol):
    """The part of a try that an ``ItemStream`` uses."""

    start: StartTask

    def report(self, report: Report) -> None:
        """Send a report to the engine."""

    async def packed(self, steps: Steps[bytes]) -> bytes:
        """Encode a yielded item. Other coroutines run between the steps of a large item."""


class ItemStream:
    """Reports each item that a generator yields, and resumes the generator once it is stored."""

    def __init__(self, reporter: ItemReporter) -> None:
        self._reporter = reporter
        self._made = 0
        self._stored = reporter.start.stored
        self._window_open: asyncio.Future[None] | None = None

    async def send_all(self, items: AsyncGenerator[Any, None], name: str) -> None:
        """Report all items except those stored by an earlier try.

        Stored items keep their values.
        """
        known = self._stored
        async with aclosing(items):
            async for value in items:
                if self._made >= known:
                    what = f"item {self._made} of {name}"
                    await self._send(await self._reporter.packed(encoded_item(value, what)))
                self._made += 1
        if self._made < known:
            print(  # noqa: T201 - into the log of the task
                f"aioflow: it yielded {self._made} items, and {known} in an earlier try; "
                "those stay as they are"
            )

    async def _send(self, payload: bytes) -> None:
        start = self._reporter.start
        self._reporter.report(ItemYielded(start.task_no, start.start_no, self._made, payload))
        while self._stored <= self._made:
            self._window_open = asyncio.get_running_loop().create_future()
            try:
                await self._window_open
            finally:
                self._window_open = None

    def take(self, upto: int) -> None:
        """Record that the items before ``upto`` are stored, and resume the generator."""
        self._stored = max(self._stored, upto)
        if self._window_open is not None and not self._window_open.done():
            self._window_open.set_result(None)
