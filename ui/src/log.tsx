// The log of a task, or of all tasks of a run.

import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";

import { CopyButton } from "./components/copy";
import { Icon } from "./components/icons";
import { Menu, type MenuItem } from "./components/menu";
import { SearchField } from "./components/search_field";
import { enc, query } from "./api";
import { never, useData } from "./data";
import { type Anchor, type Filter, LineWindow, type Loaded, type LogLine, NO_FILTER, type Printed, RunSource, type Source, TaskSource, isFiltered } from "./log/lines";
import { RowList } from "./log/list";
import { type Row, nameOf, rowsOf, seriousOf } from "./log/rows";
import { LineText, expressionOf } from "./log/text";
import { texts } from "./log/texts";
import { wrappedLines } from "./log/wrap";
import { texts as shared } from "./texts";
import { taskHref } from "./parts";
import { here, usePlace } from "./router";
import { HOUR_MS, instants, isUtc, local, millis, useZoneName } from "./time";
import { useTyped } from "./typed";
import type { Run } from "./types";

import "./styles/log.css";

const ROW = 20;
const BORDER = 34;
const TYPING_MS = 250;

interface View {
  wrap: boolean;
  /** Null until the user chooses: shown if there is room. */
  numbers: boolean | null;
  time: "none" | "clock" | "date" | "elapsed";
}

/** The width of a letter until it is measured. */
const CHARACTER_PX = 7.3;

/** What is shown before each line. */
interface MarksView extends View {
  numbers: boolean;
  hasMillis: boolean;
}

const KEY = "aioflow.log";
/** Below this width, in pixels, numbers and milliseconds would leave no room for the text. */
const NARROW = 560;
/** The height of a line with a link to its task, which has to be tall enough to click. */
const LINK_ROW = 24;
const PHONE = "(max-width: 720px)";

/** Return the stored view. The log of a task is narrow, so its lines wrap unless the user chose otherwise. */
function storedView(isOfRun: boolean): View {
  const usual: View = matchMedia(PHONE).matches ? { wrap: true, numbers: false, time: "none" } : { wrap: !isOfRun, numbers: null, time: "clock" };
  try {
    return { ...usual, ...(JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<View>) };
  } catch {
    return usual;
  }
}

interface LogProps extends Printed {
  isGoingOn: boolean;
  /** The first element in the row of controls. */
  lead?: ComponentChildren;
}

/** The log of a task, or of callbacks with the task "@run". */
export function Log({ run, task, map, round, tryNumber, isGoingOn, lead }: LogProps) {
  const source = useMemo(() => new TaskSource({ run, task, map, round, tryNumber }), [run, task, map, round, tryNumber]);
  return <Lines key={source.id} source={source} run={run} isGoingOn={isGoingOn} hasTries={tryNumber === undefined || tryNumber === null} lead={lead} />;
}

interface TaskLogProps {
  run: string;
  task: string;
  map: number;
  round: number;
  /** The number of tries. */
  tries: number;
  isGoingOn: boolean;
}

/** The log of a task, with a choice of its tries. The newest one is shown first. */
export function TaskLog({ tries, ...task }: TaskLogProps) {
  const place = usePlace();
  const asked = place.query.get("try");
  const [chosen, setChosen] = useState(asked ?? "");
  const wanted = chosen === "all" ? null : chosen !== "" ? Number(chosen) : tries > 1 ? tries : null;
  const choice = tries > 1 && (
    <select aria-label={texts.chooseTry} value={wanted === null ? "all" : String(wanted)} onChange={(event) => setChosen(event.currentTarget.value)}>
      <option value="all">{texts.allTries}</option>
      {Array.from({ length: tries }, (_, index) => tries - index).map((attempt) => (
        <option key={attempt} value={String(attempt)}>
          {attempt === tries ? texts.lastTry(attempt) : texts.attempt(attempt)}
        </option>
      ))}
    </select>
  );
  return (
    <section class="log-section">
      <Log key={String(wanted)} {...task} tryNumber={wanted} lead={choice} />
    </section>
  );
}

