// The page of a signed link: one decision and its form, without a session.
// Opening it decides nothing: only the button sends an answer.

import { useEffect, useState } from "preact/hooks";

import { Problem, send } from "../api";
import { Skeleton } from "../components/skeleton";
import { type Decision, DecisionBox, commented } from "../decision";
import { texts } from "../texts";

/** Return the token. It is in the fragment, so that no server or proxy logs it. */
const token = (): string => window.location.hash.slice(1);

export default function Decide() {
  const [decision, setDecision] = useState<Decision | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    document.title = `${texts.decisions.one} · ${texts.product}`;
    send<Decision>("POST", "/decisions/link", { token: token() }).then(setDecision, (error) => setProblem(error instanceof Problem ? error.message : String(error)));
  }, []);
  return (
    <main class="decide">
      <h1>{texts.product}</h1>
      {problem ? (
        <>
          <p role="alert">{problem}</p>
          <p>
            <a href="/decisions">{texts.decisions.logIn}</a>
          </p>
        </>
      ) : decision === null ? (
        <Skeleton rows={3} />
      ) : (
        <>
          <p class="soft break">{texts.decisions.from(decision.task_id, decision.dag_id)}</p>
          <DecisionBox decision={decision} send={(answer, comment) => send("POST", "/decisions/link/answer", { token: token(), answer, ...commented(comment) })} />
        </>
      )}
    </main>
  );
}
