// The page: a rail of places, and the view of the address.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { onSignedOut, query } from "./api";
import { useData, useItems } from "./data";
import { Dialogs } from "./dialog";
import { PLACES, listenToKeys } from "./keys";
import { Banner } from "./banner";
import { type Mode, currentMode, onMode, start } from "./live";
import { Empty, Head, dagHref, runHref } from "./parts";
import { followLinks, go, usePlace } from "./router";
import "./style.css";
import { applyTheme, isDark, setTheme } from "./theme";
import type { Dag, Me, Overview } from "./types";
import { Access } from "./views/access";
import { DagPage } from "./views/dag";
import { Dags } from "./views/dags";
import { Events } from "./views/events";
import { Home } from "./views/home";
import { Audit, Errors, Nodes } from "./views/house";
import { Login } from "./views/login";
import { Pools } from "./views/pools";
import { RunPage } from "./views/run";
import { Runs } from "./views/runs";
import { Backfills, Schedules } from "./views/schedules";
import { Settings } from "./views/settings";
import { Triggers } from "./views/triggers";

const ICONS: Record<string, string> = {
  "/": "M2 8.2 8 3l6 5.2M4 7v6.4h8V7",
  "/dags": "M2 4h4v3H2zM10 2h4v3h-4zM10 11h4v3h-4zM6 5.5h2V3.5h2M8 5.5v7h2",
  "/runs": "M4 2.6 13 8l-9 5.4z",
  "/triggers": "M4 2h8M4 14h8M5 2c0 4 6 8 6 12M11 2c0 4-6 8-6 12",
  "/events": "M9 1.6 3.4 9H8l-1 5.4L12.6 7H8z",
  "/pools": "M2 4h12v8H2zM6 4v8M10 4v8",
  "/schedules": "M8 2.4a5.6 5.6 0 1 1 0 11.2A5.6 5.6 0 0 1 8 2.4zM8 5v3.2l2.4 1.4",
  "/backfills": "M8 3 3 8l5 5M13 3 8 8l5 5",
  "/nodes": "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.1M5 11h.1",
  "/access": "M6 2.4a2.6 2.6 0 1 1 0 5.2 2.6 2.6 0 0 1 0-5.2zM1.6 13.6c0-3 2-4.6 4.4-4.6s4.4 1.6 4.4 4.6M11 5.5h3.6M12.8 3.7v3.6",
  "/audit": "M4 2h6l3 3v9H4zM6 8h5M6 11h5",
  "/errors": "M8 2 14.6 13.6H1.4zM8 6.4v3.4M8 11.6v.2",
  "/settings": "M2 4.5h7M12 4.5h2M2 11.5h2M7 11.5h7M9.5 3v3M5.5 10v3",
};

const FIRST = new Set(["/", "/dags", "/runs", "/triggers"]);
const OF_ADMINS = new Set(["/access", "/audit"]);

function Icon({ of }: { of: string }) {
  return (
    <svg width="16" height="16" viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linejoin="round" stroke-linecap="round" aria-hidden="true">
      <path d={ICONS[of]} />
    </svg>
  );
}

function Page() {
  const [isOut, setOut] = useState(false);
  useEffect(() => onSignedOut(() => setOut(true)), []);
  const me = useData<Me>("/me", { on: () => false });
  useEffect(() => {
    if (!me.isLoading && !isOut) start();
  }, [me.isLoading, isOut]);
  if (isOut) return <Login wasIn={me.data !== undefined} />;
  if (me.isLoading) return <p class="loading soft">Loading …</p>;
  return <Known me={me.data} />;
}