/** The log of all tasks of a run. */
export function RunLog({ run, tasks, isGoingOn }: { run: string; tasks: string[]; isGoingOn: boolean }) {
  const source = useMemo(() => new RunSource(run), [run]);
  return <Lines key={source.id} source={source} run={run} isGoingOn={isGoingOn} tasks={tasks} hasTries={false} />;
}

/** Return the line that the address names, as in `#L120`. */
function lineOfAddress(): number | null {
  const found = /^#L(\d{1,12})$/.exec(window.location.hash);
  return found ? Number(found[1]) : null;
}

interface LinesProps {
  source: Source;
  run: string;
  isGoingOn: boolean;
  hasTries: boolean;
  /** For the log of a run: its tasks, to choose from. */
  tasks?: string[];
  lead?: ComponentChildren;
}

function Lines({ source, run, isGoingOn, hasTries, tasks, lead }: LinesProps) {
  const isOfRun = tasks !== undefined;
  const [view, setView] = useState(() => storedView(isOfRun));
  const [search, setSearch] = useState("");
  const [options, setOptions] = useState({ regex: false, case: false, isOnly: false });
  const [level, setLevel] = useState("");
  const [ofTasks, setOfTasks] = useState<string[]>([]);
  const [marked, setMarked] = useState<number | null>(lineOfAddress);
  const [anchor, setAnchor] = useState<Anchor>(() => {
    const line = lineOfAddress();
    return line !== null && !isOfRun ? { at: "line", line } : { at: isOfRun && !isGoingOn ? "begin" : "end" };
  });
  const [follows, setFollows] = useState(anchor.at === "end");
  const [loaded, setLoaded] = useState<Loaded | null>(null);
  const [open, setOpen] = useState<ReadonlySet<number>>(new Set());
  const [hit, setHit] = useState<{ line: LogLine | null; isWrapped: boolean; isBusy: boolean } | null>(null);
  const [wanted, setWanted] = useState<{ key: string; wish: number } | undefined>();
  const [isFull, setFull] = useState(false);
  const [pointed, setPointed] = useState<string | null>(null);
  const hasOpened = useRef(false);
  const zone = useZoneName();
  const [typed, setTyped] = useTyped(search, TYPING_MS);
  const lines = useRef<LineWindow | undefined>(undefined);
  const finding = useRef<AbortController | undefined>(undefined);

  const looked: Filter = useMemo(() => ({ search: typed, regex: options.regex, case: options.case, level: "", tasks: [] }), [typed, options.regex, options.case]);
  const isOnly = options.isOnly || isOfRun;
  const filter: Filter = useMemo(
    () => ({ ...(isOnly ? looked : NO_FILTER), level, tasks: ofTasks }),
    [isOnly, isOnly && looked, level, ofTasks],
  );
  const expression = useMemo(() => expressionOf(looked), [looked]);

  useEffect(() => {
    setLoaded(null);
    const loading = new LineWindow(source, anchor, filter, setLoaded);
    lines.current = loading;
    return () => loading.end();
  }, [source, anchor, filter]);
  useEffect(() => setHit(null), [looked]);
  useEffect(() => {
    const escaped = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || !isFull) return;
      event.stopPropagation();
      setFull(false);
    };
    document.addEventListener("keydown", escaped, true);
    return () => document.removeEventListener("keydown", escaped, true);
  }, [isFull]);

  const all = loaded?.lines ?? [];
  const rows = useMemo(() => rowsOf(all, open, isOfRun ? "run" : hasTries && !isFiltered(filter) ? "task" : "none"), [all, open, hasTries, filter, isOfRun]);
  const serious = useSerious(source, loaded, rows, filter, isGoingOn);
  const needsDag = useMemo(() => all.some((line) => line.text.includes('/code/')), [all]);
  const dag = useData<Run>(needsDag ? query(`/runs/${enc(run)}`, { limit: 1 }) : null, { on: never }).data?.dag_id;
  const begun = millis(all[0]?.at);

  function change(fields: Partial<View>): void {
    const next = { ...view, ...fields };
    setView(next);
    localStorage.setItem(KEY, JSON.stringify(next));
  }
  function show(line: LogLine): void {
    const own = rows.find((row) => (row.kind === "line" ? row.line.key === line.key : row.kind === "fold" && row.lines.some((one) => one.key === line.key)));
    setFollows(false);
    if (own?.kind === "fold" && !own.isOpen) setOpen(new Set([...open, own.lines[0]!.key]));
    if (!own && typeof line.line === "number") setAnchor({ at: "line", line: line.line });
    setWanted({ key: String(line.key), wish: Date.now() });
  }
  async function find(way: 1 | -1): Promise<void> {
    if (!source.find || search === "") return;
    setTyped(search);
    finding.current?.abort();
    const control = new AbortController();
    finding.current = control;
    setHit((before) => ({ line: before?.line ?? null, isWrapped: false, isBusy: true }));
    try {
      const ask = { ...looked, search, level };
      const from = search === typed ? (hit?.line ?? undefined) : undefined;
      let found = await source.find(from, way, ask, control.signal);
      const isWrapped = !found && from !== undefined;
      if (isWrapped) found = await source.find(undefined, way, ask, control.signal);
      setHit({ line: found, isWrapped: isWrapped && found !== null, isBusy: false });
      if (found) show(found);
    } catch (error) {
      if (!control.signal.aborted) setHit({ line: null, isWrapped: false, isBusy: false });
    }
  }
  /** Bring the error or warning after the last one shown into view. */
  function jump(level: "error" | "warning"): void {
    const found = serious[level];
    const row = found[(found.findIndex((one) => one.key === pointed) + 1) % found.length];
    if (row) point(row, level);
  }
  function point(row: Row, level: "error" | "warning"): void {
    const line = row.kind === "fold" ? row.lines[0]! : row.kind === "line" ? row.line : undefined;
    setFollows(false);
    setPointed(row.key);
    if (rows.some((one) => one.key === row.key)) {
      if (row.kind === "fold" && !isOfRun) setOpen(new Set([...open, row.lines[0]!.key]));
    } else if (typeof line?.line === "number" && !isOfRun) {
      if (row.kind === "fold") setOpen(new Set([...open, line.key]));
      setAnchor({ at: "line", line: line.line });
    } else setLevel(level);
    setWanted({ key: row.key, wish: Date.now() });
  }
  function inContext(line: LogLine): void {
    setOptions({ ...options, isOnly: false });
    setLevel("");
    setMarked(line.line ?? null);
    setFollows(false);
    setAnchor({ at: "line", line: line.line ?? 1 });
    setWanted({ key: String(line.key), wish: Date.now() });
  }
  function link(line: number): void {
    setMarked(line);
    history.replaceState(history.state, "", `${here().href}#L${line}`);
  }
  function toEnd(): void {
    setWanted(undefined);
    setFollows(true);
    if (loaded?.hasAfter) setAnchor({ at: "end" });
  }
  // The line of the address is brought into view once it is loaded.
  useEffect(() => {
    if (marked === null || wanted !== undefined) return;
    const line = all.find((one) => one.line === marked);
    if (line) show(line);
  }, [all]);

  // The log of an ended task or run opens at its first error.
  const firstError = serious.error[0];
  useEffect(() => {
    hasOpened.current ||= isGoingOn;
    if (hasOpened.current || loaded === null || !firstError) return;
    hasOpened.current = true;
    const isLoaded = rows.some((one) => one.key === firstError.key);
    if (marked === null && !isFiltered(filter) && (isLoaded || !isOfRun)) point(firstError, "error");
  }, [loaded, firstError?.key]);

  const number = Math.max(3, String(all.at(-1)?.line ?? all.length).length);
  const [width, setWidth] = useState(0);
  const isNarrow = width > 0 && width < NARROW;
  const taskColumn = useMemo(() => (isOfRun ? taskWidth(all, CHARACTER_PX) : 0), [isOfRun, all]);
  const marks: MarksView = { ...view, numbers: view.numbers ?? !isNarrow, hasMillis: !isNarrow };
  const [heightOf, probe] = useHeights(marks, taskColumn, number, width);

  const menu: (MenuItem | "line")[] = [
    { name: texts.wrap, isOn: view.wrap, act: () => change({ wrap: !view.wrap }) },
    { name: texts.numbers, isOn: marks.numbers, act: () => change({ numbers: !marks.numbers }) },
    "line",
    ...(isOfRun ? [] : [...Object.entries(texts.levels).map(([key, name]) => ({ name, isOn: level === key, act: () => setLevel(key) })), "line" as const]),
    ...(["none", "clock", "date", "elapsed"] as const).map((time) => ({ name: texts.time[time]!, isOn: view.time === time, act: () => change({ time }) })),
  ];
  const shown = rows.length;
  const word = hitText(hit, filter, looked, all.length, loaded);
  return (
    <div class={`log ${isFull ? "full" : ""}`} data-wrap={view.wrap ? "" : undefined} style={isOfRun ? { "--log-task": `${taskColumn}px` } : undefined}>
      <div class={`log-head ${search === "" ? "" : "has-search"} ${isOfRun ? "" : "is-of-task"} ${lead ? "has-lead" : ""}`}>
        {lead}
        <SearchField class="log-search" label={texts.search} value={search} onValue={setSearch} onEnter={isOfRun ? undefined : (way) => void find(way)}>
          <Toggle name={texts.case} isOn={options.case} onChange={(isOn) => setOptions({ ...options, case: isOn })}>
            Aa
          </Toggle>
          <Toggle name={texts.regex} isOn={options.regex} onChange={(isOn) => setOptions({ ...options, regex: isOn })}>
            .*
          </Toggle>
        </SearchField>
        {!isOfRun && (
          <span class="log-steps">
            <button type="button" class="plain icon-only" aria-label={texts.previous} title={texts.previous} disabled={search === ""} onClick={() => void find(-1)}>
              <Icon name="chevron-up" size={16} />
            </button>
            <button type="button" class="plain icon-only" aria-label={texts.next} title={texts.next} disabled={search === ""} onClick={() => void find(1)}>
              <Icon name="chevron-down" size={16} />
            </button>
            <Toggle name={texts.onlyMatches} isOn={options.isOnly} isDisabled={search === ""} onChange={(isOn) => setOptions({ ...options, isOnly: isOn })}>
              <Icon name="filter" size={14} />
            </Toggle>
          </span>
        )}
        {(isOfRun || level !== "") && (
          <select aria-label={texts.level} value={level} onChange={(event) => setLevel(event.currentTarget.value)}>
            {Object.entries(texts.levels).map(([key, name]) => (
              <option key={key} value={key}>
                {name}
              </option>
            ))}
          </select>
        )}
        {tasks && tasks.length > 1 && (
          <select aria-label={texts.tasks} value={ofTasks[0] ?? ""} onChange={(event) => setOfTasks(event.currentTarget.value === "" ? [] : [event.currentTarget.value])}>
            <option value="">{texts.allTasks}</option>
            {tasks.map((task) => (
              <option key={task} value={task}>
                {task}
              </option>
            ))}
          </select>
        )}
        {(["error", "warning"] as const).map((one) => {
          const found = serious[one];
          return (
            found.length > 0 && (
              <button key={one} type="button" class="log-jump small" data-level={one} title={texts.jump[one]} onClick={() => jump(one)}>
                {texts.serious[one](found.length, serious.isPart)}
              </button>
            )
          );
        })}
        <span class="log-count soft" role="status">
          {word}
          {loaded?.isLive && (
            <>
              {" "}
              <b class="live">{texts.live}</b>
            </>
          )}
        </span>
        {(view.time === "clock" || view.time === "date") && <small class="log-zone soft">{shared.shell.times(zone)}</small>}
        <span class="log-tools">
          {(isGoingOn || loaded?.isLive) && (
            <label class="check" title={texts.toEnd}>
              <input type="checkbox" checked={follows} onChange={(event) => (event.currentTarget.checked ? toEnd() : setFollows(false))} />
              <span>{texts.follow}</span>
            </label>
          )}
          <Menu label={texts.view} icon="settings" isBare items={menu} />
          <CopyButton label={texts.copy} text={() => all.map((line) => line.text).join("\n")} />
          <a class="button plain icon-only" href={source.download()} download aria-label={texts.download} title={texts.download}>
            <Icon name="download" size={14} />
          </a>
          <button type="button" class="plain icon-only" aria-pressed={isFull} aria-label={isFull ? texts.narrow : texts.full} title={isFull ? texts.narrow : texts.full} onClick={() => setFull(!isFull)}>
            <Icon name={isFull ? "minimize-2" : "maximize-2"} size={14} />
          </button>
        </span>
      </div>
      {loaded?.problem && <p class="wrong">{loaded.problem.message}</p>}
      <span ref={probe} class="log-probe" aria-hidden="true">
        {"x".repeat(100)}
      </span>
      {loaded === null ? (
        <p class="loading soft">…</p>
      ) : shown === 0 && !loaded.problem ? (
        <p class="empty">{isFiltered(filter) ? texts.noMatch : isGoingOn ? texts.waiting : texts.nothing}</p>
      ) : (
        <RowList<Row>
          class={`lines digits-${Math.min(number, 9)}`}
          rows={rows}
          heightOf={heightOf}
          label={texts.label}
          follow={follows}
          onFollow={(isAtEnd) => setFollows(isAtEnd && !loaded.hasAfter)}
          onBefore={() => lines.current?.older()}
          onAfter={() => lines.current?.newer()}
          onWidth={setWidth}
          at={wanted}
          row={(row) => {
            if (row.kind === "try") {
              return (
                <div class="log-border">
                  {isOfRun && <span class="cut">{nameOf(row.first)}</span>}
                  <b>{texts.attempt(row.attempt)}</b>
                  {isOfRun && !isFiltered(filter) && (
                    <time class="soft" dateTime={row.first.at ?? ""} title={instants(row.first.at)}>
                      {row.first.at === null ? "" : local(row.first.at).slice(11)}
                    </time>
                  )}
                  {row.isCleared && <span class="soft">{texts.cleared}</span>}
                </div>
              );
            }
            if (row.kind === "fold") {
              const key = row.lines[0]!.key;
              return (
                <div class={`log-line fold ${row.key === pointed ? "hit" : ""}`} data-level="error">
                  <Marks view={marks} line={row.isOpen ? { ...row.lines[0]!, line: null } : row.lines[0]!} begun={begun} run={run} isOfRun={isOfRun} onLink={link} />
                  <button
                    type="button"
                    aria-expanded={row.isOpen}
                    title={row.isOpen ? texts.fold : texts.unfold}
                    onClick={() => {
                      const next = new Set(open);
                      if (!next.delete(key)) next.add(key);
                      setOpen(next);
                      setFollows(false);
                    }}
                  >
                    <Icon name={row.isOpen ? "chevron-down" : "chevron-right"} size={14} />
                    <code>{row.text}</code> <small>{texts.traceback(row.lines.length)}</small>
                  </button>
                </div>
              );
            }
            const { line } = row;
            const isMarked = marked !== null && line.line === marked;
            const isHit = hit?.line?.key === line.key || row.key === pointed;
            return (
              <div class={`log-line ${isMarked ? "marked" : ""} ${isHit ? "hit" : ""}`} data-level={line.level ?? undefined} data-stream={line.stream === "stderr" ? "stderr" : undefined}>
                <Marks view={marks} line={line} begun={begun} run={run} isOfRun={isOfRun} onLink={link} />
                <code>
                  <LineText text={line.text} style={row.style} dag={dag} expression={expression} />
                  {line.is_cut && (
                    <span class="soft" title={texts.cut}>
                      {" "}
                      …
                    </span>
                  )}
                </code>
                {!isOfRun && isFiltered(filter) && (
                  <button type="button" class="plain icon-only in-context" aria-label={texts.inContext} title={texts.inContext} onClick={() => inContext(line)}>
                    <Icon name="flag" size={13} />
                  </button>
                )}
              </div>
            );
          }}
        />
      )}
      {loaded && (loaded.hasBefore || loaded.hasAfter || !follows) && shown > 0 && (
        <div class="log-ends">
          {loaded.hasBefore && (
            <button type="button" class="small" onClick={() => [setFollows(false), setAnchor({ at: "begin" })]}>
              <Icon name="arrow-up" size={12} /> {texts.toBegin}
            </button>
          )}
          {(loaded.hasAfter || !follows) && (
            <button type="button" class="small" onClick={toEnd}>
              <Icon name="arrow-down" size={12} /> {texts.toEnd}
            </button>
          )}
        </div>
      )}
    </div>
  );
}

