// What needs a person: each row has a title, the object, the full reason, and the possible actions.

import type { ComponentChildren } from "preact";

import { retry } from "../actions";
import { useIsPhone } from "../components/table_settings";
import type { Decision } from "../decision";
import { Empty, errorLine, runHref } from "../parts";
import { Glyph } from "../states";
import { sentenceCase, stateName, texts } from "../texts";
import { When } from "../time";
import type { Attention, HomeData, Overview } from "../types";

/** Decisions, then broken files, then failures, newest first. A full pool is not listed, because it works. */
export function AttentionList({ home: { attention: groups, decisions: asked, import_errors: broken }, now }: { home: HomeData; now: Overview | undefined }) {
  const { decisions = 0, import_errors: errors = 0 } = now ?? {};
  if (groups.length + decisions + errors === 0) return <Empty>{texts.home.noAttention}</Empty>;
  return (
    <ul class="rows">
      {asked.map((one) => (
        <DecisionRow key={one.decision_id} decision={one} />
      ))}
      {asked.length > 0 && decisions > asked.length && <Row state="waiting" href="/decisions" title={texts.home.moreDecisions(decisions - asked.length)} />}
      {broken.map((one) => (
        <Row key={one.file} state="failed" href="/errors" title={one.file} of={texts.dags.broken} reason={lastLine(one.message)} act={<Open href="/errors" of={one.file} />} />
      ))}
      {broken.length > 0 && errors > broken.length && <Row state="failed" href="/errors" title={texts.home.moreErrors(errors - broken.length)} />}
      {groups.map((group) => (
        <FailedRow key={group.dag_id} group={group} />
      ))}
    </ul>
  );
}

interface RowProps {
  state: string;
  href: string;
  title: string;
  /** The run, or the kind of object. */
  of?: ComponentChildren;
  reason?: string;
  at?: string | null;
  /** How it ended. */
  past?: string;
  act?: ComponentChildren;
}

function Row({ state, href, title, of, reason, at, past, act }: RowProps) {
  return (
    <li>
      <div class="home-row is-attention">
        <Glyph state={state} />
        <span class="home-title">
          <a class="row-link" data-row href={href} title={title}>
            {title}
          </a>
          <span class="soft">{of}</span>
        </span>
        <span class="end">
          {at && (
            <span>
              {past} <When at={at} />
            </span>
          )}
          {act}
        </span>
        {reason && <span class="second">{reason}</span>}
      </div>
    </li>
  );
}

function Open({ href, of }: { href: string; of: string }) {
  return (
    <a class="button small" href={href} aria-label={`${texts.home.open} ${of}`}>
      {texts.home.open}
    </a>
  );
}

function DecisionRow({ decision }: { decision: Decision }) {
  const href = `/decisions?open=${decision.decision_id}`;
  const act = decision.may_answer ? (
    <a class="button small" href={href}>
      {texts.actions.decide}
    </a>
  ) : undefined;
  return <Row state="waiting" href={href} title={decision.question} of={<span class="mono">{decision.run_id}</span>} reason={sentenceCase(decision.waits_for)} at={decision.asked_at} past={texts.home.askedAt} act={act} />;
}

/** Failed runs of a DAG. The row links to all of them, and the id in it to the last one. */
function FailedRow({ group: { dag_id: dag, count, state, last, error, is_recovered: isRecovered } }: { group: Attention }) {
  const isPhone = useIsPhone();
  const href = runHref(last.run_id);
  const isOne = count === 1;
  const what = `${isOne ? stateName(state) : texts.home.runsFailed(count)}${isRecovered ? `, ${texts.home.recovered}` : ""}`;
  return (
    <Row
      state={isRecovered ? "success" : state}
      href={isOne ? href : `/runs?dag=${encodeURIComponent(dag)}&state=${state}&from=-24h`}
      title={dag}
      of={
        <>
          {what}{" "}
          <a class="mono home-last" href={href}>
            {last.run_id}
          </a>
        </>
      }
      reason={error ? errorLine(error) : undefined}
      at={last.ended_at}
      past={texts.home.failedAt}
      act={
        isRecovered ? undefined : (
          <button type="button" class="small" data-needs="operator" aria-label={`${texts.actions.retryFailed}: ${last.run_id}`} title={texts.actions.retryFailed} onClick={() => void retry({ run: last.run_id }, true)}>
            {isPhone ? texts.actions.retry : texts.actions.retryFailed}
          </button>
        )
      }
    />
  );
}

/** Return the first line of an error, or the last line of a traceback, which has the exception. */
function lastLine(text: string): string {
  const lines = text.trim().split("\n");
  return lines[0]!.startsWith("Traceback") ? lines[lines.length - 1]! : lines[0]!;
}
