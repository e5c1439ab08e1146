// Shared parts of views.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { type Problem, query } from "./api";
import { type Data, never, useItems } from "./data";
import { Menu, type MenuItem } from "./components/menu";
import { Skeleton } from "./components/skeleton";
import { useIsPhone } from "./components/table_settings";
import { reason } from "./messages";
import { here, usePlace } from "./router";
import { statesOf } from "./states";
import { texts } from "./texts";
import type { Dag, RunSummary, TaskError } from "./types";

interface PanelProps {
  title?: ComponentChildren;
  actions?: ComponentChildren;
  children: ComponentChildren;
  class?: string;
}

export function Panel({ title, actions, children, class: name = "" }: PanelProps) {
  return (
    <section class={`panel ${name}`}>
      {(title || actions) && (
        <header>
          <h2>{title}</h2>
          {actions && <div class="actions">{actions}</div>}
        </header>
      )}
      {children}
    </section>
  );
}

interface HeadProps {
  title: ComponentChildren;
  /** The title as text, for the window's title. */
  name: string;
  /** What the view is about, as a text, or what one came for, in a sentence with links. */
  sentence?: ComponentChildren;
  tabs?: ComponentChildren;
  /** The parent view; by default the list that the address begins with. */
  up?: { name: string; href: string };
  /** Whether the view takes the whole width of a wide window. */
  isWide?: boolean;
  /** Actions, the main one first. */
  children?: ComponentChildren;
}

/** The head of a view: its place, tabs and actions in one bar, with a sentence below. */
export function Head({ title, name, sentence, tabs, up: of, isWide = false, children }: HeadProps) {
  const { parts } = usePlace();
  const list = parts.length > 1 ? PLACE_NAMES[parts[0]!] : undefined;
  const up = of ?? (list && { name: list, href: `/${parts[0]}` });
  useEffect(() => {
    document.title = `${name} · ${texts.product}`;
  }, [name]);
  return (
    <>
      <header class={`page-head ${tabs ? "has-tabs" : ""} ${isWide ? "is-wide" : ""}`}>
        <nav class="crumbs" aria-label={texts.shell.breadcrumb}>
          {up && (
            <>
              <a href={up.href}>{up.name}</a>
              <span class="soft" aria-hidden="true">
                /
              </span>
            </>
          )}
          <h1 tabIndex={-1} title={name}>
            {title}
          </h1>
        </nav>
        {tabs}
        {children && <div class="actions">{children}</div>}
      </header>
      {sentence && <p class={typeof sentence === "string" ? "sentence about" : "sentence"}>{sentence}</p>}
    </>
  );
}

interface HeadActionsProps {
  /** The everyday actions, the main one first. */
  actions: (MenuItem & { isMain?: boolean; /** The name on a phone. */ short?: string })[];
  /** Rare actions, in the menu after the others. Those that cannot be undone are last. */
  more?: (MenuItem | "line")[];
}

/** The actions of a head with tabs, as buttons. On a phone, all but the main one are in the menu. */
export function HeadActions({ actions, more = [] }: HeadActionsProps) {
  const isPhone = useIsPhone();
  const shown = isPhone ? actions.filter((one) => one.isMain) : actions;
  const listed = isPhone ? [...actions.filter((one) => !one.isMain), ...more] : more;
  return (
    <>
      {shown.map((one) => (
        <button key={one.name} type="button" data-needs={one.needs} class={one.isMain ? "main" : one.isGrave ? "grave" : ""} title={one.meaning} aria-label={isPhone && one.short ? one.name : undefined} aria-pressed={one.isPressed} onClick={one.act}>
          {(isPhone && one.short) || one.name}
        </button>
      ))}
      {listed.length > 0 && <Menu label={texts.common.moreActions} icon="ellipsis" isBare items={listed} needs="operator" />}
    </>
  );
}

const PLACE_NAMES: Record<string, string> = { runs: texts.places.runs, dags: texts.places.dags };