interface Serious {
  error: Row[];
  warning: Row[];
  /** Whether there may be more errors and warnings. */
  isPart: boolean;
}

/** Return the errors and warnings of a log; for a log that is too long to load, those of its first page by level. */
function useSerious(source: Source, loaded: Loaded | null, rows: readonly Row[], filter: Filter, isGoingOn: boolean): Serious {
  const [found, setFound] = useState<Serious | null>(null);
  const isPart = loaded !== null && (loaded.hasBefore || loaded.hasAfter);
  const isAsked = isPart && !isGoingOn && !isFiltered(filter);
  useEffect(() => {
    if (!isAsked || found !== null) return undefined;
    const control = new AbortController();
    source
      .first({ at: "begin" }, { ...NO_FILTER, level: "warning" }, control.signal)
      .then((page) => setFound({ ...seriousOf(rowsOf(page.lines, new Set(), "none")), isPart: page.after !== null }))
      // The counts are optional: the list of lines shows the problem.
      .catch(() => control.signal.aborted || setFound({ error: [], warning: [], isPart: false }));
    return () => control.abort();
  }, [source, isAsked]);
  const own = useMemo(() => seriousOf(rows), [rows]);
  return isPart && found !== null ? found : { ...own, isPart };
}

function hitText(hit: { line: LogLine | null; isWrapped: boolean; isBusy: boolean } | null, filter: Filter, looked: Filter, count: number, loaded: Loaded | null): string {
  if (hit?.isBusy) return texts.searching;
  const isOnly = filter.search !== "";
  if (hit?.isWrapped && !isOnly) return texts.wrapped;
  if (hit && !isOnly) return hit.line === null ? texts.noMatch : typeof hit.line.line === "number" ? texts.atLine(hit.line.line) : texts.found;
  if (loaded === null) return "";
  if (looked.search !== "" && isOnly) return texts.matches(count, !loaded.hasBefore && !loaded.hasAfter);
  const last = loaded.lines.at(-1)?.line;
  return typeof last === "number" && !loaded.hasAfter ? texts.lines(last) : texts.lines(count, loaded.hasBefore || loaded.hasAfter);
}

