import { useState } from "preact/hooks";

import { liftPool, many, setPool } from "../actions";
import { enc } from "../api";
import { useItems } from "../data";
import { Empty, Head, Panel, Shown, childName, number, taskHref } from "../parts";
import { When } from "../time";
import type { Pool } from "../types";

interface Holder {
  run_id: string;
  task_id: string;
  map_index: number;
  weight: number;
  since: string | null;
  is_waiting?: boolean;
}

export function Pools() {
  const pools = useItems<Pool>("/pools", { gap: 500 });
  return (
    <>
      <Head title="Pools" name="Pools">
        <button type="button" data-needs="operator" class="main" onClick={() => setPool(null, 4, false)}>
          Limit a pool …
        </button>
      </Head>
      <Shown of={pools}>
        {(rows) =>
          rows.length === 0 ? (
            <Empty>No pool has a limit. Tasks name theirs by pool=; one without a limit is bounded by the workers alone.</Empty>
          ) : (
            <Panel>
              <ul class="rows">
                {rows.map((pool) => (
                  <One key={pool.name} pool={pool} />
                ))}
              </ul>
            </Panel>
          )
        }
      </Shown>
    </>
  );
}

function One({ pool }: { pool: Pool }) {
  const [isOpen, setOpen] = useState(false);
  const holders = useItems<Holder>(isOpen ? `/pools/${enc(pool.name)}/holders` : null, { gap: 500 });
  const used = pool.used ?? 0;
  return (
    <li>
      <details onToggle={(change) => setOpen(change.currentTarget.open)}>
        <summary class="row" data-row>
          <b class="cut grow">{pool.name}</b>
          <span class="share">
            <span class="bar" role="img" aria-label={`${used} of ${pool.slots} used`}>
              <i class="b-running" style={{ width: `${Math.min(100, (100 * used) / pool.slots)}%` }} />
            </span>
          </span>
          <span class="num">
            {pool.used === undefined ? "" : `${number(used)} of `}
            {number(pool.slots)}
          </span>
          <span class="num soft">{pool.queued === undefined ? "" : `${number(pool.queued)} queued`}</span>
        </summary>
        <div class="inset">
          <p class="actions">
            <button type="button" data-needs="operator" onClick={() => setPool(pool.name, pool.slots, pool.include_deferred)}>
              Change …
            </button>
            <button type="button" data-needs="operator" onClick={() => liftPool(pool.name)}>
              Lift the limit …
            </button>
          </p>
          <p class="soft">{pool.include_deferred ? "What waits for a trigger counts too." : "What waits for a trigger holds nothing of it."}</p>
          {isOpen && (
            <Shown of={holders} optional>
              {(found) =>
                found.length === 0 ? (
                  <p class="soft">Nothing holds it.</p>
                ) : (
                  <ul class="rows">
                    {found.map((one) => (
                      <li key={`${one.run_id} ${one.task_id} ${one.map_index}`}>
                        <a class="row" href={taskHref(one.run_id, one.task_id, one.map_index)}>
                          <span class="cut">{childName(one.task_id, one.map_index, 0)}</span>
                          <span class="cut grow soft">{one.run_id}</span>
                          {one.is_waiting && <span class="soft">waits for a trigger</span>}
                          <span class="num">{many(one.weight, "slot")}</span>
                          <span class="num soft">
                            <When at={one.since} />
                          </span>
                        </a>
                      </li>
                    ))}
                  </ul>
                )
              }
            </Shown>
          )}
        </div>
      </details>
    </li>
  );
}
