// What a task printed, as it prints it.

import { useEffect, useMemo, useState } from "preact/hooks";

import { many } from "./actions";
import { useData } from "./data";
import { type Printed, logPath, useLog } from "./follow";
import { VirtualList } from "./list";
import { bytes } from "./parts";

const ROW = 18;
const TYPING_MS = 250;

export function Log(props: Printed) {
  const [start, setStart] = useState<number | null>(null);
  const [follows, setFollows] = useState(true);
  const [search, setSearch] = useState("");
  const [wanted, setWanted] = useState<number>();
  const log = useLog(props, start);
  const all = useMemo(() => log?.lines.all ?? [], [log]);
  // Which of them contain it; without a search no list as long as the log is made.
  const hits = useMemo(() => (search === "" ? null : indexesOf(all, search.toLowerCase())), [all, search]);
  const count = (hits ?? all).length;
  if (!log) return <p class="loading soft">Loading …</p>;
  function jump(index: number | undefined): void {
    setSearch("");
    setFollows(index === undefined);
    setWanted(index);
  }
  function show(offset: number): void {
    setStart(offset);
    jump(0);
  }
  // The number of the first line of a part is unknown.
  const numbered = log.from === 0;
  return (
    <div class="log">
      <div class="log-head">
        <input type="search" placeholder="Lines that contain" aria-label="Lines that contain" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
        <label class="check" title="Keep the newest line in view">
          <input type="checkbox" checked={follows} onChange={(event) => (event.currentTarget.checked ? jump(undefined) : setFollows(false))} />
          <span>follow</span>
        </label>
        {!follows && !log.isCut && (
          <button type="button" class="small" onClick={() => jump(undefined)}>
            To the end ↓
          </button>
        )}
        <span class="soft">
          {hits ? `${count.toLocaleString("en")} of them` : `${count.toLocaleString("en")} lines, ${bytes(log.end - log.from)}`}
          {log.isLive && (
            <>
              {" "}
              <b class="live">live</b>
            </>
          )}
        </span>
        <a class="soft" href={`/api/v1${logPath(props, "", { download: true, offset: log.from })}`} download="task.log">
          as a file
        </a>
      </div>
      {log.from > 0 && (
        <p class="soft note">
          {bytes(log.from)} of it come before what is shown.{" "}
          <button type="button" class="small" onClick={() => show(0)}>
            Show it from its beginning
          </button>
        </p>
      )}
      {log.isCut && (
        <p class="soft note">
          More follows.{" "}
          <button
            type="button"
            class="small"
            onClick={() => {
              setStart(null);
              jump(undefined);
            }}
          >
            Show its end
          </button>
        </p>
      )}
      {log.from > 0 && search !== "" && <Before printed={props} upto={log.from} search={search} show={show} />}
      {log.lines.first > 0 && (
        <p class="soft note">
          Of what was read the first {log.lines.first.toLocaleString("en")} lines are no longer here.{" "}
          <button type="button" class="small" onClick={() => show(0)}>
            Show it from its beginning
          </button>
        </p>
      )}
      {log.problem && !log.problem.isAbsent && <p class="wrong">{log.problem.message}</p>}
      {count === 0 ? (
        <p class="empty">{search ? "No line contains that." : props.isGoingOn ? "Nothing printed yet. What it prints appears here at once." : "It printed nothing."}</p>
      ) : (
        <VirtualList<string | number>
          class="lines"
          items={hits ?? all}
          height={ROW}
          label="Log"
          first={hits ? 0 : log.lines.first}
          follow={follows && hits === null}
          onFollow={hits ? undefined : setFollows}
          at={hits ? undefined : wanted}
          keyOf={(_, index) => (hits?.[index] ?? index) + log.lines.first}
          row={(_, index) => {
            const at = hits?.[index] ?? index;
            return (
              <code>
                {numbered && (
                  <span class="soft" aria-hidden="true">
                    {at + log.lines.first + 1}
                  </span>
                )}
                {hits ? (
                  <button type="button" class="found" title="Show it among the others" onClick={() => jump(at)}>
                    <Marked text={all[at] ?? ""} search={search} />
                  </button>
                ) : (
                  all[at]
                )}
              </code>
            );
          }}
        />
      )}
    </div>
  );
}

function indexesOf(lines: readonly string[], wanted: string): number[] {
  const found: number[] = [];
  for (const [index, line] of lines.entries()) if (line.toLowerCase().includes(wanted)) found.push(index);
  return found;
}

/** A text with what was looked for in it. */
function Marked({ text, search }: { text: string; search: string }) {
  const [low, wanted] = [text.toLowerCase(), search.toLowerCase()];
  // Some letters have another length in lower case: then nothing is marked.
  if (low.length !== text.length) return <>{text}</>;
  const parts = [];
  let from = 0;
  for (let at = low.indexOf(wanted); at !== -1; at = low.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), <mark key={at}>{text.slice(at, at + wanted.length)}</mark>);
    from = at + wanted.length;
  }
  return (
    <>
      {parts}
      {text.slice(from)}
    </>
  );
}

interface Found {
  lines: { offset: number; text: string }[];
  next_offset: number | null;
}

/** Lines of what is not shown, found by the daemon. */
function Before({ printed, upto, search, show }: { printed: Printed; upto: number; search: string; show: (offset: number) => void }) {
  const [wanted, setWanted] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setWanted(search), TYPING_MS);
    return () => clearTimeout(timer);
  }, [search]);
  const answer = useData<Found>(wanted === "" ? null : logPath(printed, "", { format: "lines", search: wanted, limit: 200 }), { on: () => false });
  const lines = (answer.data?.lines ?? []).filter((line) => line.offset < upto);
  if (answer.problem) return <p class="wrong">{answer.problem.message}</p>;
  if (lines.length === 0) return null;
  return (
    <details class="note">
      <summary>
        In what comes before: {many(lines.length, "line")}
        {answer.data?.next_offset ? ", or more" : ""}
      </summary>
      <ol class="before" tabIndex={0} aria-label="Lines of what comes before">
        {lines.map((line) => (
          <li key={line.offset}>
            <button type="button" class="found cut" title="Show the log from here" onClick={() => show(line.offset)}>
              <Marked text={line.text.slice(0, 400)} search={search} />
            </button>
          </li>
        ))}
      </ol>
    </details>
  );
}

interface TaskLogProps {
  run: string;
  task: string;
  map: number;
  round: number;
  /** How many tries there are. */
  tries: number;
  isGoingOn: boolean;
}

/** The log of a task, with a choice of its tries. */
export function TaskLog({ run, task, map, round, tries, isGoingOn }: TaskLogProps) {
  const [wanted, setWanted] = useState("");
  return (
    <section class="log-section">
      <h3>
        <span class="offscreen">Log</span>
        {tries > 1 && (
          <select aria-label="Log of which try" value={wanted} onChange={(event) => setWanted(event.currentTarget.value)}>
            <option value="">all tries</option>
            {Array.from({ length: tries }, (_, index) => (
              <option key={index} value={String(index + 1)}>
                try {index + 1}
              </option>
            ))}
          </select>
        )}
      </h3>
      <Log key={`${task} ${map} ${round} ${wanted}`} run={run} task={task} map={map} round={round} tryNumber={wanted === "" ? null : Number(wanted)} isGoingOn={isGoingOn} />
    </section>
  );
}
