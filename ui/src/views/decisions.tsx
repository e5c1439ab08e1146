// Decisions requested by tasks, newest first.

import { useEffect } from "preact/hooks";

import { query } from "../api";
import { Detail } from "../components/detail";
import { SplitPane } from "../components/split";
import { type Column, Table } from "../components/table";
import { useItems } from "../data";
import { type Decision, DecisionById, shownAnswer } from "../decision";
import { Empty, Head, Shown, childName, taskHref } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { sentenceCase, texts } from "../texts";
import { Next, When } from "../time";

export function Decisions({ id }: { id: string | undefined }) {
  const place = usePlace();
  const isAll = place.query.get("state") === "all";
  const found = useItems<Decision>(query("/decisions", { state: isAll ? "all" : null, limit: 200 }), { gap: 1000 });
  const open = Number(place.query.get("open") ?? "");
  const shown = found.data?.find((one) => one.decision_id === open);
  useEffect(() => {
    if (id !== undefined) go(`/decisions?open=${encodeURIComponent(id)}`, { replace: true });
  }, [id]);
  return (
    <>
      <Head title={texts.places.decisions} name={texts.places.decisions} sentence={texts.decisions.sentence}>
        <a class="button" href={isAll ? "/decisions" : "/decisions?state=all"}>
          {isAll ? texts.decisions.onlyOpen : texts.decisions.all}
        </a>
      </Head>
      <SplitPane
        name="decisions"
        side={
          open ? (
            <Detail key={open} title={texts.decisions.one} name={texts.decisions.one}>
              <DecisionById id={open} />
              {shown && (
                <p>
                  <a href={taskHref(shown.run_id, shown.task_id, shown.map_index)}>{texts.decisions.task(childName(shown.task_id, shown.map_index, 0), shown.run_id)}</a>
                </p>
              )}
            </Detail>
          ) : null
        }
      >
        <Shown of={found} none={<Empty>{isAll ? texts.decisions.noneEver : texts.decisions.none}</Empty>}>
          {(rows) => (
            <Table name="decisions" label={texts.common.many(rows.length, "decision")} columns={COLUMNS} items={rows} keyOf={(one) => String(one.decision_id)} hrefOf={(one) => withQuery({ open: String(one.decision_id) })} current={(one) => one.decision_id === open} isShort />
          )}
        </Shown>
      </SplitPane>
    </>
  );
}

const COLUMNS: Column<Decision>[] = [
  { id: "question", title: texts.decisions.question, width: "minmax(160px, 2fr)", phone: "title", isFixed: true, cell: (one) => one.question },
  { id: "waits", title: texts.decisions.state, width: "minmax(120px, 1.4fr)", phone: "second", cell: (one) => (one.state === "open" ? sentenceCase(one.waits_for) : `${texts.decisions.states[one.state] ?? one.state}${one.answer === null ? "" : `: ${shownAnswer(one.answer)}`}`) },
  { id: "task", title: texts.decisions.ofTask, width: "minmax(110px, 1fr)", isMono: true, isWideOnly: true, cell: (one) => childName(one.task_id, one.map_index, 0) },
  { id: "run", title: texts.decisions.run, width: "minmax(110px, 1.2fr)", isMono: true, isWideOnly: true, cell: (one) => one.run_id },
  { id: "asked", title: texts.decisions.asked, width: "110px", isNumber: true, phone: "end", cell: (one) => <When at={one.asked_at} /> },
  { id: "deadline", title: texts.decisions.deadline, width: "110px", isNumber: true, phone: "second-end", cell: (one) => (one.state === "open" && one.deadline ? <Next at={one.deadline} /> : "") },
  {
    id: "answer",
    title: "",
    width: "84px",
    isFixed: true,
    isInteractive: true,
    cell: (one) =>
      one.state === "open" && (
        <a class="button small" data-needs="operator" href={withQuery({ open: String(one.decision_id) })} aria-label={`${texts.decisions.answer}: ${one.question}`}>
          {texts.decisions.answer}
        </a>
      ),
  },
];
