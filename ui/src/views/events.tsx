import { useState } from "preact/hooks";

import { emit } from "../actions";
import { query } from "../api";
import { useItems, usePages } from "../data";
import { Empty, Filter, Head, Json, Panel, Shown, childName, runHref, taskHref } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { When } from "../time";
import type { NamedEvent } from "../types";

const PAGE = 100;

interface Woken {
  run_id: string;
  task_id: string | null;
  map_index: number;
  dag_id: string;
}

export function Events() {
  const place = usePlace();
  const name = place.query.get("name") ?? "";
  const events = usePages<NamedEvent>((cursor) => query("/events", { name, limit: PAGE, cursor }), (event) => event.event_id, PAGE, { gap: 1000 });
  return (
    <>
      <Head title="Events" name="Events">
        <Filter name="name" label="Of name" onValue={(text) => go(withQuery({ name: text }), { replace: true })} />
        <button type="button" data-needs="operator" class="main" onClick={emit}>
          Emit …
        </button>
      </Head>
      <Shown of={events}>
        {(rows) =>
          rows.length === 0 ? (
            <Empty>
              {name ? "No event of that name." : "No events yet."} A task emits one, <code>aioflow events emit</code>, or a webhook.
            </Empty>
          ) : (
            <Panel>
              <ul class="rows">
                {rows.map((event) => (
                  <One key={event.event_id} event={event} />
                ))}
              </ul>
              {!events.isWhole && (
                <button type="button" onClick={events.more}>
                  Older events
                </button>
              )}
            </Panel>
          )
        }
      </Shown>
    </>
  );
}

function One({ event }: { event: NamedEvent }) {
  const [isOpen, setOpen] = useState(false);
  const woke = useItems<Woken>(isOpen ? `/events/${event.event_id}/woke` : null, { on: () => false });
  return (
    <li>
      <details onToggle={(change) => setOpen(change.currentTarget.open)}>
        <summary class="row" data-row>
          <b class="cut">{event.name}</b>
          <span class="cut grow soft">{event.key ?? ""}</span>
          <span class="cut soft narrow-hide">{event.run_id ? `from ${event.run_id}` : "from outside"}</span>
          <span class="num">
            <When at={event.at} />
          </span>
        </summary>
        <div class="inset">
          <Json value={event.data} />
          {event.run_id && (
            <p>
              Emitted by <a href={runHref(event.run_id)}>{event.run_id}</a>
            </p>
          )}
          {isOpen && (
            <Shown of={woke} optional>
              {(found) =>
                found.length === 0 ? (
                  <p class="soft">It woke nothing.</p>
                ) : (
                  <p>
                    It woke{" "}
                    {found.map((one, index) => (
                      <>
                        {index > 0 && ", "}
                        <a key={index} href={one.task_id ? taskHref(one.run_id, one.task_id, one.map_index) : runHref(one.run_id)}>
                          {one.run_id} {one.task_id && childName(one.task_id, one.map_index, 0)}
                        </a>
                      </>
                    ))}
                  </p>
                )
              }
            </Shown>
          )}
        </div>
      </details>
    </li>
  );
}
