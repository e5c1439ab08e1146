// Who did what: every change and every denied attempt.

import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";

import { enc, query } from "../api";
import { DateRange, resolved } from "../components/dates";
import { Detail } from "../components/detail";
import { SplitPane } from "../components/split";
import { type Column, Table } from "../components/table";
import { never, useData, usePages } from "../data";
import { Choice, Empty, Filter, Head, Json, NoMatches, Shown, dagHref, runHref, taskHref } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { texts } from "../texts";
import { At, When } from "../time";
import type { AuditRow } from "../types";
import "./audit.css";
import { audit } from "./texts";

const PAGE = 100;
const FILTERS = ["actor", "action", "target", "outcome", "from", "to"];

/** The verb of an entry, by the name of its action or, for a denied request, by its method. */
const verbOf = (row: AuditRow): string => audit.verbs[row.action] ?? (row.outcome === "done" ? row.action : `${audit.denied}: ${row.action}`);

/** The ids of an entry's runs. An entry about many runs names all of them. */
const idsOf = (row: AuditRow): string[] => (row.action.startsWith("runs.") && typeof row.after === "string" ? row.after.split(" ") : []);

/** The object of an entry, with a link if the object has a page. */
function ObjectOf({ row }: { row: AuditRow }) {
  const target = row.target ?? "";
  const noun = row.action.split(".")[0];
  const [first = "", ...rest] = target.split(" ");
  if (row.outcome !== "done") return <span class="soft">{target}</span>;
  switch (noun) {
    case "run":
    case "note":
      if (row.action === "run.create") {
        return (
          <>
            <a href={runHref(String(row.after))}>{String(row.after)}</a> <span class="soft">{audit.of}</span> <a href={dagHref(target)}>{target}</a>
          </>
        );
      }
      return (
        <>
          <a href={runHref(first)}>{first}</a>
          {rest.length > 0 && (
            <>
              {" "}
              <Tasks run={first} names={rest.join(" ")} />
            </>
          )}
        </>
      );
    case "dag":
      return <a href={dagHref(target)}>{target}</a>;
    case "backfill":
      return <a href="/backfills">{target}</a>;
    case "decision":
      return <a href={`/decisions/${enc(target)}`}>{target}</a>;
    case "pool":
      return <a href="/pools">{target}</a>;
    default:
      return <>{target}</>;
  }
}

function Tasks({ run, names }: { run: string; names: string }) {
  const child = /^(\S+)\[(\d+)\]$/.exec(names);
  if (child) return <a href={taskHref(run, child[1]!, Number(child[2]))}>{names}</a>;
  return <>{/[ ,]/.test(names) ? names : <a href={taskHref(run, names)}>{names}</a>}</>;
}

const Outcome = ({ row }: { row: AuditRow }) => (row.outcome === "done" ? <span class="soft">{audit.done}</span> : <span class="bad">{audit.denied}</span>);

const COLUMNS: Column<AuditRow>[] = [
  { id: "actor", title: audit.actor, width: "minmax(72px, 140px)", phone: "second-end", isFixed: true, cell: (row) => row.actor || audit.anonymous },
  { id: "action", title: audit.action, width: "minmax(128px, 220px)", phone: "title", isFixed: true, cell: verbOf },
  { id: "target", title: audit.object, width: "minmax(100px, 2fr)", phone: "second", isMono: true, cell: (row) => <ObjectOf row={row} /> },
  { id: "outcome", title: audit.outcome, width: "72px", cell: (row) => <Outcome row={row} /> },
  { id: "address", title: audit.address, width: "120px", isOptional: true, isWideOnly: true, isMono: true, cell: (row) => row.address ?? "" },
  { id: "at", title: audit.at, width: "88px", isNumber: true, phone: "end", cell: (row) => <When at={row.at} /> },
];

const NOUNS: [string, string][] = [["", audit.anyAction], ...Object.entries(audit.nouns)];
const OUTCOMES: [string, string][] = [
  ["", audit.outcomes.done],
  ["refused", audit.outcomes.refused],
  ["all", audit.outcomes.all],
];

