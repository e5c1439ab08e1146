// One decision: the question, who may answer, and the form.

import "./styles/decisions.css";

import type { ComponentChildren } from "preact";
import { useId, useRef, useState } from "preact/hooks";

import { Problem, send } from "./api";
import { useData } from "./data";
import { type FormSchema, Input, fieldsOfForm, valuesOf } from "./form";
import { Json, Shown, childName, dagHref, runHref, taskHref } from "./parts";
import { sentenceCase, texts } from "./texts";
import { When, local, zoneName } from "./time";

export interface Decision {
  decision_id: number;
  dag_id: string;
  run_id: string;
  task_id: string;
  map_index: number;
  map_label?: string | null;
  question: string;
  details: string;
  form: FormSchema | null;
  assignees: string[];
  approvals: number;
  has_default: boolean;
  default: unknown;
  state: string;
  waits_for: string;
  asked_at: string;
  deadline: string | null;
  votes: { person: string; vote: string; at: string; by_link: boolean; comment?: string }[];
  answer: unknown;
  ended_at: string | null;
  may_answer: boolean;
  reason: string | null;
  not_by: string;
  /** Whether the caller may answer without being assigned. */
  as_admin: boolean;
  /** The tasks directly after the task that asks. */
  downstream: string[];
}

export interface Answered {
  votes: number;
  approvals: number;
  decided: boolean;
}

/** Sends the answer. The response says whether it has decided the question. */
export type Send = (answer: unknown, comment: string) => Promise<Answered>;

