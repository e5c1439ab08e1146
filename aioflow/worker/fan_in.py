"""The results of a mapped parent, as a sequence that is fetched page by page."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias, overload

import msgspec

from aioflow.author.codec import decode
from aioflow.model.states import Failure, TaskState
from aioflow.results import read_items, read_value, result_path
from aioflow.worker.queries import ResultsPage

__all__ = ("FailedChild", "Pages", "Results", "decode_item")

Pages: TypeAlias = Callable[[int, int], ResultsPage]
"""Returns, for ``(position, after)``, the page of that parent's results that follows ``after``."""

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
    the number of children. ``len`` fetches all pages once.

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
            number += 1  # an empty page begins where the next one does
        return self._read(*item[0][1:])

    def __repr__(self) -> str:
        return f"<results of {self.width} children>"

    def _walk(self) -> None:
        while not self._complete:
            self._page(len(self._afters) - 1)

    def _page(self, number: int) -> ResultsPage:
        """Return a known page, or the next unknown one."""
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
    folder: Path,
    task_no: int,
    start_no: int,
    body: bytes | None,
    annotation: Any = Any,
    *,
    is_list: bool = False,
) -> Any:
    """Return one result given in a page: inline, in a file, or ``None``.

    Args:
        folder: Folder of the large results.
        is_list: The file is an indexed one, because its task feeds an ``expand``.
    """
    if body is not None:
        return decode(body, annotation)
    if start_no == 0:
        return None
    path = result_path(folder, task_no, start_no)
    if is_list:
        return [decode(item, annotation) for item in read_items(path)]
    return decode(read_value(path), annotation)
