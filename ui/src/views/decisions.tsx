// Decisions: open ones as cards with forms, and ended ones as a table.

import "../styles/decisions.css";

import { useEffect, useRef, useState } from "preact/hooks";

import { query } from "../api";
import { Detail } from "../components/detail";
import { SplitPane } from "../components/split";
import { type Column, Table } from "../components/table";
import { tell } from "../components/toast";
import { useItems } from "../data";
import { AskedBy, type Decision, DecisionBox, DecisionById, asUser, resultOf, votersOf } from "../decision";
import { Empty, Head, Shown, childName } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { texts } from "../texts";
import { When } from "../time";

const OPEN = 200;
const ENDED = 100;
/** The number of cards that are shown at first, and added by each click. */
const CARDS = 24;

export default function Decisions({ id }: { id: string | undefined }) {
  const place = usePlace();
  const asked = useItems<Decision>(query("/decisions", { limit: OPEN }), { gap: 1000 });
  const ended = useItems<Decision>(query("/decisions", { state: "ended", limit: ENDED }), { gap: 1000 });
  const open = Number(place.query.get("open") ?? "");
  const hasCard = asked.data?.some((one) => one.decision_id === open) === true;
  const waits = asked.data === undefined && asked.problem === undefined;
  useEffect(() => {
    if (id !== undefined) go(`/decisions?open=${encodeURIComponent(id)}`, { replace: true });
  }, [id]);
  return (
    <>
      <Head title={texts.places.decisions} name={texts.places.decisions} sentence={texts.decisions.sentence} />
      <SplitPane
        name="decisions"
        side={
          open && !hasCard && !waits ? (
            <Detail key={open} title={texts.decisions.one} name={texts.decisions.one}>
              <DecisionById id={open} hasAsker />
            </Detail>
          ) : null
        }
      >
        <Shown of={asked} none={<Empty>{texts.decisions.none}</Empty>}>
          {(rows) => <Cards rows={rows} open={open} reload={asked.reload} />}
        </Shown>
        <Shown of={ended} none={null}>
          {(rows) => (
            <section class="decisions-ended">
              <h2>{texts.decisions.ended}</h2>
              <Table name="decisions-ended" label={texts.common.many(rows.length, "decision")} columns={COLUMNS} items={rows} keyOf={(one) => String(one.decision_id)} hrefOf={(one) => withQuery({ open: String(one.decision_id) })} current={(one) => one.decision_id === open} isShort />
            </section>
          )}
        </Shown>
      </SplitPane>
    </>
  );
}

interface CardsProps {
  rows: Decision[];
  /** The id in the address. */
  open: number;
  reload: () => void;
}

function Cards({ rows, open, reload }: CardsProps) {
  const [most, setMost] = useState(CARDS);
  const box = useRef<HTMLUListElement>(null);
  const at = rows.findIndex((one) => one.decision_id === open);
  const shown = rows.slice(0, Math.max(most, at + 1));
  useEffect(() => {
    const card = at >= 0 ? box.current?.children[at] : null;
    card?.scrollIntoView({ block: "nearest" });
    card?.querySelector<HTMLElement>(".answer :is(input, select), .actions button")?.focus({ preventScroll: true });
  }, [open, at >= 0]);
  function done(said: string): void {
    tell(said);
    reload();
    // The card disappears: keep the focus in the list.
    box.current?.focus({ preventScroll: true });
  }
  return (
    <>
      <ul ref={box} class="decision-cards" aria-label={texts.common.many(rows.length, "open decision")} tabIndex={-1}>
        {shown.map((one) => (
          <li key={one.decision_id} class={one.decision_id === open ? "panel is-current" : "panel"}>
            <DecisionBox decision={one} level={2} hasAsker send={asUser(one.decision_id)} done={done} />
          </li>
        ))}
      </ul>
      {rows.length > shown.length && (
        <p>
          <button type="button" onClick={() => setMost(shown.length + CARDS)}>
            {texts.why.showMore(rows.length - shown.length)}
          </button>
        </p>
      )}
    </>
  );
}

/** What was asked, with what it was about, which tells decisions of one task apart. */
const Asked = (one: Decision) => (
  <>
    {one.question}
    {one.details && <span class="soft about-decision"> {one.details.split("\n", 1)[0]}</span>}
  </>
);

/** The outcome; on a phone also by whom, and of which run. */
const Outcome = (one: Decision) => (
  <>
    {resultOf(one)}
    <span class="phone-only soft">
      {[" ", votersOf(one.votes), one.run_id].filter(Boolean).join(" · ")}
    </span>
  </>
);

const COLUMNS: Column<Decision>[] = [
  { id: "question", title: texts.decisions.question, width: "minmax(200px, 3fr)", phone: "title", isFixed: true, cell: Asked },
  { id: "outcome", title: texts.decisions.outcome, width: "minmax(100px, 1fr)", phone: "second", cell: Outcome },
  { id: "people", title: texts.decisions.people, width: "minmax(120px, 1.4fr)", isWideOnly: true, cell: (one) => <span title={votersOf(one.votes)}>{votersOf(one.votes)}</span> },
  { id: "asker", title: texts.decisions.askedBy, width: "minmax(140px, 1.6fr)", isWideOnly: true, isMono: true, cell: (one) => <AskedBy decision={one} isShort /> },
  { id: "task", title: texts.decisions.ofTask, width: "minmax(110px, 1fr)", isMono: true, isOptional: true, cell: (one) => childName(one.task_id, one.map_index, 0, one.map_label) },
  { id: "asked", title: texts.decisions.asked, width: "100px", isNumber: true, isOptional: true, cell: (one) => <When at={one.asked_at} /> },
  { id: "ended", title: texts.decisions.endedAt, width: "100px", isNumber: true, phone: "end", cell: (one) => <When at={one.ended_at} /> },
];
