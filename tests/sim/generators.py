"""Hosted generators on virtual time: they yield items under backpressure."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from aioflow.protocol.commands import ItemsStored
from aioflow.protocol.effects import StartTry
from aioflow.protocol.inputs import Input
from aioflow.protocol.reports import ItemYielded
from tests.sim.actors import Body
from tests.sim.broken import Broken
from tests.sim.workload import SECOND

__all__ = ("Generator",)

_BETWEEN_US = (0, 0, 50, 3_000, SECOND)


class Generator:
    """A hosted generator: it yields each item once the previous one is stored."""

    def __init__(self, host: Any, effect: StartTry) -> None:
        self.body = Body(host.stage, effect)
        self.run_no = effect.start.run_no
        self.is_suspended = False
        self._host = host
        self._start = effect.start
        self._at = effect.start.stored
        self._is_waiting = False
        rng = random.Random(f"items {host.seed} {effect.start.task_no}")
        self._count = rng.choice((0, 1, 2, 5, 12))

    def begin(self) -> None:
        """Run from the top; stored items are not yielded again."""
        stage, start = self._host.stage, self._start
        stored = len(stage.tables.items_of(start.task_no))
        if stored != start.stored and not stage.tables.is_held(start.run_no):
            raise Broken("I19 items", f"{start} received {start.stored}, {stored} are stored")
        took, limit = self.body.begin(self._host.line), self.body.effect.timeout_us
        if limit is not None:
            self._host.after(self, limit, lambda: self._end(self.body.timed_out()))
        if took is not None:
            self._host.after(self, took, self._go_on)

    def take(self, order: ItemsStored) -> None:
        """Receive the confirmation of stored items, and check that as many items are stored."""
        stage, task_no = self._host.stage, self._start.task_no
        stored = len(stage.tables.items_of(task_no))
        if order.upto > stored and not stage.tables.is_held(self.run_no):
            raise Broken("I19 items", f"{order} is confirmed, {stored} are stored")
        if self._is_waiting and order.upto > self._at:
            self._is_waiting = False
            self._at += 1
            self._host.after(self, stage.rng.choice(_BETWEEN_US), self._go_on)

    def _go_on(self) -> None:
        rng = self._host.stage.rng
        if rng.random() < 0.05:
            failed = self.body.timed_out() if rng.random() < 0.2 else self.body.broken()
            self._end(failed)
        elif self._at < self._count:
            self._is_waiting = True
            payload = msgspec.msgpack.encode(["item", self._start.task_no, self._at])
            self._host.line.say(ItemYielded(*self.body.key, self._at, payload))
        else:
            self._end(self.body.end())

    def _end(self, report: Input) -> None:
        self._host.let_go(self, report)
