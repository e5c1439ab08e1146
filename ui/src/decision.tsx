// One decision: the question, who may answer, and the form.

import "./styles/decisions.css";

import { useState } from "preact/hooks";

import { Problem, send } from "./api";
import { useData } from "./data";
import { type FormSchema, Input, fieldsOfForm, valuesOf } from "./form";
import { Json, Shown } from "./parts";
import { texts } from "./texts";
import { When } from "./time";

export interface Decision {
  decision_id: number;
  dag_id: string;
  run_id: string;
  task_id: string;
  map_index: number;
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
  votes: { person: string; vote: string; at: string; by_link: boolean }[];
  answer: unknown;
  ended_at: string | null;
  may_answer: boolean;
  reason: string | null;
}

export interface Answered {
  votes: number;
  approvals: number;
  decided: boolean;
}

/** Sends the answer; the daemon says whether it has decided. */
export type Send = (answer: unknown) => Promise<Answered>;

export const shownAnswer = (answer: unknown): string =>
  answer === true ? texts.decisions.yes : answer === false ? texts.decisions.no : answer === null ? texts.common.none : JSON.stringify(answer);

/** The decision with this number, wherever the page shows it. */
export function DecisionById({ id }: { id: number }) {
  const shown = useData<Decision>(`/decisions/${id}`, { gap: 500 });
  return <Shown of={shown}>{(decision) => <DecisionBox decision={decision} send={(answer) => send("POST", `/decisions/${id}/answer`, { answer })} done={shown.reload} />}</Shown>;
}

export function DecisionBox({ decision, send: give, done }: { decision: Decision; send: Send; done?: () => void }) {
  const [said, setSaid] = useState("");
  const isOpen = decision.state === "open";
  async function answer(given: unknown): Promise<void> {
    const found = await give(given);
    setSaid(found.decided ? texts.decisions.decided : texts.decisions.counted(found.votes, found.approvals));
    done?.();
  }
  return (
    <section class="decision" aria-label={texts.decisions.one}>
      <h3 class="break">{decision.question}</h3>
      {decision.details && <p class="details break">{decision.details}</p>}
      <dl class="facts">
        <dt>{texts.decisions.state}</dt>
        <dd>{isOpen ? decision.waits_for : texts.decisions.states[decision.state] ?? decision.state}</dd>
        {decision.deadline && isOpen && (
          <>
            <dt>{texts.decisions.deadline}</dt>
            <dd>
              <When at={decision.deadline} />
              {decision.has_default && `, ${texts.decisions.then(shownAnswer(decision.default))}`}
            </dd>
          </>
        )}
        {decision.votes.map((vote) => (
          <>
            <dt>{vote.person}</dt>
            <dd>
              {texts.decisions.votes[vote.vote] ?? vote.vote}
              {vote.by_link && `, ${texts.decisions.byLink}`} <When at={vote.at} />
            </dd>
          </>
        ))}
      </dl>
      {!isOpen && decision.answer !== null && (typeof decision.answer === "object" ? <Json value={decision.answer} /> : <p>{shownAnswer(decision.answer)}</p>)}
      {said ? (
        <p class="said" role="status">
          {said}
        </p>
      ) : isOpen && decision.may_answer ? (
        <Answer decision={decision} give={answer} />
      ) : (
        isOpen && <p class="soft">{texts.decisions.notYours(decision.reason ?? "")}</p>
      )}
    </section>
  );
}

interface AnswerProps {
  decision: Decision;
  give: (answer: unknown) => Promise<void>;
}

function Answer({ decision, give }: AnswerProps) {
  const [isBusy, setBusy] = useState(false);
  const [wrong, setWrong] = useState<Record<string, string>>({});
  async function submit(make: () => unknown): Promise<void> {
    setBusy(true);
    setWrong({});
    try {
      await give(make());
    } catch (error) {
      const fields = error instanceof Problem ? error.fields : {};
      setWrong(Object.keys(fields).length > 0 ? fields : { "": error instanceof Error ? error.message : String(error) });
      setBusy(false);
    }
  }
  const general = wrong[""];
  return (
    <>
      {decision.form ? (
        <FormAnswer form={decision.form} isBusy={isBusy} wrong={wrong} submit={submit} />
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
}

function FormAnswer({ form, isBusy, wrong, submit }: FormProps) {
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
      <div class="actions">
        <button type="submit" class="main" disabled={isBusy}>
          {texts.decisions.answer}
        </button>
      </div>
    </form>
  );
}