/** Return an answer as text, with the fields of a form by their labels. */
export function shownAnswer(answer: unknown, form?: FormSchema | null): string {
  if (typeof answer === "boolean") return answer ? texts.decisions.approved : texts.decisions.rejected;
  if (answer === null) return texts.common.none;
  if (typeof answer !== "object" || Array.isArray(answer)) return JSON.stringify(answer);
  return Object.entries(answer)
    .map(([name, value]) => `${form?.properties[name]?.title ?? name}: ${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(", ");
}

/** The result of a decision: "Approved", "By default: rejected", or "Timed out". */
export function resultOf({ state, answer, form }: Decision): string {
  const said = answer === null ? "" : shownAnswer(answer, form);
  if (state === "answered" && said !== "") return sentenceCase(said);
  return `${texts.decisions.states[state] ?? state}${said === "" ? "" : `: ${said}`}`;
}

/** The people who voted, each with the comment: `ada: “amount checked”`. */
export const votersOf = (votes: Decision["votes"]): string => votes.map(({ person, comment }) => person + (comment ? `: “${comment}”` : "")).join(", ");

/** How a decision ended and by whom, with their comments: `Approved by ada: “amount checked”`. */
export function outcomeOf(decision: Decision): string {
  const { state, answer, form, votes } = decision;
  if (state !== "answered") return resultOf(decision);
  const own = votes.filter((vote) => form || vote.vote === (answer === true ? "yes" : "no"));
  const people = votersOf(own.length > 0 ? own : votes);
  const what = form ? sentenceCase(texts.decisions.states["answered"]!) : resultOf(decision);
  return `${what}${people && ` ${texts.decisions.by} ${people}`}${form ? `. ${shownAnswer(answer, form)}` : ""}`;
}

/** The people that a decision waits for, and the approvals so far. */
function ForWhom({ decision }: { decision: Decision }) {
  const { assignees, approvals, votes, not_by } = decision;
  const parts = [assignees.join(", ") || texts.decisions.anOperator];
  if (approvals > 1) parts.push(texts.decisions.approvals(votes.length, approvals));
  if (not_by) parts.push(texts.decisions.notStarter);
  return (
    <>
      {parts.join(", ")}
      {decision.as_admin && <span class="soft"> ({texts.decisions.asAdmin})</span>}
    </>
  );
}

/** Sends the answer as the user who is signed in. */
export const asUser = (id: number): Send => (answer, comment) => send("POST", `/decisions/${id}/answer`, { answer, ...commented(comment) });

/** The field of a comment, if there is one. */
export const commented = (comment: string): { comment?: string } => (comment.trim() === "" ? {} : { comment });

/** The decision with this number, wherever the page shows it. */
export function DecisionById({ id, hasAsker }: { id: number; hasAsker?: boolean }) {
  const shown = useData<Decision>(`/decisions/${id}`, { gap: 500 });
  return <Shown of={shown}>{(decision) => <DecisionBox decision={decision} hasAsker={hasAsker} send={asUser(id)} done={shown.reload} />}</Shown>;
}

/** The DAG, the run and the task of a decision. */
export function AskedBy({ decision, isShort }: { decision: Decision; isShort?: boolean }) {
  const { dag_id: dag, run_id: run, task_id: task, map_index: map, map_label: label } = decision;
  return (
    <>
      {!isShort && (
        <>
          <a href={dagHref(dag)}>{dag}</a>
          <span class="soft" aria-hidden="true"> / </span>
        </>
      )}
      <a href={runHref(run)}>{run}</a>
      <span class="soft" aria-hidden="true"> / </span>
      <a href={taskHref(run, task, map)}>{childName(task, map, 0, label)}</a>
    </>
  );
}

interface BoxProps {
  decision: Decision;
  send: Send;
  /** Called with the outcome of an answer. */
  done?: (said: string) => void;
  /** Whether to name the DAG, the run and the task; the pane of a task shows them itself. */
  hasAsker?: boolean;
  /** The level of the heading. */
  level?: 2 | 3;
}

export function DecisionBox({ decision, send: give, done, hasAsker, level = 3 }: BoxProps) {
  const [said, setSaid] = useState("");
  const isOpen = decision.state === "open";
  async function answer(given: unknown, comment: string): Promise<void> {
    const found = await give(given, comment);
    const text = found.decided ? texts.decisions.decided : texts.decisions.counted(found.votes, found.approvals);
    setSaid(text);
    done?.(text);
  }
  const Title = level === 2 ? "h2" : "h3";
  return (
    <div class="decision" role="group" aria-label={`${texts.decisions.one}: ${decision.question}`}>
      {hasAsker && (
        <p class="asker mono break">
          <AskedBy decision={decision} />
        </p>
      )}
      <Title class="break">{decision.question}</Title>
      {decision.details && <p class="details break">{decision.details}</p>}
      <Facts decision={decision} isOpen={isOpen} />
      {!isOpen && decision.answer !== null && (typeof decision.answer === "object" ? <Json value={decision.answer} /> : <p>{sentenceCase(shownAnswer(decision.answer))}</p>)}
      {said ? (
        <p class="said" role="status">
          {said}
        </p>
      ) : isOpen && decision.may_answer ? (
        <Answer decision={decision} give={answer} />
      ) : (
        isOpen && <p class="soft">{texts.decisions.notYours(decision.reason ?? "")}</p>
      )}
    </div>
  );
}

/** The assignees and the deadline of an open decision, the outcome of an ended one, and the votes. */
function Facts({ decision, isOpen }: { decision: Decision; isOpen: boolean }) {
  return (
    <dl class="facts">
      {isOpen ? (
        <>
          <dt>{texts.decisions.for}</dt>
          <dd>
            <ForWhom decision={decision} />
          </dd>
        </>
      ) : (
        <>
          <dt>{texts.decisions.state}</dt>
          <dd>{texts.decisions.states[decision.state] ?? decision.state}</dd>
        </>
      )}
      <dt>{texts.decisions.asked}</dt>
      <dd>
        <When at={decision.asked_at} />
      </dd>
      {isOpen && decision.downstream.length > 0 && (
        <>
          <dt>{decision.form ? texts.decisions.next : texts.decisions.ifApproved}</dt>
          <dd class="mono break">{decision.downstream.join(", ")}</dd>
        </>
      )}
      {decision.deadline && isOpen && (
        <>
          <dt>{texts.decisions.deadline}</dt>
          <dd>
            <When at={decision.deadline} />
            <span class="then break">
              {texts.decisions.undecided(`${local(decision.deadline).slice(0, 16)} ${zoneName()}`, decision.has_default ? shownAnswer(decision.default, decision.form) : texts.decisions.fails)}
            </span>
          </dd>
        </>
      )}
      {decision.ended_at && (
        <>
          <dt>{texts.decisions.endedAt}</dt>
          <dd>
            <When at={decision.ended_at} />
          </dd>
        </>
      )}
      {decision.votes.map((vote) => (
        <>
          <dt>{vote.person}</dt>
          <dd>
            {texts.decisions.votes[vote.vote] ?? vote.vote}
            {vote.by_link && `, ${texts.decisions.byLink}`} <When at={vote.at} />
            {vote.comment && <q class="comment break">{vote.comment}</q>}
          </dd>
        </>
      ))}
    </dl>
  );
}

interface AnswerProps {
  decision: Decision;
  give: (answer: unknown, comment: string) => Promise<void>;
}

/** What is said about an answer, and stored with it. */
function Comment({ onValue, wrong }: { onValue: (text: string) => void; wrong?: string }) {
  const hint = useId();
  return (
    <label class="comment-field">
      <span>{texts.decisions.comment}</span>
      <input type="text" maxLength={COMMENT_LENGTH} placeholder={texts.decisions.commentHint} aria-invalid={wrong ? true : undefined} aria-describedby={wrong ? hint : undefined} onInput={(event) => onValue(event.currentTarget.value)} />
      {wrong && (
        <small id={hint} class="wrong" role="alert">
          {wrong}
        </small>
      )}
    </label>
  );
}

const COMMENT_LENGTH = 500;

function Answer({ decision, give }: AnswerProps) {
  const comment = useRef("");
  const [isBusy, setBusy] = useState(false);
  const [wrong, setWrong] = useState<Record<string, string>>({});
  async function submit(make: () => unknown): Promise<void> {
    setBusy(true);
    setWrong({});
    try {
      await give(make(), comment.current);
    } catch (error) {
      const fields = error instanceof Problem ? error.fields : {};
      setWrong(Object.keys(fields).length > 0 ? fields : { "": error instanceof Error ? error.message : String(error) });
      setBusy(false);
    }
  }
  const general = wrong[""];
  const why = <Comment onValue={(text) => (comment.current = text)} wrong={wrong["comment"]} />;
  return (
    <>
      {!decision.form && why}
      {decision.form ? (
        <FormAnswer form={decision.form} isBusy={isBusy} wrong={wrong} submit={submit} comment={why} />
      ) : (
        <div class="actions">
          <button type="button" class="main" disabled={isBusy} onClick={() => submit(() => true)}>
            {texts.decisions.approve}
          </button>
          <button type="button" disabled={isBusy} onClick={() => submit(() => false)}>
            {texts.decisions.reject}
          </button>
        </div>
      )}
      {general && (
        <p class="wrong" role="alert">
          {general}
        </p>
      )}
    </>
  );
}

interface FormProps {
  form: FormSchema;
  isBusy: boolean;
  wrong: Record<string, string>;
  submit: (make: () => unknown) => Promise<void>;
  comment: ComponentChildren;
}

function FormAnswer({ form, isBusy, wrong, submit, comment }: FormProps) {
  const [fields] = useState(() => fieldsOfForm(form));
  const [given] = useState<Record<string, string>>({});
  return (
    <form
      class="answer"
      onSubmit={(event) => {
        event.preventDefault();
        void submit(() => valuesOf(fields, given));
      }}
    >
      {fields.map((field) => {
        const hint = `decision-${field.name}`;
        return (
          <label key={field.name}>
            <span>{field.schema.title ?? field.name}</span>
            <Input field={field} onValue={(text) => (given[field.name] = text)} describedBy={wrong[field.name] || field.schema.description ? hint : undefined} isWrong={wrong[field.name] !== undefined} />
            {wrong[field.name] ? (
              <small id={hint} class="wrong" role="alert">
                {wrong[field.name]}
              </small>
            ) : (
              field.schema.description && (
                <small id={hint} class="soft">
                  {field.schema.description}
                </small>
              )
            )}
          </label>
        );
      })}
      {comment}
      <div class="actions">
        <button type="submit" class="main" disabled={isBusy}>
          {texts.decisions.decide}
        </button>
      </div>
    </form>
  );
}
