// The command palette: pages, DAGs, runs, tasks and actions, found by typing.

import "./styles/palette.css";

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { backfill, cancel, clear, deleteRun, emit, mark, pause, retry, trigger } from "./actions";
import { enc, query } from "./api";
import { Icon, type IconName } from "./components/icons";
import { never, useData, useItems } from "./data";
import { PLACES, placeIcon } from "./keys";
import { type Found, matching, verbOf } from "./palette/match";
import { recentPlaces } from "./palette/recent";
import { dagHref, runHref, taskHref } from "./parts";
import { go, here } from "./router";
import { Glyph, isLive, runState, worst } from "./states";
import { texts } from "./texts";
import { useTyped } from "./typed";
import type { Dag, DagDetail, Run, RunGraph, RunSummary } from "./types";

const SHOWN = 20;
const TYPED_MS = 100;

interface Item extends Found {
  icon?: IconName;
  state?: string;
  /** The target of the item; an action has none. */
  href?: string;
  act?: () => void;
  needs?: "operator" | "admin";
}

interface Group {
  title: string;
  items: Item[];
}

interface PaletteProps {
  role: string | undefined;
  help: () => void;
  close: () => void;
}

export function Palette({ role, help, close }: PaletteProps) {
  const box = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const [asked] = useTyped(text.trim(), TYPED_MS);
  const { groups, isLoading } = useGroups(asked, role, help);
  const items = groups.flatMap((group) => group.items);
  const isPending = asked !== text.trim() || isLoading;
  const [isAwaited, setAwaited] = useState(false);
  const chosen = Math.min(at, Math.max(0, items.length - 1));

  useEffect(() => box.current?.showModal(), []);
  useEffect(() => box.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }), [chosen, items.length]);
  // The user may press Enter before the response to the typed text arrives.
  useEffect(() => {
    if (isAwaited && !isPending) choose(items[chosen]);
  }, [isAwaited, isPending]);

  function choose(item: Item | undefined, isApart = false): void {
    setAwaited(false);
    if (!item) return;
    // Close the palette first, so that the focus is restored when an action opens its dialog.
    box.current?.close();
    if (item.href === undefined) item.act?.();
    else if (isApart) window.open(item.href, "_blank", "noopener");
    else go(item.href);
  }

  function pressed(event: KeyboardEvent): void {
    const last = items.length - 1;
    const next = { ArrowDown: chosen === last ? 0 : chosen + 1, ArrowUp: chosen === 0 ? last : chosen - 1, PageDown: Math.min(last, chosen + 8), PageUp: Math.max(0, chosen - 8) }[event.key];
    if (event.key === "Enter" && !event.isComposing) {
      if (isPending) setAwaited(true);
      else choose(items[chosen], event.ctrlKey || event.metaKey);
    } else if (next !== undefined) setAt(Math.max(0, next));
    else return;
    event.preventDefault();
  }

  return (
    <dialog ref={box} class="palette" onClose={close} onClick={(event) => event.target === event.currentTarget && event.currentTarget.close()} aria-label={texts.palette.label}>
      <div class="palette-field">
        <Icon name="search" />
        <input
          type="text"
          role="combobox"
          aria-expanded="true"
          aria-controls="palette-list"
          aria-autocomplete="list"
          aria-activedescendant={items.length ? `palette-${chosen}` : undefined}
          aria-label={texts.palette.hint}
          placeholder={texts.palette.hint}
          autocomplete="off"
          spellcheck={false}
          autofocus
          value={text}
          onKeyDown={pressed}
          onInput={(event) => {
            setText(event.currentTarget.value);
            setAt(0);
            setAwaited(false);
          }}
        />
      </div>
      <Options groups={groups} chosen={chosen} choose={choose} />
      <p class="palette-count soft" role="status">
        {items.length === 0 && !isPending ? texts.common.noMatches : texts.palette.keys}
      </p>
    </dialog>
  );
}

function Options({ groups, chosen, choose }: { groups: Group[]; chosen: number; choose: (item: Item, isApart: boolean) => void }) {
  let index = -1;
  return (
    <div id="palette-list" class="palette-list" role="listbox" aria-label={texts.palette.label} tabIndex={-1}>
      {groups.map((group) => (
        <div key={group.title} role="group" aria-label={group.title}>
          <div class="palette-title" aria-hidden="true">
            {group.title}
          </div>
          {group.items.map((item) => {
            index += 1;
            return (
              <div key={item.key} id={`palette-${index}`} class="palette-option" role="option" aria-selected={index === chosen} onClick={(event) => choose(item, event.ctrlKey || event.metaKey)}>
                {item.state ? <Glyph state={item.state} /> : <Icon name={item.icon ?? "chevron-right"} size={15} />}
                <span class="cut">{item.name}</span>
                {item.detail && <span class="palette-detail cut">{item.detail}</span>}
              </div>
            );
          })}
        </div>
      ))}
    </div>
  );
}

