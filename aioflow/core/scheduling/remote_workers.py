"""Workers of executors other than the local one, which are started and ended by demand.

A process loads the code of one DAG version for its whole life. So if tries of another version wait
and no worker is left for them, the same number of idle workers is retired, and the executor starts
new ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from aioflow.core.scheduling.worker import NOWHERE, Worker
from aioflow.model.timestamps import Timestamp
from aioflow.model.workers import WorkerDemand, WorkerLocation, WorkerNo, WorkerSpec

__all__ = (
    "RemoteWorkers",
    "Waiting",
)


class Waiting:
    """The tasks that wait for workers of one spec, counted up to a limit.

    Attributes:
        count: Number of tasks that the limits of their runs and pools admit.
        priority: The highest priority among them.
        since: Since when the longest-waiting task has waited.
    """

    __slots__ = ("count", "priority", "since")

    def __init__(self) -> None:
        self.count = 0
        self.priority: int | None = None
        self.since: Timestamp | None = None

    def add(self, count: int, priority: int, since: Timestamp | None) -> None:
        """Add a number of tasks of equal priority to the count."""
        self.count += count
        self.priority = priority if self.priority is None else max(self.priority, priority)
        if since is not None:
            self.since = since if self.since is None else min(self.since, since)


class RemoteWorkers:
    """The workers of all executors except the local one.

    Args:
        limits: Maximum number of workers of each executor, by its name.

    Attributes:
        unavailable: Why no worker of a spec is available now, as reported by its executor.
        may_demand: Whether the demand may differ from the last one, because workers came, left or
            were lost, or because a pool has changed.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.unavailable: dict[WorkerSpec, str] = {}
        self.may_demand = True
        self._limits = dict(limits)
        self._workers: dict[WorkerNo, Worker] = {}
        self._of_spec: dict[WorkerSpec, dict[WorkerNo, Worker]] = {}
        self._replacing: dict[WorkerSpec, int] = {}
        self._demanded: dict[WorkerSpec, WorkerDemand] | None = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __bool__(self) -> bool:
        return bool(self._workers)

    def __getitem__(self, number: WorkerNo) -> Worker:
        return self._workers[number]

    @property
    def limits(self) -> Mapping[str, int]:
        """Maximum number of workers of each configured executor, by its name."""
        return self._limits

    @property
    def demanded(self) -> list[WorkerDemand]:
        """The last demand."""
        return list((self._demanded or {}).values())

    def find(self, number: WorkerNo) -> Worker | None:
        """Return the worker with a number; ``None`` if its process has ended."""
        return self._workers.get(number)

    def limit(self, executor: str) -> int:
        """Return the maximum number of workers of an executor.

        It is 1 for an unknown executor, so that there is a demand, which is then reported as
        unavailable.
        """
        return self._limits.get(executor, 1)

    def of_spec(self, spec: WorkerSpec) -> list[Worker]:
        """Return the workers of a spec that may be granted tries."""
        workers = self._of_spec.get(spec, {}).values()
        return [one for one in workers if not (one.is_leaving or one.is_lost)]

    @property
    def specs(self) -> list[WorkerSpec]:
        """The specs of all workers, ordered by when the first worker of each spec came up."""
        return list(self._of_spec)

    # ── workers come and go ─────────────────────────────────────────────────────────────

    def add(self, number: WorkerNo, spec: WorkerSpec, location: WorkerLocation = NOWHERE) -> None:
        """Add a worker. Do nothing if it is already known."""
        if number in self._workers:
            return
        self.may_demand = True
        worker = Worker(number, spec, location)
        self._workers[number] = self._of_spec.setdefault(spec, {})[number] = worker
        self.unavailable.pop(spec, None)
        if self._replacing.get(spec):
            self._replacing[spec] -= 1

    def restore(self, number: WorkerNo, spec: WorkerSpec) -> Worker:
        """Return the worker of a restored try. If its process has ended, it gets no other try."""
        if number not in self._workers:
            self.add(number, spec)
            self._workers[number].is_leaving = True
        return self._workers[number]

    def remove(self, number: WorkerNo) -> None:
        """Remove a worker whose process has ended, at once or when its last try has left it."""
        worker = self._workers.get(number)
        if worker is not None:
            self.may_demand = True
            worker.is_leaving = True
            self.drop_if_over(worker)

    def drop_if_over(self, worker: Worker) -> None:
        """Forget a worker that is leaving, if it has no try any more."""
        if worker.is_leaving and worker.is_idle and worker.number in self._workers:
            del self._workers[worker.number]
            del self._of_spec[worker.spec][worker.number]
            if not self._of_spec[worker.spec]:
                del self._of_spec[worker.spec]

    def retire(self, worker: Worker) -> None:
        """Retire an idle worker. Its executor will end it."""
        self.remove(worker.number)

    def replace(self, idle: list[Worker], count: int) -> list[Worker]:
        """Retire idle workers of one spec to make way for the code of other versions. Return them.

        Args:
            count: How many tries wait for such code. At most this many workers are being replaced
                at the same time.
        """
        spec = idle[0].spec
        replacing = self._replacing.get(spec, 0)
        retired = idle[: max(0, count - replacing)]
        self._replacing[spec] = replacing + len(retired)
        for worker in retired:
            self.retire(worker)
        return retired

    # ── demand ──────────────────────────────────────────────────────────────────────────

    def forget_demand(self) -> None:
        """Demand everything again, because the last demand may not have been acted on."""
        self._demanded, self.may_demand = None, True

    def demand(self, waiting: Mapping[WorkerSpec, Waiting]) -> tuple[WorkerDemand, ...] | None:
        """Return the complete demand; ``None`` if it has not changed.

        Args:
            waiting: The tasks that wait for a worker of each spec.
        """
        wanted: dict[WorkerSpec, WorkerDemand] = {}
        busy: Counter[WorkerSpec] = Counter()
        lost: Counter[WorkerSpec] = Counter()
        present: Counter[WorkerSpec] = Counter()
        for worker in self._workers.values():
            if worker.is_leaving:
                continue
            present[worker.spec] += 1
            if not worker.is_idle:
                busy[worker.spec] += 1
            elif worker.is_lost:
                lost[worker.spec] += 1
        for spec in {**busy, **waiting}:
            found = waiting.get(spec) or Waiting()
            count = busy[spec] + found.count
            # The executor compares this count with the workers that are up. If the count did not
            # include idle workers that are lost or have other code, these workers would seem to be
            # enough.
            if found.count:
                count += lost[spec]
            if replacing := min(self._replacing.get(spec, 0), found.count):
                count = max(count, present[spec] + replacing)
            count = min(count, self.limit(spec.executor))
            if count:
                wanted[spec] = WorkerDemand(spec, count, found.priority or 0, found.since)
        is_same = self._demanded is not None and _is_same(wanted, self._demanded)
        self._demanded = wanted  # stored with its age, which is displayed
        if is_same:
            return None
        for spec in self.unavailable.keys() - wanted.keys():
            del self.unavailable[spec]
        for spec in self._replacing.keys() - wanted.keys():
            del self._replacing[spec]
        return tuple(wanted.values())


def _is_same(
    one: Mapping[WorkerSpec, WorkerDemand], other: Mapping[WorkerSpec, WorkerDemand]
) -> bool:
    """Return whether two demands are for the same workers. Their ages may differ."""
    return one.keys() == other.keys() and all(
        (demand.count, demand.priority) == (other[spec].count, other[spec].priority)
        for spec, demand in one.items()
    )
