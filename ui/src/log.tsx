// What a task printed, as it prints it. Nothing of it is interpreted.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { Problem, enc, getResponse, query } from "./api";
import { onChange } from "./live";
import { VirtualList } from "./list";
import { bytes } from "./parts";

const PIECE = 256 * 1024;
const KEPT = 4 * 1024 * 1024;
const LOOK_MS = 1000;
// Colours and cursor moves of a terminal, and what else is no text.
const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-_])/g;
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

export function plain(text: string): string {
  return text.replace(ESCAPES, "").replace(CONTROLS, "\u00b7");
}

interface Shown {
  text: string;
  from: number;
  end: number;
  isLive: boolean;
  problem?: Problem;
}

interface Props {
  run: string;
  task: string;
  map?: number;
  round?: number;
  tryNumber?: number | null;
  isGoingOn: boolean;
}

function useLog({ run, task, map = -1, round = 0, tryNumber, isGoingOn }: Props, start: number | null): Shown | null {
  const [shown, setShown] = useState<Shown | null>(null);
  const goesOn = useRef(isGoingOn);
  goesOn.current = isGoingOn;
  useEffect(() => {
    const control = new AbortController();
    const decoder = new TextDecoder();
    let at = start ?? 0;
    let from = at;
    let text = "";
    let isBusy = false;
    const path = (offset: number, limit: number) =>
      query(`/runs/${enc(run)}/tasks/${enc(task)}/logs`, {
        map: map >= 0 ? map : null,
        round: round > 0 ? round : null,
        try: tryNumber,
        offset,
        limit,
      });

    async function isBeyond(offset: number): Promise<boolean> {
      const answer = await getResponse(path(offset, 1), control.signal);
      return (await answer.arrayBuffer()).byteLength > 0;
    }

    /** Of a very long log the end is what one wants to see: look for it, byte by byte. */
    async function begin(): Promise<void> {
      if (start !== null || !(await isBeyond(KEPT))) return;
      let [least, most] = [KEPT, KEPT * 2];
      while (await isBeyond(most)) [least, most] = [most, most * 2];
      while (most - least > PIECE) {
        const middle = Math.floor((least + most) / 2);
        if (await isBeyond(middle)) least = middle;
        else most = middle;
      }
      at = least - PIECE;
      from = at;
    }

    async function look(): Promise<void> {
      if (isBusy || control.signal.aborted) return;
      isBusy = true;
      try {
        for (;;) {
          const answer = await getResponse(path(at, PIECE), control.signal);
          const body = new Uint8Array(await answer.arrayBuffer());
          at += body.length;
          text += decoder.decode(body, { stream: true });
          if (text.length > KEPT) {
            from += text.length - KEPT;
            text = text.slice(-KEPT);
          }
          const isLive = answer.headers.get("x-log-live") === "1" || (answer.headers.get("x-log-live") === null && goesOn.current);
          setShown({ text, from, end: at, isLive });
          if (body.length < PIECE) break;
        }
      } catch (error) {
        if (control.signal.aborted) return;
        const problem = error instanceof Problem ? error : new Problem(0, "page.defect", String(error));
        setShown({ text, from, end: at, isLive: false, problem });
      } finally {
        isBusy = false;
      }
    }

    void begin().then(look, look);
    const stop = onChange((change) => {
      if (change.all || change.runs.has(run)) void look();
    });
    const timer = setInterval(() => goesOn.current && !document.hidden && void look(), LOOK_MS);
    return () => {
      stop();
      clearInterval(timer);
      control.abort();
    };
  }, [run, task, map, round, tryNumber, start]);
  return shown;
}

export function Log(props: Props) {
  const [start, setStart] = useState<number | null>(null);
  const [follows, setFollows] = useState(true);
  const [search, setSearch] = useState("");
  const shown = useLog(props, start);
  const lines = useMemo(() => {
    if (!shown || shown.text === "") return [];
    const all = plain(shown.text).replace(/\n$/, "").split("\n");
    const wanted = search.toLowerCase();
    return wanted === "" ? all : all.filter((line) => line.toLowerCase().includes(wanted));
  }, [shown?.text, search]);
  if (!shown) return <p class="loading soft">Loading …</p>;
  return (
    <div class="log">
      <div class="log-head">
        <input type="search" placeholder="Lines that contain" aria-label="Lines that contain" onInput={(event) => setSearch(event.currentTarget.value)} />
        <label class="check">
          <input type="checkbox" checked={follows} onChange={(event) => setFollows(event.currentTarget.checked)} />
          <span>follow</span>
        </label>
        <span class="soft">
          {bytes(shown.end)}
          {shown.isLive ? ", live" : ""}
        </span>
        {shown.from > 0 && (
          <button type="button" class="plain" onClick={() => setStart(0)}>
            from its beginning
          </button>
        )}
      </div>
      {shown.problem && !shown.problem.isAbsent && <p class="wrong">{shown.problem.message}</p>}
      {lines.length === 0 ? (
        <p class="empty">{search ? "No line contains that." : props.isGoingOn ? "Nothing printed yet." : "It printed nothing."}</p>
      ) : (
        <VirtualList
          class="lines"
          items={lines}
          height={18}
          label="Log"
          follow={follows && search === ""}
          keyOf={(_, index) => index}
          row={(line, index) => (
            <code>
              <span class="soft" aria-hidden="true">
                {index + 1}
              </span>
              {line}
            </code>
          )}
        />
      )}
    </div>
  );
}
