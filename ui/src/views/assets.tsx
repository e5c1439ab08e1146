// Assets: their producers and consumers, and their lineage.

import "../styles/assets.css";

import { query } from "../api";
import { Detail } from "../components/detail";
import { SplitPane } from "../components/split";
import { type Column, Table } from "../components/table";
import { TabBar } from "../components/tabs";
import { useItems, usePages } from "../data";
import { Lineage } from "../lineage";
import { Empty, Filter, Head, NoMatches, Shown, dagHref, number, runHref } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { texts } from "../texts";
import { When } from "../time";
import type { Asset, AssetConsumer, NamedEvent } from "../types";

const PAGE = 200;
const NAMES_SHOWN = 2;
const UPDATES_SHOWN = 20;

export default function Assets() {
  const place = usePlace();
  const search = place.query.get("search") ?? "";
  const open = place.query.get("open");
  const isLineage = place.query.get("view") === "lineage";
  const assets = usePages<Asset>((cursor) => query("/assets", { search, limit: PAGE, cursor }), (asset) => asset.name, PAGE, { gap: 1000 });
  // A linked asset may be on a later page.
  const single = useItems<Asset>(open === null ? null : query("/assets", { name: open }), { gap: 1000 });
  const shown = single.data?.[0];
  return (
    <>
      <Head
        title={texts.places.assets}
        name={texts.places.assets}
        tabs={
          <TabBar
            label={texts.assets.views}
            at={isLineage ? "lineage" : "list"}
            tabs={[
              { key: "list", name: texts.assets.list, href: "/assets" },
              { key: "lineage", name: texts.assets.lineage, href: "/assets?view=lineage" },
            ]}
          />
        }
      />
      <SplitPane name="assets" side={open !== null && shown ? <One key={shown.name} asset={shown} all={assets.data ?? [shown]} /> : null}>
        <p class="sentence about">{texts.assets.sentence}</p>
        <Shown of={assets}>
          {(rows) =>
            isLineage && rows.length > 0 ? (
              <>
                <Lineage assets={rows} picked={open} hrefOf={(name) => withQuery({ open: name })} />
                {!assets.isWhole && <p class="soft">{texts.assets.firstOnes(rows.length)}</p>}
              </>
            ) : (
              <Table
                name="assets"
                label={texts.table.listed(rows.length, assets.isWhole, "assets")}
                columns={COLUMNS}
                items={rows}
                keyOf={(asset) => asset.name}
                hrefOf={(asset) => withQuery({ open: asset.name })}
                current={(asset) => asset.name === open}
                onEnd={assets.more}
                toolbar={<Filter name="search" label={texts.assets.find} onValue={(text) => go(withQuery({ search: text }), { replace: true })} />}
                empty={
                  <Empty>
                    {search ? (
                      <NoMatches href="/assets" />
                    ) : (
                      texts.assets.none
                    )}
                  </Empty>
                }
              />
            )
          }
        </Shown>
      </SplitPane>
    </>
  );
}

/** The first DAGs by name, and how many more there are. */
function Dags({ ids, count }: { ids: string[]; count: number }) {
  const names = [...new Set(ids)];
  if (names.length === 0) return <span class="soft">{texts.assets.noDag}</span>;
  const more = Math.max(names.length, count) - NAMES_SHOWN;
  return (
    <span class="cut">
      {names.slice(0, NAMES_SHOWN).map((id, index) => (
        <>
          {index > 0 && ", "}
          {id}
        </>
      ))}
      {names.length > NAMES_SHOWN && <span class="soft"> {texts.assets.more(more)}</span>}
    </span>
  );
}

const waiting = (asset: Asset): number => asset.consumers.filter((one) => one.missing.length > 0 && Object.keys(one.received).length > 0).length;

