"""The role ``slot``: runs ``def`` bodies one after another in the main thread.

A second thread reads commands, so that a prefetched try can be recalled while another try runs.
Both threads claim a try by one atomic ``dict.pop``: a try is either started or recalled, never
both. There is no third thread.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import CoroutineType
from typing import TypeAlias

import msgspec

from aioflow.author.client import NamedValues, set_process_values
from aioflow.author.codec import run_steps
from aioflow.author.deferral import poke_result
from aioflow.errors import LinkClosed, TaskError, UnknownValue
from aioflow.model.dag import ValueKind
from aioflow.model.ids import RunNo
from aioflow.protocol.commands import (
    Command,
    ForgetRun,
    Hello,
    Ping,
    Recall,
    Reply,
    RunInfo,
    StartTask,
)
from aioflow.protocol.reports import (
    Ended,
    Labelled,
    Pong,
    Query,
    Recalled,
    ResultWriteFailed,
    SensorNotReady,
    TaskStarted,
)
from aioflow.results import ResultFiles
from aioflow.worker.code.fetch import CODE_QUERY, write_version
from aioflow.worker.code.installed_packages import InstalledPackages
from aioflow.worker.code.loader import CodeCache
from aioflow.worker.link import BlockingLink
from aioflow.worker.process_tree import Orphans
from aioflow.worker.query import values
from aioflow.worker.query.messages import FilesCopied, FilesWanted, ResultsPage, ResultsWanted
from aioflow.worker.query.result_transfer import ResultTransfer
from aioflow.worker.stdio import (
    IDLE,
    Descriptors,
    configure_logging,
    flush,
    line_by_line,
    restore_streams,
)
from aioflow.worker.task.arguments import Runs, spec_of
from aioflow.worker.task.body import body_of_try, use_span
from aioflow.worker.task.outcome import (
    ended_badly,
    gives_items,
    handled,
    not_begun,
    now,
    pack,
    pack_at_once,
    succeeded,
    write_failure_reporter,
    write_result,
)

__all__ = (
    "AskDaemon",
    "Slot",
    "result_files",
    "run_body",
)

Tell: TypeAlias = Callable[[Labelled | ResultWriteFailed], None]

AskDaemon: TypeAlias = Callable[[RunNo, str, bytes], Reply]
"""Sends the query ``(run, kind, body)`` and returns the reply; see ``query.messages``."""


def run_body(
    start: StartTask,
    runs: Runs,
    ask: AskDaemon,
    tell: Tell,
    results: ResultFiles,
    transfer: ResultTransfer | None = None,
) -> Ended:
    """Run a try in this thread and return its report. User code cannot make this function raise.

    Args:
        runs: The known runs. They must include the run of the try.
        ask: Queries the daemon for results of parents and for declared values. It blocks, and
            threads of user code may call it.
        tell: Called with the label before the body runs, and later each time writing the result
            fails.
        results: The files of large results.
        transfer: Exchanges large results with the daemon, if this machine lacks its home.
    """
    try:
        run = runs.of(start)
        node = run.dag.nodes[start.task_index]
    except BaseException as exc:  # noqa: BLE001 - importing the DAG file is user code
        return not_begun(start, exc)
    began_at = now()
    body = None
    names = spec_of(node).values
    try:
        if names or transfer is not None:
            _fetch_ahead(ask, start, names, transfer)
        body = body_of_try(run, node, start, partial(_fetch_page, ask, transfer), results)
        if body.label is not None:
            tell(Labelled(start.task_no, start.start_no, body.label))
        value = body.call()
        if isinstance(value, CoroutineType):
            value.close()
            raise TypeError(
                f"{node.task_id!r} is no `async def`, yet returned a coroutine; "
                "declare it async, so that it runs on an event loop"
            )
        if body.is_check:
            done, value = poke_result(value)
            if not done:
                return SensorNotReady(start.task_no, start.start_no, began_at, now())
        if gives_items(node, start):
            return run_steps(handled(node, start, began_at, value))
        packed = pack_at_once(node, value)
        if packed is None:
            packed = run_steps(pack(node, start, value, results))
        if packed.write is not None:
            _write(packed.write, start, tell, transfer)
        return succeeded(start, began_at, packed)
    except BaseException as exc:  # noqa: BLE001 - user code may raise anything
        operator = None if body is None else body.operator
        return run_steps(ended_badly(node, start, began_at, exc, operator))
    finally:
        if names:
            set_process_values({})


def _fetch_ahead(
    ask: AskDaemon,
    start: StartTask,
    names: tuple[tuple[ValueKind, str], ...],
    transfer: ResultTransfer | None,
) -> None:
    if names:
        set_process_values(_fetch_values(ask, start, names))
    if transfer is not None:
        transfer.fetch_sources(start)


def _write(
    write: Callable[[], None], start: StartTask, tell: Tell, transfer: ResultTransfer | None
) -> None:
    if transfer is not None:
        write = partial(transfer.write, write, start)
    write_result(write, write_failure_reporter(start, tell))


def _fetch_page(
    ask: AskDaemon, transfer: ResultTransfer | None, run_no: RunNo, task_index: int, after: int
) -> ResultsPage:
    got = ask(run_no, "results", msgspec.msgpack.encode(ResultsWanted(task_index, after)))
    if got.error:
        raise TaskError(f"results of a parent are not available: {got.error}")
    page = msgspec.msgpack.decode(got.body, type=ResultsPage)
    return page if transfer is None else transfer.fetch_page(run_no, page)


def result_files(hello: Hello, ask: AskDaemon) -> ResultFiles:
    """Return the result files of a process that may block while the daemon copies a result."""

    def copy(run_no: int, task_no: int, start_no: int) -> None:
        wanted = FilesWanted(((task_no, start_no),))
        got = ask(run_no, "files", msgspec.msgpack.encode(wanted))
        if got.error:
            raise TaskError(f"a stored result cannot be fetched: {got.error}")
        msgspec.msgpack.decode(got.body, type=FilesCopied).check()

    copies = Path(hello.copies) if hello.copies else None
    return ResultFiles(Path(hello.results), copies, copy)


def _fetch_values(
    ask: AskDaemon, start: StartTask, names: tuple[tuple[ValueKind, str], ...]
) -> NamedValues:
    got = ask(start.run_no, "values", values.encoded_query(start.task_index, names))
    if got.error:
        raise UnknownValue(got.error)
    return values.decoded(names, got.body)


Key: TypeAlias = tuple[int, int]


class Slot:
    """One slot worker.

    Args:
        link: Link to the daemon, which has already sent ``Hello``.
        nonce: Distinguishes the marks that aioflow writes to the output from the output of user
            code.
    """

    def __init__(self, link: BlockingLink, hello: Hello, nonce: bytes) -> None:
        self._link = link
        self._send_lock = threading.Lock()
        self._code = Path(hello.code)
        self._fetches_code = hello.fetches_code
        self._results = result_files(hello, self._ask)
        folder, transfers = self._results.folder, hello.transfers_results
        self._transfer = ResultTransfer(folder, self._ask) if transfers else None
        self._traces = hello.traces
        self._installed = InstalledPackages(hello.code)
        self._runs = Runs(CodeCache(Path(hello.code), exclusive=True))
        self._queue: SimpleQueue[Key | None] = SimpleQueue()
        self._claimed: dict[Key, StartTask] = {}
        self._questions: dict[int, SimpleQueue[Reply]] = {}
        self._asked = 0
        self._busy = False
        self._pid = os.getpid()
        self._descriptors = Descriptors(nonce)
        self._orphans = Orphans()

    def run(self, first: Sequence[Command] = ()) -> None:
        """Serve the commands that came with ``Hello``, and then until the link closes."""
        line_by_line()
        configure_logging()
        for command in first:
            self._handle(command)
        threading.Thread(target=self._read, name="aioflow-link", daemon=True).start()
        start = self._next(block=True)
        if start is not None:
            self._send([TaskStarted(start.task_no, start.start_no, now())])
        while start is not None:
            ended = self._run_one(start)
            start = self._next(block=False)
            if start is not None:
                # One frame contains the end of one try and the start of the next.
                self._send([ended, TaskStarted(start.task_no, start.start_no, now())])
                continue
            self._busy = False
            self._descriptors.mark(*IDLE)
            self._send([ended])
            start = self._next(block=True)
            if start is not None:
                self._send([TaskStarted(start.task_no, start.start_no, now())])

    # ── the reading thread ──────────────────────────────────────────────────────────────

    def _read(self) -> None:
        try:
            while True:
                for command in self._link.receive():
                    self._handle(command)
        except (LinkClosed, msgspec.DecodeError) as exc:
            if self._busy:
                # The daemon can no longer use the result of the running try.
                self._descriptors.write(f"aioflow: {exc}; ending in the middle of a try\n".encode())
                os._exit(0)
            self._queue.put(None)

    def _handle(self, command: Command) -> None:
        match command:
            case StartTask():
                key = (command.task_no, command.start_no)
                self._claimed[key] = command
                self._queue.put(key)
            case RunInfo():
                self._runs.add(command)
            case ForgetRun():
                self._runs.forget(command.run_no)
            case Ping():
                self._send([Pong()])
            case Recall():
                back = tuple(key for key in command.tries if self._claimed.pop(key, None))
                self._send([Recalled(back)])
            case Reply():
                waiting = self._questions.pop(command.question, None)
                if waiting is not None:
                    waiting.put(command)
            case _:
                raise LinkClosed(f"a slot worker was ordered {type(command).__name__}")

    # ── the main thread ─────────────────────────────────────────────────────────────────

    def _next(self, *, block: bool) -> StartTask | None:
        """Return the next try that was not recalled, and mark this process as busy.

        If the queue is empty, return ``None`` unless ``block`` is set. Also return ``None`` if the
        link is closed or installed packages have changed. This process then ends. After a change of
        packages, a new process gets the tries that have not started.
        """
        while block or not self._queue.empty():
            key = self._queue.get()
            if key is None:
                if not block:
                    self._queue.put(None)
                return None
            if self._installed.check_if_due():
                self._send([Pong(changed=self._installed.changed)])  # report why before exiting
                self._queue.put(None)
                return None
            self._busy = True
            start = self._claimed.pop(key, None)
            if start is not None:
                return start
            self._busy = False
        return None

    def _run_one(self, start: StartTask) -> Ended:
        self._descriptors.mark(start.task_no, start.start_no)
        stdout, stderr = sys.stdout, sys.stderr
        try:
            if self._fetches_code:
                self._fetch_code(start.run_no)
            body = partial(
                run_body, start, self._runs, self._ask, self._report, self._results, self._transfer
            )
            if not self._traces:
                return body()
            with use_span(self._runs.info(start.run_no), start):
                return body()
        finally:
            flush()
            restore_streams(stdout, stderr)
            if self._descriptors.restore():
                flush()  # buffered output that a closed descriptor refused belongs to this try
            if os.getpid() != self._pid:
                # User code has forked and returned in the forked process, which must not continue
                # here.
                os._exit(0)
            if killed := self._orphans.kill():
                said = (
                    f"aioflow: killed {killed} processes that were left running in the background\n"
                )
                self._descriptors.write(said.encode())

    def _fetch_code(self, run_no: RunNo) -> None:
        """Fetch the code of a try's version, unless it is already there.

        If the code cannot be fetched, the try reports that it is missing, and is repeated later.
        """
        info = self._runs.info(run_no)
        if info is None or (self._code / info.version).is_dir():
            return
        got = self._ask(run_no, CODE_QUERY, msgspec.msgpack.encode(info.version))
        if got.error:
            self._descriptors.write(f"aioflow: no code: {got.error}\n".encode())
            return
        try:
            write_version(self._code / info.version, got.body)
        except (OSError, ValueError) as exc:
            self._descriptors.write(f"aioflow: the code cannot be written: {exc}\n".encode())

    # ── messages ────────────────────────────────────────────────────────────────────────

    def _send(self, messages: Sequence[object]) -> None:
        with self._send_lock:
            self._link.send(messages)

    def _report(self, report: Labelled | ResultWriteFailed) -> None:
        self._send([report])

    def _ask(self, run_no: int, kind: str, body: bytes) -> Reply:
        """Send a query and block until the reply; see ``AskDaemon``."""
        answer: SimpleQueue[Reply] = SimpleQueue()
        with self._send_lock:
            self._asked += 1
            question = self._asked
            self._questions[question] = answer
            self._link.send([Query(question, run_no, kind, body)])
        return answer.get()