function useGroups(text: string, role: string | undefined, help: () => void): { groups: Group[]; isLoading: boolean } {
  const { parts, query: fields } = useMemo(here, []);
  const openRun = parts[0] === "runs" ? parts[1] : undefined;
  const task = openRun === undefined ? null : fields.get("task");
  const { verb, rest } = verbOf(text);
  const wanted = verb ? rest : text;
  const run = useData<Run>(openRun === undefined ? null : query(`/runs/${enc(openRun)}`, { limit: 1 }), { on: never });
  const graph = useData<RunGraph>(openRun === undefined ? null : `/runs/${enc(openRun)}/graph`, { on: never });
  const openDag = parts[0] === "dags" ? parts[1] : run.data?.dag_id;
  const dag = useData<DagDetail>(openDag === undefined ? null : `/dags/${enc(openDag)}`, { on: never });
  const dags = useItems<Dag>(wanted ? query("/dags", { search: wanted, limit: SHOWN }) : null, { on: never });
  const runs = useItems<RunSummary>(text && !verb ? query("/runs", { search: text, limit: SHOWN }) : null, { on: never });

  const found = (dags.data ?? []).filter((one) => one.dag_id !== null);
  const groups: Group[] = [
    { title: texts.palette.actions, items: [...(openRun === undefined ? [] : actionsOfRun(openRun, run.data, task, fields)), ...(dag.data ? actionsOfDag(openDag!, dag.data.paused) : [])] },
    // For a DAG that is not open, an action is offered once the name of the action is typed.
    { title: texts.palette.actionsOfDags, items: verb ? found.filter((one) => one.dag_id !== openDag).flatMap((one) => actionsOfDag(one.dag_id!, one.paused).filter((item) => item.key.startsWith(verb))) : [] },
    { title: texts.palette.recent, items: text ? [] : recentPlaces().filter((href) => href !== window.location.pathname).map(recentItem) },
    { title: texts.places.dags, items: verb ? [] : found.map((one) => ({ key: `dag ${one.dag_id}`, name: one.dag_id!, href: dagHref(one.dag_id!), icon: "workflow", detail: one.paused ? texts.states["paused"]! : "" })) },
    { title: texts.places.runs, items: (runs.data ?? []).map((one) => ({ key: `run ${one.run_id}`, name: one.run_id, detail: one.dag_id, href: runHref(one.run_id), state: runState(one), isFound: true })) },
    { title: texts.palette.tasks, items: openRun === undefined || !text ? [] : (graph.data?.tasks ?? []).map((one) => ({ key: `task ${one.task_id}`, name: one.task_id, href: taskHref(openRun, one.task_id), state: worst(one.counts) })) },
    { title: texts.palette.pages, items: PLACES.map(([letter, name, href]) => ({ key: `page ${href}`, name, href, icon: placeIcon(href), detail: `g ${letter}`, needs: href === "/access" || href === "/audit" ? "admin" : undefined })) },
    { title: texts.palette.others, items: text ? others(help) : [] },
  ];
  return {
    groups: matching(groups.map((group) => ({ ...group, items: group.items.filter((item) => isAllowed(item, role)) })), text),
    isLoading: dags.isLoading || runs.isLoading || run.isLoading || graph.isLoading || dag.isLoading,
  };
}

function isAllowed({ needs }: Item, role: string | undefined): boolean {
  return needs === undefined || role === undefined || role === "admin" || role === needs;
}

function actionsOfRun(run: string, data: Run | undefined, task: string | null, fields: URLSearchParams): Item[] {
  const which = { run, task: task ?? undefined, map: Number(fields.get("map") ?? -1), round: Number(fields.get("round") ?? 0) };
  const items: Item[] = [];
  if (task !== null) {
    items.push({ key: "clear task", name: texts.palette.clearTask(task), words: texts.palette.retry, icon: "rotate-ccw", act: () => void clear(which), needs: "operator" });
    items.push({ key: "mark task", name: texts.palette.markTask(task), icon: "flag", act: () => mark(which), needs: "operator" });
  }
  if (data === undefined) return items;
  const live = isLive(data.state);
  if (live) items.push({ key: "cancel run", name: texts.palette.cancelRun, detail: run, icon: "ban", act: () => cancel(run), needs: "operator" });
  if (data.state === "failed" || data.state === "partial") items.push({ key: "retry run", name: texts.palette.retryRun, words: texts.palette.clear, detail: run, icon: "rotate-ccw", act: () => void retry({ run }, true), needs: "operator" });
  items.push({ key: "clear run", name: texts.palette.clearRun, words: texts.palette.retry, detail: run, icon: "rotate-ccw", act: () => void clear({ run }), needs: "operator" });
  items.push({ key: "mark run", name: texts.palette.markRun, detail: run, icon: "flag", act: () => mark({ run }), needs: "operator" });
  if (!live) items.push({ key: "delete run", name: texts.palette.deleteRun, detail: run, icon: "trash-2", act: () => deleteRun(run), needs: "admin" });
  return items;
}

/** Return the actions on a DAG. The key of each begins with its verb. */
function actionsOfDag(dag: string, isPaused: boolean): Item[] {
  return [
    { key: `trigger ${dag}`, name: texts.palette.trigger(dag), icon: "play", act: () => void trigger(dag), needs: "operator" },
    isPaused
      ? { key: `resume ${dag}`, name: texts.palette.resume(dag), icon: "play", act: () => void pause(dag, false), needs: "operator" }
      : { key: `pause ${dag}`, name: texts.palette.pause(dag), icon: "pause", act: () => void pause(dag, true), needs: "operator" },
    { key: `backfill ${dag}`, name: texts.palette.backfill(dag), icon: "history", act: () => backfill(dag), needs: "operator" },
  ];
}

function recentItem(href: string): Item {
  const [, kind, id = ""] = href.split("/");
  return { key: `recent ${href}`, name: decodeURIComponent(id), detail: kind === "runs" ? texts.palette.run : texts.run.dag, href, icon: kind === "runs" ? "play" : "workflow" };
}

const others = (help: () => void): Item[] => [
  { key: "emit", name: texts.events.emit, icon: "zap", act: emit, needs: "operator" },
  { key: "backfill", name: texts.backfills.add, icon: "history", act: () => backfill(null), needs: "operator" },
  { key: "help", name: texts.shell.shortcuts, icon: "keyboard", detail: "?", act: help },
];
