// The shell: navigation, and the view for the current address.

import "./styles/index.css";

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { onSignedOut } from "./api";
import { type Data, never, useData } from "./data";
import { Dialogs } from "./dialog";
import { Banner } from "./banner";
import { Boundary } from "./components/boundary";
import { Icon } from "./components/icons";
import { lazy } from "./components/lazy";
import { Skeleton } from "./components/skeleton";
import { GROUPS, PLACES, listenToKeys, placeIcon } from "./keys";
import { start, useMode } from "./live";
import { Palette } from "./palette";
import { openedPlace } from "./palette/recent";
import { Empty, Head } from "./parts";
import { entryId, followLinks, storeScroll, storedScroll, usePlace } from "./router";
import { texts } from "./texts";
import { applyTheme, isDark, setTheme } from "./theme";
import { useZoneName } from "./time";
import type { Me, Overview } from "./types";
import { DagPage } from "./views/dag";
import { Dags } from "./views/dags";
import { Events } from "./views/events";
import { Home } from "./views/home";
import { Errors, Nodes } from "./views/house";
import { Login } from "./views/login";
import { RunPage } from "./views/run";
import { Runs } from "./views/runs";
import { Backfills, Schedules } from "./views/schedules";
import { Triggers } from "./views/triggers";

/** The places that a phone shows without its menu. */
const FIRST = new Set(["/", "/runs", "/triggers", "/decisions"]);
const Access = lazy<{ me: Me | undefined }>(() => import("./views/access"));
const Audit = lazy<object>(() => import("./audit/view"));
const Assets = lazy<object>(() => import("./views/assets"));
const Executors = lazy<object>(() => import("./executors/view"));
const Pools = lazy<object>(() => import("./views/pools"));
const Settings = lazy<{ me: Me | undefined }>(() => import("./views/settings"));
const OF_ADMINS = new Set(["/access", "/audit"]);

/** The page of a signed link shows only its question, even to people without an account. */
const Decisions = lazy<{ id: string | undefined }>(() => import("./views/decisions"));
const Decide = lazy<object>(() => import("./views/decide"));

function Page() {
  const [isOut, setOut] = useState(false);
  useEffect(() => onSignedOut(() => setOut(true)), []);
  const me = useData<Me>("/me", { on: never });
  useEffect(() => {
    if (!me.isLoading && !isOut) start();
  }, [me.isLoading, isOut]);
  if (isOut) return <Login wasIn={me.data !== undefined} />;
  if (me.isLoading) return <Skeleton />;
  return <Known me={me.data} />;
}

function Known({ me }: { me: Me | undefined }) {
  const place = usePlace();
  const [help, setHelp] = useState(false);
  const [search, setSearch] = useState(false);
  const [isFolded, setFolded] = useState(localStorage.getItem("aioflow.folded") === "1");
  const isHome = (place.parts[0] ?? "") === "";
  const overview = useData<Overview>("/overview", isHome ? { gap: 1000, every: 10_000 } : { gap: 5000, every: 15_000 });
  const main = useRef<HTMLElement>(null);
  const key = place.parts.slice(0, 3).join("/");
  useEffect(() => listenToKeys({ search: () => setSearch(true), help: () => setHelp(true) }), []);
  useScroll(main, key);
  useEffect(() => openedPlace(place.parts), [key]);
  function fold(): void {
    localStorage.setItem("aioflow.folded", isFolded ? "0" : "1");
    setFolded(!isFolded);
  }
  return (
    <div data-role={me?.role} data-mode={useMode()} class={`shell ${isFolded ? "folded" : ""}`}>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        {texts.shell.skip}
      </a>
      <Rail at={place.parts[0] ?? ""} me={me} broken={overview.data?.import_errors ?? 0} asked={overview.data?.decisions ?? 0} fold={fold} isFolded={isFolded} help={() => setHelp(true)} search={() => setSearch(true)} />
      <main ref={main} id="main" tabIndex={-1}>
        <Banner overview={overview.data} />
        <Boundary key={key}>
          <Routed parts={place.parts} me={me} overview={overview} />
        </Boundary>
      </main>
      <Dialogs />
      {help && <Help close={() => setHelp(false)} />}
      {search && <Palette role={me?.role} help={() => setHelp(true)} close={() => setSearch(false)} />}
    </div>
  );
}

/** Scroll a new view to its top, and restore the scroll position when the user goes back. */
function useScroll(main: { current: HTMLElement | null }, key: string): void {
  useEffect(() => {
    const node = main.current;
    const id = entryId();
    if (!node) return undefined;
    node.scrollTo(0, storedScroll(id));
    const scrolled = () => storeScroll(id, node.scrollTop);
    node.addEventListener("scroll", scrolled, { passive: true });
    return () => node.removeEventListener("scroll", scrolled);
  }, [key]);
}

