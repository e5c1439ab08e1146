// Waiting tasks in one table, grouped by what they wait for, with counts, the longest wait first.

import type { ComponentChildren } from "preact";

import { meet } from "../actions";
import { query } from "../api";
import { Icon, type IconName } from "../components/icons";
import { type Column, Table } from "../components/table";
import { useIsPhone } from "../components/table_settings";
import { usePages } from "../data";
import { fire, fireName } from "../fire";
import { Empty, NoMatches, Shown, childName, childrenHref, dagHref, taskHref } from "../parts";
import { go } from "../router";
import { eventName } from "../schedule";
import { Glyph, named } from "../states";
import { count, sentenceCase, texts } from "../texts";
import { Took, When, millis, span } from "../time";
import type { Overview, Trigger, Wait as WaitOf } from "../types";
import { endOf } from "../wait_times";
import { whatOf, withoutKind } from "../waits";

const PAGE = 200;
/** Maximum number of rows of a kind beside other kinds. A click shows all of them. */
const MOST = 20;

/** A task that waits, or the children of a mapped task that wait for the same. */
interface Wait {
  key: string;
  kind: string;
  state: string;
  name: string;
  what: string;
  note: string;
  dag: string;
  run: string | null;
  href: string;
  since: string | null;
  end: { name: string; at: string } | null;
  count: number;
  usual: number | null;
  trigger: Trigger | null;
  /** A task that checks its condition itself, so that only its state can be set. */
  of: { run: string; task: string; map: number } | null;
  shared: number;
}

interface Group {
  kind: string;
  title: string;
  count: number;
  isMore: boolean;
  /** The address of the full list, if not all are listed here. */
  all: string | null;
}

type Row = Wait | Group;

const isGroup = (row: Row): row is Group => "title" in row;

interface Props {
  kind: string;
  state: string;
  dag: string;
  now: Overview | undefined;
  /** Whether all that is queued waits for pools, and nothing for a worker. */
  isForPools: boolean;
  toolbar: ComponentChildren;
}

export function WaitingList({ kind, state, dag, now, isForPools, toolbar }: Props) {
  const rows = usePages<Trigger>((cursor) => query("/triggers", { kind, state, dag, limit: PAGE, cursor }), (row) => row.trigger_id, PAGE, {
    on: (change) => change.triggers || change.runs.size > 0,
    gap: 1000,
  });
  const isFiltered = kind !== "" || state !== "" || dag !== "";
  return (
    <Shown of={rows}>
      {(data) => {
        const others = state === "" || state === "waiting" ? withoutTrigger(now, kind, dag) : [];
        const listed = grouped([...merged(data.map((row) => ofTrigger(row, now))), ...others], rows.isWhole, isFiltered ? undefined : now, kind);
        return (
          <Table
            name="waiting"
            class="tall"
            label={texts.table.listed(listed.filter((row) => !isGroup(row)).length, rows.isWhole, texts.triggers.listed)}
            columns={listed.some((row) => !isGroup(row) && row.usual !== null) ? COLUMNS : COLUMNS.filter((column) => column.id !== "usual")}
            items={listed}
            keyOf={(row) => (isGroup(row) ? `group ${row.kind}` : row.key)}
            hrefOf={(row) => (isGroup(row) ? null : row.href)}
            nameOf={(row) => (isGroup(row) ? row.title : row.name)}
            groupOf={(row) => isGroup(row) && <GroupHead group={isForPools && row.kind === QUEUED ? { ...row, title: texts.triggers.poolSlot } : row} />}
            onEnd={kind ? rows.more : undefined}
            toolbar={toolbar}
            empty={<Empty>{isFiltered ? <NoMatches href="/triggers" /> : texts.triggers.none}</Empty>}
          />
        );
      }}
    </Shown>
  );
}

function GroupHead({ group }: { group: Group }) {
  return (
    <>
      <b>{group.title}</b>
      <span class="tab-badge">
        {count(group.count)}
        {group.isMore && "+"}
      </span>
      {group.all && <a href={group.all}>{texts.common.showAll}</a>}
    </>
  );
}

