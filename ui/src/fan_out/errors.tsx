// Errors of a mapped task, grouped by similarity. A group can be cleared together.

import { texts as actionTexts } from "../action_texts";
import { Check, leftText } from "../actions";
import { enc, get, newKey, send } from "../api";
import { ask } from "../dialog";
import { childName } from "../parts";
import { named } from "../states";
import { texts } from "../texts";
import { numbersOf } from "./cells";
import { fanOut } from "./texts";

export interface ErrorGroup {
  type: string;
  reason: string;
  shape: string;
  message: string;
  count: number;
  /** The children by their map index, in ranges: "3,7-9". */
  children: string;
}

export interface Errors {
  failed: number;
  grouped: number;
  more: number;
  items: ErrorGroup[];
}

interface ErrorGroupsProps {
  run: string;
  task: string;
  errors: Errors;
  canClear: boolean;
  onMark: (group: ErrorGroup | null) => void;
  hrefOf: (child: number) => string;
}

export function ErrorGroups({ run, task, errors, canClear, onMark, hrefOf }: ErrorGroupsProps) {
  return (
    <section class="error-groups">
      <h3>{fanOut.errors}</h3>
      {errors.grouped < errors.failed && <p class="soft small">{fanOut.first(errors.grouped, errors.failed)}</p>}
      <ul>
        {errors.items.map((group) => (
          <li
            key={`${group.type} ${group.reason} ${group.shape}`}
            onPointerEnter={() => onMark(group)}
            onPointerLeave={() => onMark(null)}
            onFocusIn={() => onMark(group)}
            onFocusOut={() => onMark(null)}
          >
            <p>
              <strong>{fanOut.times(group.count)}</strong> <b>{group.type || named(group.reason)}</b>: {group.shape}
            </p>
            <div>
              <a href={hrefOf(Number.parseInt(group.children))}>{fanOut.example}</a>
              {canClear && (
                <button type="button" data-needs="operator" title={fanOut.clearMeaning} onClick={() => clearGroup(run, task, group)}>
                  {fanOut.clear}
                </button>
              )}
            </div>
          </li>
        ))}
      </ul>
      {errors.more > 0 && <p class="soft small">{fanOut.more(errors.more)}</p>}
    </section>
  );
}

const LISTED = 200;

function clearGroup(run: string, task: string, group: ErrorGroup): void {
  const children = [...numbersOf(group.children)];
  const wanted = { downstream: true };
  const key = newKey();
  ask({
    title: fanOut.clearTitle(children.length, task),
    verb: texts.actions.retry,
    isGrave: true,
    body: (
      <>
        <p>
          <b>{group.type || group.reason}</b>: {group.shape}
        </p>
        <p>{fanOut.clearBody}</p>
        <div class="preview">
          <ul tabIndex={0} aria-label={fanOut.children}>
            {children.slice(0, LISTED).map((child) => (
              <li key={child}>{childName(task, child, 0)}</li>
            ))}
            {children.length > LISTED && <li>{texts.common.many(children.length - LISTED, "more child", "more children")}</li>}
          </ul>
        </div>
        <Check label={actionTexts.clear.downstream} isOn onOn={(on) => (wanted.downstream = on)} />
      </>
    ),
    act: async () => {
      // Children that have been cleared in the meantime are not cleared again.
      const now = await get<Errors>(`/runs/${enc(run)}/tasks/${enc(task)}/children/errors`);
      const failed = numbersOf(now.items.map((one) => one.children).join(","));
      const left = children.filter((child) => failed.has(child));
      if (left.length === 0) return fanOut.noneLeft;
      const body = { tasks: [task], map_indexes: left, downstream: wanted.downstream };
      const answer = await send<{ cleared: number; state: string; upstream_failed: string[] }>("POST", `/runs/${enc(run)}/clear`, body, key);
      return fanOut.cleared(answer.cleared, answer.state) + leftText(answer);
    },
  });
}
