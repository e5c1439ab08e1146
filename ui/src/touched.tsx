// The preview of a clear or a change of state: the tasks that would change.

import { useEffect, useState } from "preact/hooks";

import { reason } from "./dialog";
import { sum } from "./states";
import "./styles/touched.css";
import { count, stateName, texts } from "./texts";

export interface Touched {
  cleared?: number;
  marked?: number;
  tasks: { task_id: string; is_marked: boolean; states: Record<string, number> }[];
  /** Number of further tasks that are not named. */
  more: number;
  upstream_failed: string[];
}

interface PreviewProps {
  /** Requests the preview from the daemon, which changes nothing. */
  look: () => Promise<Touched>;
  /** A text that changes with the request. */
  asked: string;
  /** The name of the state that is set. */
  state?: string;
}

export function TouchedTasks({ look, asked, state }: PreviewProps) {
  const [found, setFound] = useState<Touched | null>(null);
  const [wrong, setWrong] = useState("");
  useEffect(() => {
    let isCurrent = true;
    look()
      .then((touched) => isCurrent && (setFound(touched), setWrong("")))
      .catch((error: unknown) => isCurrent && (setFound(null), setWrong(reason(error))));
    return () => {
      isCurrent = false;
    };
  }, [asked]);
  if (wrong) return <p class="wrong">{wrong}</p>;
  if (found === null) return <p class="soft">{texts.common.loading}</p>;
  const [marked, cleared] = [found.tasks.filter((task) => task.is_marked), found.tasks.filter((task) => !task.is_marked)];
  return (
    <div class="touched" role="status">
      {found.tasks.length === 0 && <p>{texts.touched.none}</p>}
      <Tasks title={texts.touched.marked(size(marked), state ?? "")} of={marked} />
      <Tasks title={state === undefined ? texts.touched.cleared(size(cleared)) : texts.touched.reset(size(cleared))} of={cleared} />
      {found.more > 0 && <p class="soft">{texts.touched.more(found.more)}</p>}
    </div>
  );
}

const size = (tasks: Touched["tasks"]): number => tasks.reduce((all, task) => all + sum(task.states), 0);

function Tasks({ title, of }: { title: string; of: Touched["tasks"] }) {
  if (of.length === 0) return null;
  return (
    <>
      <p>{title}</p>
      <ul tabIndex={0} aria-label={title}>
        {of.map((task) => (
          <li key={task.task_id}>
            <span class="name">{task.task_id}</span>
            <span class="states">
              {Object.entries(task.states)
                .map(([name, some]) => (sum(task.states) === 1 ? stateName(name) : `${count(some)} ${stateName(name)}`))
                .join(", ")}
            </span>
          </li>
        ))}
      </ul>
    </>
  );
}