function Routed({ parts, me, overview }: { parts: string[]; me: Me | undefined; overview: Data<Overview> }) {
  const [first = "", id, view = ""] = parts;
  switch (first) {
    case "":
      return <Home overview={overview} />;
    case "dags":
      return id === undefined ? <Dags /> : <DagPage key={id} id={id} view={view} />;
    case "assets":
      return <Assets />;
    case "runs":
      return id === undefined ? <Runs /> : <RunPage key={id} id={id} view={view} />;
    case "triggers":
      return <Triggers />;
    case "decisions":
      return <Decisions id={id} />;
    case "events":
      return <Events />;
    case "pools":
      return <Pools />;
    case "executors":
      return <Executors />;
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
          <Head title={texts.shell.notFound} name={texts.shell.notFound} />
          <Empty>
            {texts.shell.notFoundText} <a href="/">{texts.shell.goHome}</a>
          </Empty>
        </>
      );
  }
}

interface RailProps {
  at: string;
  me: Me | undefined;
  /** The number of files that cannot be read. */
  broken: number;
  /** The number of open decisions. */
  asked: number;
  fold: () => void;
  isFolded: boolean;
  help: () => void;
  search: () => void;
}

function Rail({ at, me, broken, asked, fold, isFolded, help, search }: RailProps) {
  const [isOpen, setOpen] = useState(false);
  const mode = useMode();
  const zone = useZoneName();
  const [dark, setDark] = useState(isDark);
  useEffect(() => setOpen(false), [at]);
  function change(): void {
    setTheme(dark ? "light" : "dark");
    setDark(!dark);
  }
  return (
    <nav class={`rail ${isOpen ? "open" : ""}`} aria-label={texts.shell.places}>
      <a class="logo" href="/" aria-label={`${texts.product}, ${texts.places.home}`}>
        <svg width="22" height="22" viewBox="0 0 32 32" aria-hidden="true">
          <rect width="32" height="32" rx="8" />
          <path d="M7 16h5m8-6h5m-5 12h5M12 16c4 0 4-6 8-6m-8 6c4 0 4 6 8 6" />
        </svg>
        <span>{texts.product}</span>
      </a>
      <button type="button" class="rail-search" aria-label={`${texts.shell.search} Ctrl K`} title={`${texts.shell.search} (Ctrl K)`} aria-keyshortcuts="Control+K" onClick={search}>
        <Icon name="search" size={15} />
        <span class="grow">{texts.shell.search}</span> <kbd>Ctrl K</kbd>
      </button>
      <div class="rail-places">
        {GROUPS.map((group) => (
          <section key={group.name}>
            <h2>{group.name}</h2>
            <ul>
              {group.places.map(([letter, name, href]) => (
                <li key={href} class={FIRST.has(href) ? "first" : ""} data-needs={OF_ADMINS.has(href) ? "admin" : undefined}>
                  <a href={href} aria-current={`/${at}` === href ? "page" : undefined} title={`${name} (g ${letter})`}>
                    <Icon name={placeIcon(href)} />
                    <span>{name}</span>
                    {href === "/errors" && broken > 0 && <b class="badge">{broken}</b>}
                    {href === "/decisions" && asked > 0 && <b class="badge calm">{asked}</b>}
                  </a>
                </li>
              ))}
            </ul>
          </section>
        ))}
      </div>
      <button type="button" class={`plain more ${at !== "" && !FIRST.has(`/${at}`) ? "is-here" : ""}`} aria-expanded={isOpen} title={broken > 0 ? texts.shell.moreWith(broken) : undefined} onClick={() => setOpen(!isOpen)}>
        <Icon name="ellipsis" />
        <span>{texts.common.more}</span>
        {broken > 0 && <b class="badge">{broken}</b>}
      </button>
      <div class="rail-foot">
        <span class={`mode m-${mode}`} title={texts.shell.modes[mode]} role="status">
          <i aria-hidden="true" />
          <span>{texts.shell.modes[mode]}</span>
        </span>
        <a class="zone cut" href="/settings" title={texts.shell.times(zone)}>
          {texts.shell.times(zone)}
        </a>
        {me && (
          <a class="who" href="/settings" title={texts.shell.user(me.name, me.role)}>
            <span class="cut">{me.name}</span> <span class="soft">{me.role}</span>
          </a>
        )}
        <div class="rail-buttons">
          <button type="button" class="plain icon-only" aria-label={dark ? texts.shell.light : texts.shell.dark} title={dark ? texts.shell.light : texts.shell.dark} onClick={change}>
            <Icon name={dark ? "sun" : "moon"} />
          </button>
          <button type="button" class="plain icon-only" aria-label={texts.shell.shortcuts} title={`${texts.shell.shortcuts} (?)`} onClick={help}>
            <Icon name="keyboard" />
          </button>
          <button type="button" class="plain icon-only fold" aria-label={isFolded ? texts.shell.expand : texts.shell.collapse} title={isFolded ? texts.shell.expand : texts.shell.collapse} onClick={fold}>
            <Icon name={isFolded ? "panel-left-open" : "panel-left-close"} />
          </button>
        </div>
      </div>
    </nav>
  );
}

function Help({ close }: { close: () => void }) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => box.current?.showModal(), []);
  const keys: [string, string][] = [...texts.keys, ...PLACES.map(([letter, name]): [string, string] => [`g ${letter}`, name])];
  return (
    <dialog ref={box} onClose={close} aria-labelledby="help">
      <h2 id="help">{texts.shell.shortcuts}</h2>
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
          {texts.common.close}
        </button>
      </footer>
    </dialog>
  );
}

applyTheme();
followLinks();
render(window.location.pathname === "/decide" ? <Decide /> : <Page />, document.getElementById("page")!);