/** Who or what started a run. A person is named if known. */
export function StartedBy({ run: { cause, started_by: by } }: { run: Pick<RunSummary, "cause" | "started_by"> }) {
  const name = texts.runs.causes[cause] ?? cause;
  const isPerson = cause === "manual" && !!by;
  return (
    <span class="cut" title={by ? texts.runs.startedByName(name, by) : undefined}>
      {isPerson ? by : name}
    </span>
  );
}

/** One of several facts in a row. Its name and value stay together. */
export function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <div class="empty">{children}</div>;
}

/** A message that a filter matches nothing, with a link to the unfiltered list. */
export function NoMatches({ href }: { href: string }) {
  return (
    <>
      {texts.common.noMatches} <a href={href}>{texts.common.clearFilters}</a>
    </>
  );
}

/** What went wrong, and what can be done about it. */
export function Trouble({ problem, again }: { problem: Problem; again?: () => void }) {
  if (problem.status === 403) return <Forbidden problem={problem} />;
  const advice = problem.isAbsent ? texts.trouble.absent : problem.status === 0 || problem.status === 503 ? texts.trouble.away : texts.trouble.log;
  return (
    <div class="trouble" role="alert">
      <p>
        <strong class="break">{reason(problem)}</strong>
      </p>
      <p class="soft">{advice}</p>
      {problem.code && <Code code={problem.code} />}
      {again && (
        <button type="button" onClick={again}>
          {texts.common.retry}
        </button>
      )}
    </div>
  );
}

/** The code of a problem, by which users can look it up. */
export function Code({ code }: { code: string }) {
  return (
    <details>
      <summary class="soft">{texts.trouble.details}</summary>
      <code>{code}</code>
    </details>
  );
}

/** One sentence without a button to retry, which would not help. */
function Forbidden({ problem }: { problem: Problem }) {
  const [, wanted, own] = /role (\w+); this is (\w+)/.exec(problem.message) ?? [];
  return <p class="empty">{wanted && own ? texts.trouble.role(wanted, own) : reason(problem)}</p>;
}

interface ShownProps<T> {
  of: Data<T>;
  children: (data: T) => ComponentChildren;
  /** Shown instead of a list without rows. */
  none?: ComponentChildren;
  /** Whether to show nothing if the daemon does not have the data. */
  optional?: boolean;
}

/** Whether the banner shows the problem: an unreachable daemon, or a takeover, concerns every view. */
function isInBanner(problem: Problem): boolean {
  return problem.status === 0 || problem.code === "node.no_active";
}

/** The data once it is loaded, or the problem. */
export function Shown<T>({ of, children, none, optional }: ShownProps<T>) {
  if (of.data !== undefined) {
    return (
      <>
        {of.problem && !isInBanner(of.problem) && <p class="stale">{of.problem.isAbsent ? texts.trouble.deleted : `${reason(of.problem)} ${texts.trouble.older}`}</p>}
        {none !== undefined && Array.isArray(of.data) && of.data.length === 0 ? none : children(of.data)}
      </>
    );
  }
  if (of.problem) return optional && of.problem.isAbsent ? null : <Trouble problem={of.problem} again={of.reload} />;
  return <Skeleton />;
}

/** Return the first digits of a version, enough to tell versions apart. */
export const shortVersion = (version: string): string => version.slice(0, 12);

/** Any JSON, as text. */
export function Json({ value }: { value: unknown }) {
  if (value && typeof value === "object" && "size_bytes" in value && Object.keys(value).length === 1) {
    return <span class="soft">{bytes(Number(value.size_bytes))}, not shown</span>;
  }
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return (
    <pre class="json" tabIndex={0}>
      {text}
    </pre>
  );
}

export function bytes(count: number | null | undefined): string {
  if (count === null || count === undefined) return "–";
  for (const [size, unit] of [
    [1 << 30, "GiB"],
    [1 << 20, "MiB"],
    [1 << 10, "KiB"],
  ] as const) {
    if (count >= size) return `${(count / size).toFixed(1)} ${unit}`;
  }
  return `${count} B`;
}

