"""Who has a trigger: handed to the host while its task waits, and let go of after that."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from aioflow.core.crash_trials import may_host, may_host_all
from aioflow.core.state.child_roles import ASYNC, QUARANTINE, TRIGGERS, is_own, kind_of, own_role
from aioflow.core.state.dag_version import DagVersion
from aioflow.core.state.memory import Memory
from aioflow.core.state.packing import PackedTask, TaskShape
from aioflow.core.state.task_instance import TriggerInstance
from aioflow.core.tasks.start_command import order
from aioflow.core.transaction import Transaction
from aioflow.model.dag import TaskSpec
from aioflow.model.ids import TriggerNo
from aioflow.model.rows import FROM_START, RESUMES
from aioflow.model.states import TriggerState
from aioflow.protocol.commands import StartTrigger, StopTrigger
from aioflow.protocol.effects import AssignTrigger, ReleaseTrigger, StartHost
from aioflow.protocol.inputs import AssignTriggers

__all__ = (
    "HANDED_AT_ONCE",
    "HOSTLESS",
    "REASSIGNED",
    "RUN",
    "SLEEP",
    "hand_on",
    "hand_over",
    "host",
    "host_all",
    "host_rest",
    "hosted_before",
    "is_stopped",
    "let_go",
    "newest_version",
    "role_of",
    "unhost",
    "want_host",
    "want_own_hosts",
)

REASSIGNED = "reassigned"
"""Why a trigger is let go of that goes on elsewhere."""

SLEEP = "sleep"
"""The class path of a trigger that is its deadline and nothing else."""

RUN = "run"
"""That of one which a run of another DAG answers, the one it has started."""

HOSTLESS = frozenset({SLEEP, RUN})
"""Those that no host ever has."""

HANDED_AT_ONCE = 1_000
"""Triggers handed in one turn to a host that came up; the others follow in the next ones."""


def host(wait: TriggerInstance, draft: Transaction) -> None:
    """Hand a waiting trigger to its host, if there is one and it can be read.

    The quarantine host comes up with the first trigger that it is handed; that one is handed
    over again when it has. The own host of a DAG is started where the first of its triggers needs
    it, and is handed them when it is up.
    """
    row, run = wait.row, wait.run.row
    role = role_of(row.class_path, wait.run.plan, draft.memory)
    draft.rehost(wait)
    unhost(wait)
    if row.kwargs is None or row.class_path in HOSTLESS or draft.memory.is_drained:
        return
    if _is_ending(wait) or is_stopped(run.dag_id, draft.memory):
        return
    if not may_host(row.trigger_no, draft.memory):
        return  # it is handed over after others
    wait.role = role
    if not _takes(role, draft.memory):
        want_host(role, draft)
        return
    wait.hosting = draft.memory.next_hosting()
    wait.version = newest_version(wait.run.plan, draft.memory)
    if wait.stream is not None:
        wait.stream.index = wait.stream.taken = 0
    is_told = row.ordinal == FROM_START or _feeds(wait)
    info = wait.run.info if is_told else None
    draft.effects.append(
        AssignTrigger(_order(wait, row.kwargs, draft, is_told=is_told), info, role)
    )


def _is_ending(wait: TriggerInstance) -> bool:
    """Whether its task is about to be cancelled, cleared or marked, which goes slice by slice.

    What it was made from may be gone already.
    """
    if not wait.run.state.is_live:
        return True
    chosen, live = wait.run.clearing, wait.live
    return chosen is not None and live is not None and chosen.ends(live.position, live.map_index)


def _feeds(wait: TriggerInstance) -> bool:
    """Whether an event may end the task with a list that others expand over.

    The host writes that then, and has to know of the task what a worker would.
    """
    row, live = wait.row, wait.live
    if row.ordinal != RESUMES or row.window:
        return False
    return live is not None and live.spec.feeds_limit is not None


def _order(
    wait: TriggerInstance, kwargs: bytes, draft: Transaction, *, is_told: bool
) -> StartTrigger:
    """Return the order to host a trigger.

    Args:
        kwargs: Its fields.
        is_told: Whether its host is told of the task that waits.
    """
    row, run, live = wait.row, wait.run.row, wait.live
    return StartTrigger(
        trigger_no=row.trigger_no,
        hosting=wait.hosting,
        run_no=run.run_no,
        task_no=row.task_no,
        version=run.version,
        class_path=row.class_path,
        kwargs=kwargs,
        since=row.since + draft.at.shift,
        waits_since=draft.at.monotonic - (draft.steady - row.since),
        logical_date=run.logical_date,
        window=row.window,
        start=order(live, draft.steady, resumes=False) if live is not None and is_told else None,
        is_made_there=row.ordinal == FROM_START,
        newest="" if wait.version == run.version else wait.version,
        last=None if wait.stream is None else wait.stream.last,
        priority=0 if live is None else live.spec.priority,
        position=-1 if live is None else live.position,
        map_index=-1 if live is None else live.map_index,
        start_no=0 if live is None else live.start_no,
        try_number=1 if live is None else live.try_number,
        dag_id=run.dag_id,
    )


def role_of(class_path: str, plan: DagVersion, memory: Memory) -> str:
    """Return which host triggers of a class belong to, in a version of a DAG.

    A host imports that version and the newest one. So where either of them is isolated, the host
    is the DAG's own, and quarantine protects nothing more there.
    """
    spec = plan.graph.spec
    if spec.isolated or _is_isolated_now(plan, memory):
        return own_role(TRIGGERS, spec.dag_id)
    return QUARANTINE if memory.stalls.is_quarantined(class_path) else TRIGGERS


def _is_isolated_now(plan: DagVersion, memory: Memory) -> bool:
    version = newest_version(plan, memory)
    if version == plan.version:
        return False
    newest = memory.plans.get((version, plan.graph.spec.dag_id))
    return newest is not None and bool(newest.graph.spec.isolated)


def want_host(role: str, draft: Transaction) -> None:
    """Have a host started if it is the own one of a DAG; the shared ones start by themselves."""
    if is_own(role):
        draft.effects.append(StartHost(role))


def want_own_hosts(draft: Transaction) -> None:
    """Start the own hosts of DAGs whose triggers of tasks wait for them.

    After a restart no such host is up, and nothing else hands these triggers over.
    """
    memory = draft.memory
    if memory.is_drained:
        return
    roles: set[str] = set()
    kinds = {(form.plan, form.class_path) for form, _ in memory.parking.forms.numbered()}
    kinds |= {(wait.run.plan, wait.row.class_path) for wait in memory.waits.objects.values()}
    for plan, class_path in kinds:
        if class_path not in HOSTLESS and not is_stopped(plan.graph.spec.dag_id, memory):
            roles.add(role_of(class_path, plan, memory))
    for role in sorted(roles - memory.hosts_up):
        if may_host_all(memory) or any(may_host(n, memory) for n in _ordered(role, memory)):
            want_host(role, draft)


def is_stopped(dag_id: str, memory: Memory) -> bool:
    """Whether triggers of a DAG have no host, because it is paused and wants that."""
    row = memory.dags.get(dag_id)
    if row is None or not row.paused:
        return False
    plan = memory.plans.get((row.version, dag_id))
    return plan is not None and plan.graph.spec.if_paused == "stop"


def host_all(role: str, draft: Transaction) -> None:
    """A trigger host is ready: hand it what waits and is its own, by priority, oldest first.

    It takes several turns where they are many. What another host still has comes when that has
    let go of it.
    """
    _return(role, draft)
    hand_over(AssignTriggers(role, draft.memory.hosting, _ordered(role, draft.memory)), draft)


def host_rest(draft: Transaction) -> None:
    """Triggers were held back: hand to the hosts that are up what is theirs and no host has.

    The own hosts of DAGs that are not up are started.
    """
    memory = draft.memory
    for role in sorted(role for role in memory.hosts_up if kind_of(role) != ASYNC):
        numbers = array("q", (n for n in _ordered(role, memory) if may_host(n, memory)))
        hand_over(AssignTriggers(role, 0, numbers), draft)
    want_own_hosts(draft)


def hosted_before(memory: Memory) -> Iterator[TriggerNo]:
    """Yield the triggers that wait, and that the hosts of the last daemon may have had."""
    if memory.is_drained:
        return
    for wait in memory.waits.objects.values():
        is_hosted = wait.row.kwargs is not None and wait.row.class_path not in HOSTLESS
        is_waiting = wait.state is TriggerState.WAITING and wait.live is not None
        if is_hosted and is_waiting and not is_stopped(wait.run.row.dag_id, memory):
            yield wait.row.trigger_no
    forms = {
        number
        for form, number in memory.parking.forms.numbered()
        if form.class_path not in HOSTLESS and not is_stopped(form.plan.graph.spec.dag_id, memory)
    }
    yield from (number for number, form in memory.parking.by_form() if form in forms)


def _ordered(role: str, memory: Memory) -> array[int]:
    """Return the triggers that wait and belong to a host, in the order in which it is to have them.

    It may have some of them.
    """
    found: dict[int, array[int]] = {}
    for wait in memory.waits.objects.values():
        if wait.live is not None and _is_wanted(wait, role, memory):
            found.setdefault(wait.live.spec.priority, array("q")).append(wait.row.trigger_no)
    parking = memory.parking
    priorities = {
        number: _spec(form).priority
        for form, number in parking.forms.numbered()
        if role_of(form.class_path, form.plan, memory) == role and form.class_path not in HOSTLESS
    }
    alike = set(priorities.values())
    if len(alike) == 1 and len(priorities) == len(parking.forms.numbered()):
        # They are all this host's, and none before the others: nothing is read of them.
        found.setdefault(alike.pop(), array("q")).extend(parking.triggers.folded())
    else:
        for number, form_no in parking.by_form():
            if form_no in priorities:
                found.setdefault(priorities[form_no], array("q")).append(number)
    order = array("q")
    for priority in sorted(found, reverse=True):
        order.extend(sorted(found[priority]))
    return order


def _return(role: str, draft: Transaction) -> None:
    """Have a host let go of what was handed to it before it was ready and belongs elsewhere now."""
    memory = draft.memory
    for number, hosting in _strays(role, memory):
        if hosting:
            draft.effects.append(ReleaseTrigger(StopTrigger(number, hosting, REASSIGNED), role))


def hand_on(role: str, draft: Transaction) -> None:
    """A trigger host is gone: what it had and belongs elsewhere by now is hosted there.

    It was asked to leave, or its DAG is isolated by now, or is not any more.
    """
    memory = draft.memory
    found: dict[str, array[int]] = {}
    for number, _ in _strays(role, memory):
        wait = memory.parking.peek(number)
        if wait is not None:
            now = role_of(wait.row.class_path, wait.run.plan, memory)
            found.setdefault(now, array("q")).append(number)
    draft.effects.extend(AssignTriggers(now, memory.hosting, found[now]) for now in sorted(found))


def _strays(role: str, memory: Memory) -> Iterator[tuple[TriggerNo, int]]:
    """Yield what a host was given last and belongs to another one now, with its hosting."""
    for wait in list(memory.waits.objects.values()):
        if wait.role != role or wait.live is None or wait.state is not TriggerState.WAITING:
            continue
        if role_of(wait.row.class_path, wait.run.plan, memory) != role:
            yield wait.row.trigger_no, wait.hosting
    parking = memory.parking
    forms = {
        number
        for form, number in parking.forms.numbered()
        if form.role == role and role_of(form.class_path, form.plan, memory) != role
    }
    for one in parking.folded() if forms else ():
        if one.form in forms:
            yield one.trigger_no, parking.hosting(one)


def _takes(role: str, memory: Memory) -> bool:
    """Whether a host can be handed triggers; that of the quarantine comes up with the first."""
    return role in memory.hosts_up or role == QUARANTINE


def hand_over(entry: AssignTriggers, draft: Transaction) -> None:
    """Hand the next triggers to a host that takes them, or have the own host of a DAG started."""
    memory = draft.memory
    takes = _takes(entry.role, memory)
    if memory.is_drained or not (takes or is_own(entry.role)):
        return  # all follow when it is ready again
    upto = entry.at + HANDED_AT_ONCE
    forms: dict[int, _Handing] = {}
    for number in entry.numbers[entry.at : upto]:
        if not may_host(number, memory):
            continue
        one = memory.parking.look(number)
        if takes and one is not None and one.kwargs is not None:
            handing = forms.get(one.form)
            if handing is None:
                handing = forms[one.form] = _handing(one.form, entry.role, memory)
            if isinstance(handing, _Change):
                _hand_folded(one, entry, handing, draft)
            if handing != "needs task":
                continue
        wait = memory.waits.get(number)
        if wait is None or wait.hosting > entry.hosting:
            continue  # nobody waits any more, or it was handed over since
        if _is_wanted(wait, entry.role, memory):
            host(wait, draft)
    if upto < len(entry.numbers):
        draft.effects.append(msgspec.structs.replace(entry, at=upto))


class _Change(NamedTuple):
    """What becomes of the folded triggers of one form when they are handed to a host.

    Attributes:
        is_elsewhere: Those that have a host have another one, which lives.
    """

    was: TaskShape
    form: TaskShape
    newest: str
    priority: int
    is_elsewhere: bool


_Handing: TypeAlias = _Change | Literal["needs task", "not wanted"]


def _handing(number: int, role: str, memory: Memory) -> _Handing:
    """Say how triggers of a form are handed to a host, or why they are not as they are.

    Where more has to be said of them, or nothing at all, that takes their task.
    """
    was = memory.parking.forms[number]
    spec, path = _spec(was), was.class_path
    feeds = was.ordinal == RESUMES and spec.feeds_limit is not None
    if feeds or path in HOSTLESS or was.ordinal == FROM_START:
        return "needs task"
    if role_of(path, was.plan, memory) != role or is_stopped(was.plan.graph.spec.dag_id, memory):
        return "not wanted"
    version = newest_version(was.plan, memory)
    form = was._replace(role=role, has_room=True, version=version)
    newest = "" if version == was.plan.version else version
    is_elsewhere = was.role != role and _takes(was.role, memory)
    return _Change(was, form, newest, spec.priority, is_elsewhere)


def _hand_folded(
    one: PackedTask, entry: AssignTriggers, change: _Change, draft: Transaction
) -> None:
    """As ``host``, of a trigger that stays folded: unfolding a hundred thousand takes seconds."""
    memory, parking = draft.memory, draft.memory.parking
    hosting = parking.hosting(one)
    if hosting > entry.hosting or (hosting and change.is_elsewhere):
        return
    hosting = memory.next_hosting()
    draft.rehost_folded(one, change.was)
    parking.change(one, hosting=hosting, form=change.form)
    draft.effects.append(
        AssignTrigger(
            StartTrigger(
                trigger_no=one.trigger_no,
                hosting=hosting,
                run_no=one.run_no,
                task_no=one.task_no,
                version=change.form.plan.version,
                class_path=change.form.class_path,
                kwargs=one.kwargs or b"",
                since=one.since + draft.at.shift,
                waits_since=draft.at.monotonic - (draft.steady - one.since),
                logical_date=memory.runs.logical_date(one.run_no),
                newest=change.newest,
                priority=change.priority,
                position=change.form.position,
                map_index=one.map_index,
                start_no=one.start_no,
                try_number=one.try_number,
                dag_id=change.form.plan.graph.spec.dag_id,
            ),
            None,
            entry.role,
        )
    )


def _spec(form: TaskShape) -> TaskSpec:
    return form.plan.graph.spec.tasks[form.position]


def _is_wanted(wait: TriggerInstance, role: str, memory: Memory) -> bool:
    """Whether a host is to have a trigger that no other has."""
    is_elsewhere = wait.hosting and wait.role != role and _takes(wait.role, memory)
    if wait.state is not TriggerState.WAITING or wait.live is None or is_elsewhere:
        return False
    if _is_ending(wait) or is_stopped(wait.run.row.dag_id, memory):
        return False
    return role_of(wait.row.class_path, wait.run.plan, memory) == role


def newest_version(plan: DagVersion, memory: Memory) -> str:
    """Return the newest version of the DAG of a plan, or the plan's own.

    That is another one where the DAG is gone, or has moved to another file.
    """
    spec = plan.graph.spec
    row = memory.dags.get(spec.dag_id)
    if row is None or row.gone or row.file != spec.file:
        return plan.version
    return row.version


def unhost(wait: TriggerInstance) -> None:
    """Its host is gone; the next hosting counts its events anew."""
    wait.hosting = 0
    wait.has_room = True


def let_go(wait: TriggerInstance, reason: str, draft: Transaction) -> None:
    """End the hosting of a trigger that has no task, and keep its row until that is confirmed.

    The quarantine host may take an order before its ``HostUp`` is read, so that a trigger handed
    to it has to leave it, whether it is known to be up or not.
    """
    wait.live = None
    if not wait.hosting or wait.state is not TriggerState.WAITING:
        draft.drop_wait(wait)
        return
    draft.move_wait(wait, TriggerState.ENDING)
    draft.effects.append(
        ReleaseTrigger(StopTrigger(wait.row.trigger_no, wait.hosting, reason), wait.role)
    )