function Toggle({ name, isOn, isDisabled, onChange, children }: { name: string; isOn: boolean; isDisabled?: boolean; onChange: (isOn: boolean) => void; children: ComponentChildren }) {
  return (
    <button type="button" class="plain icon-only toggle" aria-pressed={isOn} aria-label={name} title={name} disabled={isDisabled} onClick={() => onChange(!isOn)}>
      {children}
    </button>
  );
}

interface MarksProps {
  view: MarksView;
  line: LogLine;
  begun: number | null;
  run: string;
  isOfRun: boolean;
  onLink: (line: number) => void;
}

/** A link to a line on its number or, if there is no room for numbers, on its time. */
function LineLink({ line, onLink, text }: { line: number; onLink: (line: number) => void; text?: string }) {
  return (
    <a
      href={`${here().href}#L${line}`}
      tabIndex={-1}
      aria-label={text === undefined ? texts.lineLink(line) : `${text}, ${texts.lineLink(line)}`}
      onClick={(event) => {
        event.preventDefault();
        event.stopPropagation();
        onLink(line);
      }}
    >
      {text ?? line}
    </a>
  );
}

/** The number, time and task before the text of a line. */
function Marks({ view, line, begun, run, isOfRun, onLink }: MarksProps) {
  const number = line.line;
  return (
    <>
      {view.numbers && <span class="log-number">{typeof number === "number" && <LineLink line={number} onLink={onLink} />}</span>}
      <span class="log-level" title={line.level === null ? undefined : texts.levelNames[line.level]}>
        {line.level === null ? "" : (texts.marks[line.level] ?? "")}
      </span>
      {view.time !== "none" && (
        <time class="log-time" dateTime={line.at ?? ""} title={instants(line.at)}>
          {typeof number === "number" && !view.numbers ? (
            <LineLink line={number} onLink={onLink} text={timeText(line.at, view.time, begun, view.hasMillis)} />
          ) : (
            timeText(line.at, view.time, begun, view.hasMillis)
          )}
        </time>
      )}
      {isOfRun && line.task_id !== undefined && (
        <span class="log-task">
          {line.task_id === "@run" ? (
            <span title={line.task_id}>{line.task_id}</span>
          ) : (
            <a href={taskHref(run, line.task_id, line.map_index, line.round)} title={(line.try_number ?? 1) > 1 ? `${nameOf(line)}, ${texts.attempt(line.try_number!)}` : nameOf(line)}>
              {nameOf(line)}
            </a>
          )}
        </span>
      )}
    </>
  );
}