export function number(value: number | null | undefined, digits = 0): string {
  if (value === null || value === undefined) return "–";
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

export function taskHref(run: string, task: string, map = -1, round = 0): string {
  const { parts } = here();
  // Stay in the current view if it already shows the run.
  const view = parts[0] === "runs" && parts[1] === run && parts[2] ? `/${parts[2]}` : "";
  const fields = new URLSearchParams({ task });
  if (map >= 0) fields.set("map", String(map));
  if (round > 0) fields.set("round", String(round));
  return `${runHref(run)}${view}?${fields}`;
}

/** Return an error in one line: its type, and the first line of its message. */
export const errorLine = ({ type, message }: TaskError): string => `${type}: ${message.trim().split("\n", 1)[0]}`;

export const runHref = (run: string): string => `/runs/${encodeURIComponent(run)}`;
/** Return the address of the table of a mapped task's children, or of those in one state. */
export const childrenHref = (run: string, task: string, state?: string): string => tasksHref(run, state, task);
/** Return the address of the list of a run's tasks, or of those in one state (the page's name of it). */
export const tasksHref = (run: string, state?: string, of?: string): string => {
  const fields = (state ? statesOf(state) : []).map((one) => `state=${one}`);
  return query(`${runHref(run)}/tasks`, { of }) + (fields.length > 0 ? `${of ? "&" : "?"}${fields.join("&")}` : "");
};
export const dagHref = (dag: string): string => `/dags/${encodeURIComponent(dag)}`;

/** The name of a task instance: `load[2] east`, or `poll round 3`. */
export function childName(task: string, map: number, round: number, label?: string | null): string {
  const child = map >= 0 ? `[${map}]${label ? ` ${label}` : ""}` : "";
  return `${task}${child}${round > 0 ? ` round ${round}` : ""}`;
}

interface FilterProps {
  name: string;
  label: string;
  onValue: (value: string) => void;
  /** Suggestions to choose from. */
  options?: string[];
  onTyped?: (text: string) => void;
}

/** A text field whose value goes into the address once typing rests. */
export function Filter({ name, label, onValue, options, onTyped }: FilterProps) {
  const place = usePlace();
  const [value, setValue] = useState(place.query.get(name) ?? "");
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  return (
    <>
      <input
        type="search"
        data-search
        placeholder={label}
        aria-label={label}
        list={options && `for-${name}`}
        value={value}
        onInput={(event) => {
          const given = event.currentTarget.value;
          setValue(given);
          onTyped?.(given);
          clearTimeout(timer.current);
          timer.current = setTimeout(() => onValue(given), 150);
        }}
      />
      {options && (
        <datalist id={`for-${name}`}>
          {options.map((option) => (
            <option key={option} value={option} />
          ))}
        </datalist>
      )}
    </>
  );
}

/** Return the ids of DAGs that contain the typed text. */
export function useDagIds(typed: string): string[] {
  const found = useItems<Dag>(query("/dags", { search: typed, limit: 20 }), { on: never });
  return found.data?.flatMap((dag) => (dag.dag_id === null ? [] : [dag.dag_id])) ?? [];
}

/** A filter by the id of a DAG. */
export function DagFilter({ onValue }: { onValue: (dag: string) => void }) {
  const [text, setText] = useState("");
  return <Filter name="dag" label={texts.dags.find} options={useDagIds(text)} onTyped={setText} onValue={onValue} />;
}

export function Choice(props: { label: string; value: string; options: [string, string][]; onValue: (value: string) => void }) {
  return (
    <select aria-label={props.label} value={props.value} onChange={(event) => props.onValue(event.currentTarget.value)}>
      {props.options.map(([value, name]) => (
        <option key={value} value={value}>
          {name}
        </option>
      ))}
    </select>
  );
}
