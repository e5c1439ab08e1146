// Executors: their workers, the tasks in each, and how many more workers would have work.

import "../styles/executors.css";

import { Detail } from "../components/detail";
import { SplitPane } from "../components/split";
import { type Column, Table } from "../components/table";
import { useItems } from "../data";
import { Empty, Fact, Head, Shown, bytes, childName, number, taskHref } from "../parts";
import { usePlace, withQuery } from "../router";
import { State, UsageBar } from "../states";
import { texts } from "../texts";
import { When } from "../time";
import { executorTexts as own } from "./texts";

interface Running {
  run_id: string;
  task_id: string;
  map_index: number;
  try_number: number;
  started_at: string | null;
}

interface Worker {
  worker_no: number;
  state: string;
  host: string | null;
  worker: string | null;
  worker_url: string | null;
  resources: Record<string, number>;
  tries: number;
  running: Running | null;
}

interface Demand {
  resources: Record<string, number>;
  interpreter: string | null;
  count: number;
  since: string | null;
  unavailable: string | null;
}

interface Executor {
  name: string;
  url: string | null;
  max_workers: number;
  up: number;
  busy: number;
  lost: number;
  wanted: number;
  hosts: number;
  tries: number;
  unavailable: string[];
  demand: Demand[];
  workers: Worker[];
}

const LOCAL = "local";
const WORKERS_SHOWN = 100;
const GLYPHS: Record<string, string> = { unavailable: "failed", lost: "failed", waiting: "queued", busy: "running", idle: "pending", ending: "cancelled" };
const ORDER = ["lost", "busy", "ending", "idle"];

/** Whether a URL is a web page. It comes from the engine of the executor. */
const isPage = (url: string | null): url is string => url !== null && /^https?:\/\//.test(url);

export default function Executors() {
  const executors = useItems<Executor>("/executors", { gap: 1000, every: 3000 });
  const open = usePlace().query.get("open");
  const shown = executors.data?.find((one) => one.name === open);
  return (
    <>
      <Head title={texts.places.executors} name={texts.places.executors} />
      <SplitPane name="executors" side={shown ? <One key={shown.name} executor={shown} /> : null}>
        <p class="sentence about">{own.sentence}</p>
        <Shown of={executors} none={<Empty>{own.none}</Empty>}>
          {(rows) => (
            <Table name="executors" label={texts.common.many(rows.length, "executor")} columns={COLUMNS} items={rows} keyOf={(one) => one.name} hrefOf={(one) => withQuery({ open: one.name })} current={(one) => one.name === open} isShort isPlain />
          )}
        </Shown>
      </SplitPane>
    </>
  );
}

function stateOf(one: Executor): string {
  if (one.lost > 0) return "lost";
  if (one.unavailable.length > 0 && one.up === 0) return "unavailable";
  if (one.wanted > one.up) return "waiting";
  return one.busy > 0 ? "busy" : "idle";
}

function Shape({ state, names = own.states }: { state: string; names?: Record<string, string> }) {
  return <State state={GLYPHS[state] ?? "pending"} name={names[state] ?? state} />;
}

function Usage({ one }: { one: Executor }) {
  return <UsageBar used={one.busy} all={one.max_workers} label={own.usageLabel(one.busy, one.max_workers)} />;
}

const COLUMNS: Column<Executor>[] = [
  { id: "name", title: own.name, width: "minmax(84px, 1fr)", phone: "title", isFixed: true, isMono: true, cell: (one) => one.name, sort: (one, other) => one.name.localeCompare(other.name) },
  { id: "state", title: own.state, width: "minmax(124px, 1fr)", phone: "second", cell: (one) => <Shape state={stateOf(one)} /> },
  { id: "usage", title: own.usage, width: "minmax(48px, 2fr)", isWideOnly: true, cell: (one) => <Usage one={one} /> },
  { id: "workers", title: own.workers, width: "84px", isNumber: true, phone: "end", cell: (one) => own.up(one.up, one.max_workers), sort: (one, other) => one.up - other.up },
  { id: "wanted", title: own.wanted, meaning: own.wantedMeaning, width: "64px", isNumber: true, cell: (one) => number(one.wanted), sort: (one, other) => one.wanted - other.wanted },
  { id: "tries", title: own.tries, meaning: own.triesMeaning, width: "52px", isNumber: true, phone: "second-end", cell: (one) => number(one.tries), sort: (one, other) => one.tries - other.tries },
];