/** The characters of milliseconds: a point and three digits. */
const MILLIS = 4;

function timeText(at: string | null, how: View["time"], begun: number | null, hasMillis: boolean): string {
  const text = preciseText(at, how, begun);
  return hasMillis ? text : text.replace(/\.\d{3}(Z?)$/, "$1");
}

function preciseText(at: string | null, how: View["time"], begun: number | null): string {
  const found = millis(at);
  if (found === null) return "";
  if (how === "elapsed") {
    const gone = Math.max(0, found - (begun ?? found));
    const hours = Math.floor(gone / HOUR_MS);
    const rest = new Date(gone % HOUR_MS).toISOString().slice(14, 23);
    return `+${hours > 0 ? `${hours}:` : ""}${rest}`;
  }
  const text = `${local(at)}.${String(found % 1000).padStart(3, "0")}`;
  return how === "date" ? `${text}${isUtc() ? "Z" : ""}` : text.slice(11);
}

const TIME_CHARS: Record<View["time"], number> = { none: 0, clock: 12, date: 24, elapsed: 12 };
/** The mark of the level, the paddings of the line and its border. */
const AROUND_PX = 31;
/** The padding after the number and the time. */
const AFTER_PX = 12;
/** The share of a character by which widths may be rounded. */
const ROUNDED = 0.02;
/** The icon before the last line of a traceback, and its gap. */
const FOLD_PX = 18;
/** Bounds of the column of tasks, which is as wide as the names need, and the gap after it. */
const TASK_PX = { least: 56, most: 164, gap: 12 };
const TASK_PHONE_PX = 96;

