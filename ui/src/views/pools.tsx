import { liftPool, setPool } from "../actions";
import { enc } from "../api";
import { Detail } from "../components/detail";
import { lazy } from "../components/lazy";
import { Menu } from "../components/menu";
import { SplitPane } from "../components/split";
import { type Column, Table } from "../components/table";
import { useData, useItems } from "../data";
import { Empty, Head, Shown, childName, number, taskHref } from "../parts";
import { usePlace, withQuery } from "../router";
import { Glyph, UsageBar } from "../states";
import { texts } from "../texts";
import { When } from "../time";
import type { Pool } from "../types";

const PoolUsage = lazy<{ name: string; slots: number }>(() => import("../pools/usage"));

interface Holder {
  run_id: string;
  task_id: string;
  map_index: number;
  weight: number;
  since: string | null;
  is_waiting?: boolean;
}

export default function Pools() {
  const pools = useItems<Pool>("/pools", { gap: 500 });
  const open = usePlace().query.get("open");
  const shown = pools.data?.find((pool) => pool.name === open);
  return (
    <>
      <Head title={texts.places.pools} name={texts.places.pools}>
        <button type="button" data-needs="operator" class="main" onClick={() => setPool(null, 4, false)}>
          {texts.pools.add}
        </button>
      </Head>
      <SplitPane name="pools" side={shown ? <One key={shown.name} pool={shown} /> : null}>
        <p class="sentence about">{texts.pools.sentence} {pools.data && texts.pools.full(pools.data.filter((pool) => pool.queued && (pool.used ?? 0) >= pool.slots).map((pool) => pool.name), pools.data.reduce((all, pool) => all + (pool.queued ?? 0), 0))}</p>
        <Shown of={pools} none={<Empty>{texts.pools.none}</Empty>}>
          {(rows) => (
            <Table name="pools" label={texts.common.many(rows.length, "pool")} columns={COLUMNS} items={rows} keyOf={(pool) => pool.name} hrefOf={(pool) => withQuery({ open: pool.name })} current={(pool) => pool.name === open} isShort isPlain />
          )}
        </Shown>
      </SplitPane>
    </>
  );
}

const COLUMNS: Column<Pool>[] = [
  { id: "pool", title: texts.pools.name, width: "minmax(120px, 1fr)", phone: "title", isFixed: true, isMono: true, cell: (pool) => pool.name, sort: (one, other) => one.name.localeCompare(other.name) },
  { id: "usage", title: texts.pools.usage, width: "minmax(100px, 2fr)", phone: "second", cell: (pool) => <Usage pool={pool} /> },
  { id: "used", title: texts.pools.slots, width: "100px", isNumber: true, phone: "end", cell: (pool) => (pool.used === undefined ? number(pool.slots) : texts.common.of(pool.used, pool.slots)), sort: (one, other) => one.slots - other.slots },
  { id: "queued", title: texts.states["queued"]!, width: "96px", isNumber: true, phone: "second-end", cell: (pool) => (pool.queued ? <a href={`/runs?state=running`}>{number(pool.queued)}</a> : "0"), sort: (one, other) => (one.queued ?? 0) - (other.queued ?? 0) },
];

function Usage({ pool }: { pool: Pool }) {
  const used = pool.used ?? 0;
  return <UsageBar used={used} all={pool.slots} queued={pool.queued ?? 0} label={texts.pools.usedOf(used, pool.slots)} />;
}

function One({ pool }: { pool: Pool }) {
  const holders = useItems<Holder>(`/pools/${enc(pool.name)}/holders`, { gap: 500 });
  return (
    <Detail
      title={pool.name}
      name={`${texts.pools.name} ${pool.name}`}
      actions={
        <>
          <button type="button" data-needs="operator" onClick={() => setPool(pool.name, pool.slots, pool.include_deferred)}>
            {texts.pools.change}
          </button>
          <Menu label={texts.common.moreOf(pool.name)} icon="ellipsis" isBare needs="operator" items={[{ name: texts.pools.remove, act: () => liftPool(pool.name), isGrave: true, needs: "operator" }]} />
        </>
      }
    >
      <Usage pool={pool} />
      <p class="soft">{pool.include_deferred ? texts.pools.countsDeferred : texts.pools.countsNone}</p>
      <PoolUsage name={pool.name} slots={pool.slots} />
      <Waiters pool={pool} />
      <h3>{texts.pools.holders}</h3>
      <Shown of={holders} optional none={<p class="soft">{texts.pools.noHolders}</p>}>
        {(found) => (
          <ul class="rows">
            {found.map((one) => (
              <li key={`${one.run_id} ${one.task_id} ${one.map_index}`}>
                <a class="home-row" href={taskHref(one.run_id, one.task_id, one.map_index)}>
                  <Glyph state={one.is_waiting ? "waiting" : "running"} />
                  <span class="cut mono">{childName(one.task_id, one.map_index, 0)}</span>
                  <span class="end">
                    <When at={one.since} />
                  </span>
                  <span class="second">
                    <span class="cut grow mono">{one.run_id}</span>
                    {one.is_waiting && <span>{texts.pools.waitsForTrigger}</span>}
                    <span class="num">{texts.common.many(one.weight, "slot")}</span>
                  </span>
                </a>
              </li>
            ))}
          </ul>
        )}
      </Shown>
    </Detail>
  );
}

interface Waiter {
  run_id: string;
  task_id: string;
  map_index: number;
  children: number;
  weight: number;
  priority: number;
  since: string | null;
}

/** The tasks that get the next free slots. */
function Waiters({ pool }: { pool: Pool }) {
  const waiters = useData<{ items: Waiter[] }>(pool.queued ? `/pools/${enc(pool.name)}/waiters` : null, { gap: 1000 });
  if (!pool.queued) return null;
  return (
    <>
      <h3>{texts.pools.waiters}</h3>
      <Shown of={waiters} optional>
        {({ items }) => (
          <ol class="rows">
            {items.map((one, index) => (
              <li key={`${one.run_id} ${one.task_id} ${one.map_index} ${index}`}>
                <a class="home-row" href={taskHref(one.run_id, one.task_id, one.map_index)}>
                  <span class="place num soft">{index + 1}</span>
                  <span class="cut mono">{one.children ? `${one.task_id}, ${texts.common.many(one.children, "child", "children")}` : childName(one.task_id, one.map_index, 0)}</span>
                  <span class="end">
                    <When at={one.since} none="" />
                  </span>
                  <span class="second">
                    <span class="cut grow mono">{one.run_id}</span>
                    {one.priority !== 0 && <span>{texts.pools.priority(one.priority)}</span>}
                    <span class="num">{texts.common.many(one.weight, "slot")}</span>
                  </span>
                </a>
              </li>
            ))}
          </ol>
        )}
      </Shown>
    </>
  );
}