function One({ executor }: { executor: Executor }) {
  return (
    <Detail
      title={executor.name}
      name={`${own.name} ${executor.name}`}
      actions={
        isPage(executor.url) && (
          <a class="button" href={executor.url} target="_blank" rel="noopener noreferrer" aria-label={own.dashboardOf(executor.name)}>
            {texts.task.dashboard}
          </a>
        )
      }
    >
      <Usage one={executor} />
      <dl class="facts inline">
        <Fact name={own.workers}>{own.up(executor.up, executor.max_workers)}</Fact>
        <Fact name={own.busy}>{number(executor.busy)}</Fact>
        {executor.lost > 0 && (
          <Fact name={own.lost}>
            <b title={own.lostMeaning}>{number(executor.lost)}</b>
          </Fact>
        )}
        <Fact name={own.wanted}>{number(executor.wanted)}</Fact>
        <Fact name={own.tries}>{number(executor.tries)}</Fact>
        <Fact name={own.hosts}>{number(executor.hosts)}</Fact>
      </dl>
      {executor.lost > 0 && <p class="wrong">{own.lostMeaning}</p>}
      {executor.unavailable.map((why) => (
        <p key={why} class={executor.up === 0 ? "wrong" : "soft"}>
          {why}
        </p>
      ))}
      {executor.name !== LOCAL && <Demands demand={executor.demand} />}
      <h3>{own.workers}</h3>
      <Workers executor={executor} />
    </Detail>
  );
}

function Demands({ demand }: { demand: Demand[] }) {
  return (
    <>
      <h3>{own.demand}</h3>
      {demand.length === 0 ? (
        <p class="soft">{own.noDemand}</p>
      ) : (
        <ul class="rows">
          {demand.map((one) => (
            <li key={`${resourcesText(one.resources)} ${one.interpreter}`} class="row">
              <span class="grow">
                {resourcesText(one.resources) || own.any}
                {one.interpreter && <span class="soft">, {own.interpreter(one.interpreter)}</span>}
                {one.since && (
                  <span class="soft">
                    , {own.waitingSince} <When at={one.since} />
                  </span>
                )}
              </span>
              <span class="num">{own.workersWanted(one.count)}</span>
            </li>
          ))}
        </ul>
      )}
    </>
  );
}

function Workers({ executor }: { executor: Executor }) {
  if (executor.workers.length === 0) return <p class="soft">{own.noWorkers}</p>;
  const workers = [...executor.workers].sort((one, other) => ORDER.indexOf(one.state) - ORDER.indexOf(other.state) || one.worker_no - other.worker_no);
  return (
    <>
      <ul class="rows executor-workers">
        {workers.slice(0, WORKERS_SHOWN).map((worker) => (
          <li key={worker.worker_no} class="executor-worker">
            <OneWorker worker={worker} page={executor.url} />
          </li>
        ))}
      </ul>
      {executor.up > WORKERS_SHOWN && <p class="soft">{own.more(executor.up - WORKERS_SHOWN)}</p>}
    </>
  );
}

function OneWorker({ worker, page }: { worker: Worker; page: string | null }) {
  const running = worker.running;
  const resources = resourcesText(worker.resources);
  return (
    <>
      <Shape state={worker.state} names={own.workerStates} />
      <div class="grow">
        <div class="break">
          {worker.host ?? own.slot(worker.worker_no)}
          {resources && <span class="soft">, {resources}</span>}
          {worker.worker && <small class="soft mono"> {worker.worker}</small>}
          {/* A worker whose page is the executor's needs no link. */}
          {isPage(worker.worker_url) && worker.worker_url !== page && (
            <>
              {" "}
              <a href={worker.worker_url} target="_blank" rel="noopener noreferrer" aria-label={own.dashboardOf(worker.host ?? "")}>
                {texts.task.dashboard}
              </a>
            </>
          )}
        </div>
        {running && (
          <div class="break">
            <a class="mono" href={taskHref(running.run_id, running.task_id, running.map_index)}>
              {childName(running.task_id, running.map_index, 0)}
            </a>{" "}
            <small class="soft mono">{running.run_id}</small>
            {worker.tries > 1 && <span class="soft"> {own.behind(worker.tries - 1)}</span>}
          </div>
        )}
      </div>
      <span class="num soft">{running && <When at={running.started_at} />}</span>
    </>
  );
}

const resourcesText = (resources: Record<string, number>): string =>
  Object.entries(resources)
    .map(([name, amount]) => `${name} ${name === "memory" ? bytes(amount) : number(amount, 3)}`)
    .join(", ");