/** The width of the column of tasks, in pixels. */
export function taskWidth(lines: readonly LogLine[], character: number): number {
  const longest = lines.reduce((most, line) => Math.max(most, line.task_id === undefined ? 0 : nameOf(line).length), 0);
  return Math.min(TASK_PX.most, Math.max(TASK_PX.least, Math.ceil(longest * character)));
}

/** The height of each row: with wrapped lines, that of as many lines as its text fills. */
function useHeights(view: MarksView, taskColumn: number, number: number, width: number): [(row: Row) => number, preact.RefObject<HTMLSpanElement | null>] {
  const isOfRun = taskColumn > 0;
  const probe = useRef<HTMLSpanElement>(null);
  const [character, setCharacter] = useState(CHARACTER_PX);
  useEffect(() => {
    const measure = () => probe.current && setCharacter(probe.current.getBoundingClientRect().width / 100 || CHARACTER_PX);
    measure();
    void document.fonts?.ready.then(measure);
  }, []);
  const before = (view.numbers ? number * character + AFTER_PX : 0) + (view.time === "none" ? 0 : (TIME_CHARS[view.time] - (view.hasMillis ? 0 : MILLIS)) * character + AFTER_PX) + (isOfRun ? (matchMedia(PHONE).matches ? TASK_PHONE_PX : taskColumn + TASK_PX.gap) : 0);
  const columnsBehind = (pixels: number): number => Math.max(12, Math.floor((width - before - AROUND_PX - pixels) / character - ROUNDED));
  const [columns, foldColumns] = [columnsBehind(0), columnsBehind(FOLD_PX)];
  const isWrapped = view.wrap && width > 0;
  const heightOf = useCallback(
    (row: Row): number => {
      if (row.kind === "try") return BORDER;
      const height = isOfRun ? LINK_ROW : ROW;
      if (row.kind === "fold") return isWrapped ? 6 + height * wrappedLines(row.text, foldColumns) : 26;
      return isWrapped ? height * wrappedLines(row.text, columns) : height;
    },
    [isWrapped, columns, foldColumns, isOfRun],
  );
  return [heightOf, probe];
}