function ofTrigger(row: Trigger, now: Overview | undefined): Wait {
  const text = row.text ?? row.detail;
  return {
    key: `${row.trigger_id} ${row.dag_id}`,
    kind: row.run_id === null ? DAGS : row.kind,
    state: "deferred",
    name: row.task_id === null ? row.dag_id : childName(row.task_id, row.map_index, row.round, row.map_label),
    what: row.label && row.fires_at ? row.label : `${row.label ? `${row.label}: ` : ""}${eventName(text) ?? withoutKind(text.replace(/^for /, ""))}`,
    note: row.state === "waiting" ? "" : named(row.state),
    dag: row.dag_id,
    run: row.run_id,
    href: row.run_id !== null && row.task_id !== null ? taskHref(row.run_id, row.task_id, row.map_index, row.round) : dagHref(row.dag_id),
    since: row.since,
    end: endOf({ kind: row.kind === "person" ? "decision" : "trigger", detail: "", until: row.deadline, fires_at: row.fires_at }),
    count: 1,
    usual: now?.waiting_longest.find((one) => one.state === "deferred" && one.run_id === row.run_id && one.task_id === row.task_id)?.usual_seconds ?? null,
    trigger: row,
    of: null,
    shared: row.shared_with ?? 0,
  };
}

/** Return the waits of tasks without a trigger: sensors that are polled, and queued tasks. */
function withoutTrigger(now: Overview | undefined, kind: string, dag: string): Wait[] {
  return (now?.waiting_longest ?? [])
    .filter((row) => row.state !== "deferred" && row.dag_id.includes(dag))
    .map((row) => ({
      key: `${row.run_id} ${row.task_id} ${row.state}`,
      kind: row.state === "sensing" ? CONDITION : row.state,
      state: row.state,
      name: row.count > 1 ? row.task_id : childName(row.task_id, row.map_index, row.round, row.map_label),
      what: whatOf(row.text),
      note: "",
      dag: row.dag_id,
      run: row.run_id,
      href: row.count > 1 ? childrenHref(row.run_id, row.task_id, row.state) : taskHref(row.run_id, row.task_id, row.map_index, row.round),
      since: row.since,
      end: row.waiting_on && endOf(row.waiting_on as WaitOf),
      count: row.count,
      usual: row.usual_seconds ?? null,
      trigger: null,
      of: row.state === "sensing" && row.count === 1 ? { run: row.run_id, task: row.task_id, map: row.map_index } : null,
      shared: 0,
    }))
    .filter((row) => kind === "" || row.kind === kind);
}

/** Merge the children of a mapped task that wait for the same into one row. */
function merged(rows: Wait[]): Wait[] {
  const found = new Map<string, Wait>();
  for (const row of rows) {
    const { trigger } = row;
    const key = trigger && trigger.run_id !== null && trigger.map_index >= 0 ? JSON.stringify([row.run, trigger.task_id, row.what, row.note]) : row.key;
    const before = found.get(key);
    if (!before) found.set(key, { ...row });
    else {
      before.count += 1;
      before.name = trigger!.task_id!;
      before.href = childrenHref(row.run!, before.name, "deferred");
      before.trigger = null;
      if ((millis(row.since) ?? 0) < (millis(before.since) ?? 0)) before.since = row.since;
    }
  }
  return [...found.values()];
}

const CONDITION = "condition";
const QUEUED = "queued";
/** The group of triggers that wait to start runs, and belong to no task. */
const DAGS = "dags";

/** Return rows below the heads of their kinds: people first, starters of runs last, else the most first. */
function grouped(waits: Wait[], isWhole: boolean, now: Overview | undefined, kind: string): Row[] {
  const kinds = new Map<string, Wait[]>();
  for (const wait of waits) kinds.set(wait.kind, [...(kinds.get(wait.kind) ?? []), wait]);
  const counted = { ...now?.deferred, [QUEUED]: now?.states[QUEUED] ?? 0 };
  for (const [name, some] of Object.entries(counted)) if (some > 0 && !kinds.has(name)) kinds.set(name, []);
  const groups = [...kinds].map(([name, rows]) => {
    const listed = rows.reduce((all, row) => all + row.count, 0);
    const known = now && countOf(now, name);
    return { name, rows: rows.sort((one, other) => (millis(one.since) ?? 0) - (millis(other.since) ?? 0)), count: Math.max(listed, known ?? 0), isMore: known === undefined && !isWhole };
  });
  const rank = (name: string): number => (name === "person" ? 0 : name === QUEUED ? 2 : name === DAGS ? 3 : 1);
  groups.sort((one, other) => rank(one.name) - rank(other.name) || other.count - one.count || one.name.localeCompare(other.name));
  return groups.flatMap(({ name, rows, count: all, isMore }): Row[] => {
    const shown = kind === "" ? rows.slice(0, MOST) : rows;
    const listed = shown.reduce((some, row) => some + row.count, 0);
    const isCut = kind === "" && (listed < all || isMore) && name !== DAGS && name !== QUEUED;
    return [{ kind: name, title: titleOf(name), count: all, isMore, all: name === QUEUED ? "/pools" : isCut ? `/triggers?kind=${encodeURIComponent(name)}` : null }, ...shown];
  });
}