function Filters() {
  const { query: at } = usePlace();
  const set = (fields: Record<string, string>) => go(withQuery({ ...fields, open: null }), { replace: true });
  return (
    <span class="audit-filters">
      <Filter name="actor" label={audit.actor} onValue={(actor) => set({ actor })} />
      <Choice label={audit.action} value={at.get("action") ?? ""} options={NOUNS} onValue={(action) => set({ action })} />
      <Filter name="target" label={audit.object} onValue={(target) => set({ target })} />
      <Choice label={audit.outcome} value={at.get("outcome") ?? ""} options={OUTCOMES} onValue={(outcome) => set({ outcome })} />
      <DateRange value={{ from: at.get("from") ?? "", to: at.get("to") ?? "" }} onValue={(range) => set({ ...range })} />
    </span>
  );
}

export default function Audit() {
  const { query: at } = usePlace();
  const filter = FILTERS.map((name) => at.get(name) ?? "").join("\n");
  const asked = useMemo(() => {
    const [actor = "", action = "", target = "", outcome = "", from = "", to = ""] = filter.split("\n");
    return { actor, action, target, outcome: outcome === "all" ? "" : outcome || "done", ...resolved({ from, to }) };
  }, [filter]);
  const rows = usePages<AuditRow>((cursor) => query("/audit", { ...asked, limit: PAGE, cursor }), (row) => row.audit_id, PAGE, { gap: 2000 });
  const open = at.get("open");
  const shown = rows.data?.find((row) => String(row.audit_id) === open);
  return (
    <>
      <Head title={texts.places.audit} name={texts.places.audit} />
      <SplitPane name="audit" side={shown ? <AuditDetail key={shown.audit_id} row={shown} /> : null}>
        <p class="sentence about">{audit.sentence}</p>
        <Shown of={rows}>
          {(data) => (
            <Table
              name="audit"
              label={texts.table.listed(data.length, rows.isWhole, "entries")}
              columns={COLUMNS}
              items={data}
              keyOf={(row) => row.audit_id}
              hrefOf={(row) => withQuery({ open: row.audit_id })}
              current={(row) => String(row.audit_id) === open}
              onEnd={rows.more}
              toolbar={<Filters />}
              empty={<Empty>{filter.trim() === "" ? audit.none : <NoMatches href="/audit" />}</Empty>}
            />
          )}
        </Shown>
      </SplitPane>
    </>
  );
}

function Value({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <section>
      <h3>{name}</h3>
      {children}
    </section>
  );
}

const isThere = (value: unknown): boolean => value !== null && value !== undefined;

function AuditDetail({ row }: { row: AuditRow }) {
  const whole = useData<AuditRow>((row.more ?? 0) > 0 ? `/audit/${row.audit_id}` : null, { on: never }).data ?? row;
  const ids = idsOf(whole);
  return (
    <Detail title={verbOf(row)} name={verbOf(row)}>
      <dl class="facts">
        <dt>{audit.actor}</dt>
        <dd>
          {row.actor || audit.anonymous} {row.role && <span class="soft">{row.role}</span>}
        </dd>
        <dt>{audit.object}</dt>
        <dd class="break mono">
          <ObjectOf row={row} />
        </dd>
        <dt>{audit.outcome}</dt>
        <dd>
          <Outcome row={row} /> {row.code && <code>{row.code}</code>}
        </dd>
        <dt>{audit.address}</dt>
        <dd class="mono">{row.address || "–"}</dd>
        <dt>{audit.at}</dt>
        <dd>
          <At at={row.at} />
        </dd>
        <dt>{audit.raw}</dt>
        <dd>
          <code>{row.action}</code>
        </dd>
      </dl>
      {isThere(row.before) && (
        <Value name={audit.before}>
          <Json value={row.before} />
        </Value>
      )}
      {ids.length > 0 ? (
        <Value name={texts.common.many(ids.length, "run")}>
          <ul class="rows">
            {ids.map((id) => (
              <li key={id} class="row">
                <a class="cut mono" href={runHref(id)}>
                  {id}
                </a>
              </li>
            ))}
          </ul>
        </Value>
      ) : (
        isThere(row.after) && (
          <Value name={audit.after}>
            <Json value={row.after} />
          </Value>
        )
      )}
    </Detail>
  );
}