function Known({ me }: { me: Me | undefined }) {
  const place = usePlace();
  const [help, setHelp] = useState(false);
  const [search, setSearch] = useState(false);
  const [isFolded, setFolded] = useState(localStorage.getItem("aioflow.folded") === "1");
  const overview = useData<Overview>("/overview", { gap: 5000, every: 15_000 });
  const main = useRef<HTMLElement>(null);
  const key = place.parts.slice(0, 3).join("/");
  useEffect(() => listenToKeys({ search: () => setSearch(true), help: () => setHelp(true) }), []);
  useEffect(() => main.current?.scrollTo(0, 0), [key]);
  function fold(): void {
    localStorage.setItem("aioflow.folded", isFolded ? "0" : "1");
    setFolded(!isFolded);
  }
  return (
    <div data-role={me?.role} class={`shell ${isFolded ? "folded" : ""} ${place.query.has("task") ? "with-drawer" : ""}`}>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        To the content
      </a>
      <Rail at={place.parts[0] ?? ""} me={me} broken={overview.data?.import_errors ?? 0} fold={fold} isFolded={isFolded} help={() => setHelp(true)} search={() => setSearch(true)} />
      <main ref={main} id="main" tabIndex={-1}>
        <Banner overview={overview.data} />
        <Routed parts={place.parts} me={me} />
      </main>
      <Dialogs />
      {help && <Help close={() => setHelp(false)} />}
      {search && <Search close={() => setSearch(false)} />}
    </div>
  );
}

function Routed({ parts, me }: { parts: string[]; me: Me | undefined }) {
  const [first = "", id, view = ""] = parts;
  switch (first) {
    case "":
      return <Home />;
    case "dags":
      return id === undefined ? <Dags /> : <DagPage key={id} id={id} view={view} />;
    case "runs":
      return id === undefined ? <Runs /> : <RunPage key={id} id={id} view={view} />;
    case "triggers":
      return <Triggers />;
    case "events":
      return <Events />;
    case "pools":
      return <Pools />;
    case "schedules":
      return <Schedules />;
    case "backfills":
      return <Backfills />;
    case "nodes":
      return <Nodes />;
    case "access":
      return <Access me={me} />;
    case "audit":
      return <Audit />;
    case "errors":
      return <Errors />;
    case "settings":
      return <Settings me={me} />;
    default:
      return (
        <>
          <Head title="Nothing here" name="Nothing here" />
          <Empty>
            No view has this address. <a href="/">Home</a>
          </Empty>
        </>
      );
  }
}

interface RailProps {
  at: string;
  me: Me | undefined;
  /** How many files cannot be read. */
  broken: number;
  fold: () => void;
  isFolded: boolean;
  help: () => void;
  search: () => void;
}

function Rail({ at, me, broken, fold, isFolded, help, search }: RailProps) {
  const [isOpen, setOpen] = useState(false);
  const [mode, setMode] = useState<Mode>(currentMode());
  const [dark, setDark] = useState(isDark);
  useEffect(() => onMode(setMode), []);
  useEffect(() => setOpen(false), [at]);
  function change(): void {
    setTheme(dark ? "light" : "dark");
    setDark(!dark);
  }
  return (
    <nav class={`rail ${isOpen ? "open" : ""}`} aria-label="Places">
      <a class="logo" href="/" aria-label="aioflow, home">
        <svg width="20" height="20" viewBox="0 0 32 32" aria-hidden="true">
          <rect width="32" height="32" rx="7" />
          <path d="M7 16h5m8-6h5m-5 12h5M12 16c4 0 4-6 8-6m-8 6c4 0 4 6 8 6" />
        </svg>
        <span>aioflow</span>
      </a>
      <ul>
        {PLACES.map(([letter, name, href]) => (
          <li key={href} class={FIRST.has(href) ? "first" : ""} data-needs={OF_ADMINS.has(href) ? "admin" : undefined}>
            <a href={href} aria-current={`/${at}` === href ? "page" : undefined} title={`${name} (g ${letter})`}>
              <Icon of={href} />
              <span>{name}</span>
              {href === "/errors" && broken > 0 && <b class="badge">{broken}</b>}
            </a>
          </li>
        ))}
        <li class="first more">
          <button type="button" class="plain" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
            <svg width="16" height="16" viewBox="0 0 16 16" fill="currentColor" aria-hidden="true">
              <path d="M2 7h3v3H2zM6.5 7h3v3h-3zM11 7h3v3h-3z" />
            </svg>
            <span>More</span>
          </button>
        </li>
      </ul>
      <div class="rail-foot">
        {me && (
          <a class="who" href="/settings" title={`You are ${me.name}, ${me.role}`}>
            <span class="cut">{me.name}</span> <span class="soft">{me.role}</span>
          </a>
        )}
        <span class={`mode m-${mode}`} title={MODES[mode]} role="status">
          <i aria-hidden="true" />
          <span>{MODES[mode]}</span>
        </span>
        <div class="rail-buttons">
          <button type="button" class="plain" aria-label="Search" title="Search (Ctrl K)" onClick={search}>
            <svg width="14" height="14" viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.7" stroke-linecap="round" aria-hidden="true">
              <path d="M7 2.2a4.8 4.8 0 1 1 0 9.6 4.8 4.8 0 0 1 0-9.6zM10.6 10.6 14 14" />
            </svg>
          </button>
          <button type="button" class="plain" aria-label={dark ? "Light look" : "Dark look"} title={dark ? "Light" : "Dark"} onClick={change}>
            {dark ? "☀" : "☾"}
          </button>
          <button type="button" class="plain" aria-label="Keys" title="Keys (?)" onClick={help}>
            ?
          </button>
          <button type="button" class="plain fold" aria-label={isFolded ? "Unfold the rail" : "Fold the rail"} title={isFolded ? "Unfold" : "Fold"} onClick={fold}>
            {isFolded ? "»" : "«"}
          </button>
        </div>
      </div>
    </nav>
  );
}