function titleOf(kind: string): string {
  if (kind === DAGS) return texts.triggers.starters;
  return texts.triggers.groups[kind] ?? sentenceCase(texts.triggers.kindName(kind));
}

function countOf(now: Overview, kind: string): number | undefined {
  if (kind === QUEUED || kind === "retrying") return now.states[kind];
  if (kind === CONDITION) return (now.deferred[kind] ?? 0) + (now.states["sensing"] ?? 0);
  return now.deferred[kind];
}

const ICONS: Record<string, IconName> = { person: "user-check", time: "clock", sleep: "clock", condition: "eye", file: "file", object: "file", event: "zap", run: "play", http: "globe" };

/** The icon of what a task waits for, or of a queued task. */
function KindIcon(row: Wait) {
  const icon = ICONS[row.kind];
  if (icon === undefined) return <Glyph state={row.state} />;
  return (
    <span class="s-waiting wait-kind" title={titleOf(row.kind)}>
      <Icon name={icon} size={15} />
    </span>
  );
}

function Ends(row: Wait) {
  return (
    row.end && (
      <>
        <span class="soft">{row.end.name}</span> <When at={row.end.at} />
      </>
    )
  );
}

function Action({ trigger, name, since, of: sensing }: Wait) {
  const isPhone = useIsPhone();
  if (sensing) {
    return (
      <button type="button" data-needs="operator" class="small" aria-label={`${texts.actions.markMet}: ${name}`} onClick={() => meet(sensing)}>
        {texts.actions.markMet}
      </button>
    );
  }
  // On a phone, the action replaces the time so far.
  if (!trigger || trigger.run_id === null) return isPhone ? <Took from={since} to={null} isNamed /> : null;
  const isDecision = trigger.kind === "person";
  const verb = isDecision ? texts.actions.decide : fireName(trigger.kind);
  return (
    <button type="button" data-needs="operator" class="small" aria-label={`${verb} ${name}`} onClick={() => (isDecision ? go(`/decisions/${trigger.trigger_id}`) : void fire(trigger.trigger_id, name))}>
      {verb}
    </button>
  );
}

/** Return the run, after its DAG unless the name of the run begins with it. */
const placeOf = ({ run, dag }: Wait): string => (run === null ? dag : run.startsWith(dag) ? run : `${dag} / ${run}`);

const of = (cell: (wait: Wait) => ComponentChildren) => (row: Row) => !isGroup(row) && cell(row);

const COLUMNS: Column<Row>[] = [
  { id: "glyph", title: "", width: "20px", phone: "lead", isFixed: true, cell: of(KindIcon) },
  {
    id: "task",
    title: texts.task.name,
    width: "minmax(130px, 1fr)",
    phone: "title",
    isFixed: true,
    isMono: true,
    cell: of((row) => (
      <>
        {row.name}
        {row.count > 1 && <span class="tag">{texts.triggers.times(row.count)}</span>}
      </>
    )),
  },
  {
    id: "waiting",
    title: texts.triggers.reason,
    width: "minmax(180px, 1.9fr)",
    phone: "second",
    cell: of((row) => (
      <>
        <span title={row.what}>{sentenceCase(row.what)}</span>
        {row.note && <span class="soft"> {row.note}</span>}
        {row.shared > 0 && <span class="tag">{texts.triggers.shared(row.shared + 1)}</span>}
      </>
    )),
  },
  { id: "run", title: texts.triggers.run, width: "minmax(120px, 1.5fr)", isMono: true, isWideOnly: true, cell: of((row) => <span class="soft">{placeOf(row)}</span>) },
  {
    id: "since",
    title: texts.common.elapsed,
    width: "84px",
    isNumber: true,
    cell: of((row) => <Took from={row.since} to={null} />),
  },
  { id: "usual", title: texts.history.usual, meaning: texts.history.usualMeaning, width: "68px", isNumber: true, isWideOnly: true, cell: of((row) => <span class="soft">{row.usual !== null && span(row.usual * 1000, true)}</span>) },
  { id: "end", title: texts.triggers.ends, width: "150px", isNumber: true, phone: "second-end", cell: of(Ends) },
  { id: "fire", title: "", width: "112px", isFixed: true, isInteractive: true, phone: "end", cell: of((row) => <Action {...row} />) },
];