const COLUMNS: Column<Asset>[] = [
  { id: "name", title: texts.assets.name, width: "minmax(140px, 1.6fr)", phone: "title", isFixed: true, isMono: true, cell: (asset) => asset.name },
  {
    id: "producers",
    title: texts.assets.updatedBy,
    width: "minmax(120px, 1.3fr)",
    phone: "second",
    cell: (asset) => <Dags ids={asset.producers.map((one) => one.dag_id)} count={asset.producer_count} />,
  },
  {
    id: "consumers",
    title: texts.assets.starts,
    width: "minmax(120px, 1.3fr)",
    phone: "second-end",
    cell: (asset) => <Dags ids={asset.consumers.map((one) => one.dag_id)} count={asset.consumer_count} />,
  },
  {
    id: "waiting",
    title: texts.assets.waiting,
    meaning: texts.assets.waitingMeaning,
    width: "88px",
    isNumber: true,
    isWideOnly: true,
    cell: (asset) => (waiting(asset) ? number(waiting(asset)) : ""),
    sort: (one, other) => waiting(one) - waiting(other),
  },
  {
    id: "run",
    title: texts.assets.byRun,
    width: "minmax(100px, 1fr)",
    isMono: true,
    isWideOnly: true,
    cell: ({ last_update: update }) => update && (update.run_id ? update.run_id : <span class="soft">{texts.events.outside}</span>),
  },
  {
    id: "at",
    title: texts.assets.lastUpdate,
    width: "104px",
    isNumber: true,
    phone: "end",
    cell: ({ last_update: update }) => (update ? <When at={update.at} /> : <span class="soft">{texts.assets.never}</span>),
    sort: (one, other) => (one.last_update?.at ?? "").localeCompare(other.last_update?.at ?? ""),
  },
];

function One({ asset, all }: { asset: Asset; all: Asset[] }) {
  const updates = useItems<NamedEvent>(query("/events", { name: `asset:${asset.name}`, limit: UPDATES_SHOWN }), { gap: 1000 });
  return (
    <Detail title={asset.name} name={asset.name}>
      <Lineage assets={around(asset, all)} picked={asset.name} hrefOf={(name) => withQuery({ open: name })} isSmall />
      <h3>{texts.assets.starts}</h3>
      {asset.consumers.length === 0 && <p class="soft">{texts.assets.noConsumers}</p>}
      <ul class="rows">
        {asset.consumers.map((one) => (
          <li key={one.dag_id} class="asset-consumer">
            <a href={dagHref(one.dag_id)}>{one.dag_id}</a>
            {one.paused && <span class="tag">{texts.states["paused"]}</span>}
            <code>{one.condition}</code>
            <p>
              {waitText(one)}
              {one.run_id && (
                <>
                  {" "}
                  {texts.assets.startedLast} <a href={runHref(one.run_id)}>{one.run_id}</a>.
                </>
              )}
            </p>
          </li>
        ))}
      </ul>
      <More shown={asset.consumers.length} count={asset.consumer_count} />
      <h3>{texts.assets.updatedBy}</h3>
      {asset.producers.length === 0 && <p class="soft">{texts.assets.noProducers}</p>}
      <ul class="rows">
        {asset.producers.map((one) => (
          <li key={`${one.dag_id} ${one.task_id}`}>
            <a class="row" href={dagHref(one.dag_id)}>
              <span class="cut">{one.dag_id}</span>
              <span class="cut grow soft mono">{one.task_id}</span>
            </a>
          </li>
        ))}
      </ul>
      <More shown={asset.producers.length} count={asset.producer_count} />
      <h3>{texts.assets.updates}</h3>
      <Shown of={updates} optional none={<p class="soft">{texts.assets.noUpdates}</p>}>
        {(found) => (
          <ul class="rows">
            {found.map((event) => (
              <li key={event.event_id} class="row">
                <span class="cut grow mono">{event.run_id ? <a href={runHref(event.run_id)}>{event.run_id}</a> : texts.events.outside}</span>
                <a href={query("/events", { name: event.name, open: event.event_id })}>{texts.assets.event(event.event_id)}</a>
                <When at={event.at} />
              </li>
            ))}
          </ul>
        )}
      </Shown>
    </Detail>
  );
}

function More({ shown, count }: { shown: number; count: number }) {
  return count > shown ? <p class="soft">{texts.assets.more(count - shown)}</p> : null;
}

function waitText({ condition, received, missing }: AssetConsumer): string {
  const held = Object.entries(received).map(([name, count]) => texts.assets.held(name, count));
  const has = held.length ? texts.assets.has(held.join(", ")) : "";
  if (missing.length === 0) return held.length ? texts.assets.met(held.join(", ")) : "";
  return `${texts.assets.waitsFor(missing, condition.includes(" | "))}${has}.`;
}

/** Return an asset, and the other assets that its DAGs update or wait for. */
function around(asset: Asset, all: Asset[]): Asset[] {
  const dags = new Set([...asset.producers, ...asset.consumers].map((one) => one.dag_id));
  const near = all.filter((one) => one.name !== asset.name && [...one.producers, ...one.consumers].some((other) => dags.has(other.dag_id)));
  const only = near.map((one) => ({ ...one, producers: one.producers.filter((other) => dags.has(other.dag_id)), consumers: one.consumers.filter((other) => dags.has(other.dag_id)) }));
  return [asset, ...only];
}
