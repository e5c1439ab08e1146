import { emit } from "../actions";
import { query } from "../api";
import { Detail } from "../components/detail";
import { SplitPane } from "../components/split";
import { type Column, Table } from "../components/table";
import { never, useItems, usePages } from "../data";
import { Empty, Filter, Head, Json, NoMatches, Shown, childName, runHref, taskHref } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { texts } from "../texts";
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
  const events = usePages<NamedEvent>((cursor) => query("/events", { name, limit: PAGE, cursor }), (row) => row.event_id, PAGE, { gap: 1000 });
  const open = place.query.get("open");
  const shown = events.data?.find((event) => String(event.event_id) === open);
  return (
    <>
      <Head title={texts.places.events} name={texts.places.events}>
        <button type="button" data-needs="operator" class="main" onClick={emit}>
          {texts.events.emit}
        </button>
      </Head>
      <SplitPane name="events" side={shown ? <One key={shown.event_id} event={shown} /> : null}>
        <p class="sentence about">{texts.events.sentence}</p>
        <Shown of={events}>
          {(rows) => (
            <Table
              name="events"
              label={texts.table.listed(rows.length, events.isWhole, "events")}
              columns={COLUMNS}
              items={rows}
              keyOf={(event) => event.event_id}
              hrefOf={(event) => withQuery({ open: event.event_id })}
              current={(event) => String(event.event_id) === open}
              onEnd={events.more}
              toolbar={<Filter name="name" label={texts.events.filter} onValue={(text) => go(withQuery({ name: text }), { replace: true })} />}
              empty={
                <Empty>
                  {name ? (
                    <NoMatches href="/events" />
                  ) : (
                    texts.events.none
                  )}
                </Empty>
              }
            />
          )}
        </Shown>
      </SplitPane>
    </>
  );
}

const COLUMNS: Column<NamedEvent>[] = [
  { id: "name", title: texts.events.name, width: "minmax(140px, 1.4fr)", phone: "title", isFixed: true, isMono: true, cell: (event) => event.name },
  { id: "key", title: texts.events.key, width: "minmax(90px, 1fr)", phone: "second", isMono: true, cell: (event) => event.key ?? "" },
  {
    id: "from",
    title: texts.events.from,
    width: "minmax(120px, 1.2fr)",
    phone: "second-end",
    isMono: true,
    cell: (event) => (event.run_id ? <a href={runHref(event.run_id)}>{event.run_id}</a> : <span class="soft">{texts.events.outside}</span>),
  },
  { id: "at", title: texts.events.received, width: "96px", isNumber: true, phone: "end", cell: (event) => <When at={event.at} /> },
];

function One({ event }: { event: NamedEvent }) {
  const woke = useItems<Woken>(`/events/${event.event_id}/woke`, { on: never });
  return (
    <Detail title={event.name} name={event.name}>
      <dl class="facts">
        <dt>{texts.events.key}</dt>
        <dd>{event.key ?? "–"}</dd>
        <dt>{texts.events.received}</dt>
        <dd>
          <When at={event.at} />
        </dd>
        <dt>{texts.events.from}</dt>
        <dd>{event.run_id ? <a href={runHref(event.run_id)}>{event.run_id}</a> : texts.events.outside}</dd>
      </dl>
      <h3>{texts.events.data}</h3>
      <Json value={event.data} />
      <h3>{texts.events.woke}</h3>
      <Shown of={woke} optional none={<p class="soft">{texts.events.wokeNothing}</p>}>
        {(found) => (
          <ul class="rows">
            {found.map((one, index) => (
              <li key={index}>
                <a class="row" href={one.task_id ? taskHref(one.run_id, one.task_id, one.map_index) : runHref(one.run_id)}>
                  <span class="cut mono">{one.run_id}</span>
                  <span class="cut grow soft mono">{one.task_id && childName(one.task_id, one.map_index, 0)}</span>
                </a>
              </li>
            ))}
          </ul>
        )}
      </Shown>
    </Detail>
  );
}