const MODES: Record<Mode, string> = {
  off: "connecting",
  live: "live",
  polling: "every 3 s",
  away: "daemon away",
};

function Help({ close }: { close: () => void }) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => box.current?.showModal(), []);
  const keys: [string, string][] = [
    ["/", "search"],
    ["Ctrl K", "find a DAG or a run"],
    ["j k", "next, previous row"],
    ["Enter", "open it"],
    ["← ↑ ↓ →", "in a grid or a graph: the next box"],
    ["Esc", "close"],
    ["?", "these keys"],
    ...PLACES.map(([letter, name]): [string, string] => [`g ${letter}`, name]),
  ];
  return (
    <dialog ref={box} onClose={close} aria-labelledby="help">
      <h2 id="help">Keys</h2>
      <dl class="keys">
        {keys.map(([key, what]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <footer>
        <button type="button" onClick={close}>
          Close
        </button>
      </footer>
    </dialog>
  );
}

/** Find a place, a DAG, or a run by its id. */
function Search({ close }: { close: () => void }) {
  const box = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const dags = useItems<Dag>(text ? query("/dags", { search: text, limit: 20 }) : null, { on: () => false });
  useEffect(() => box.current?.showModal(), []);
  const wanted = text.toLowerCase();
  const found: [string, string][] = [
    ...PLACES.filter(([, name]) => name.toLowerCase().includes(wanted)).map(([, name, href]): [string, string] => [name, href]),
    ...(dags.data ?? [])
      .filter((dag) => dag.dag_id?.toLowerCase().includes(wanted))
      .slice(0, 20)
      .map((dag): [string, string] => [dag.dag_id ?? "", dagHref(dag.dag_id ?? "")]),
    ...(text ? [[`Run ${text}`, runHref(text)] as [string, string]] : []),
  ];
  function submit(event: Event): void {
    event.preventDefault();
    const chosen = found[Math.min(at, found.length - 1)];
    if (chosen) go(chosen[1]);
    close();
  }
  function pressed(event: KeyboardEvent): void {
    const by = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (by === 0) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(found.length - 1, at + by));
    setAt(next);
    box.current?.querySelectorAll("li")[next]?.scrollIntoView({ block: "nearest" });
  }
  return (
    <dialog ref={box} class="search" onClose={close} aria-label="Search">
      <form onSubmit={submit}>
        <input type="search" autofocus placeholder="A DAG, a run's id, a place" aria-label="A DAG, a run's id, a place" value={text}
          onKeyDown={pressed}
          onInput={(event) => {
            setText(event.currentTarget.value);
            setAt(0);
          }}
        />
      </form>
      <ul class="rows">
        {found.map(([name, href], index) => (
          <li key={href} class={index === at ? "chosen" : ""}>
            <a class="row" href={href} onClick={() => setTimeout(close)}>
              {name}
            </a>
          </li>
        ))}
      </ul>
    </dialog>
  );
}

applyTheme();
followLinks();
render(<Page />, document.getElementById("page")!);
