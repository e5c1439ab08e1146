// The longest waits, one row per task: a fan-out with thousands of waiting children is one row.

import { enc } from "./api";
import { Empty, runHref, taskHref } from "./parts";
import { Glyph } from "./states";
import "./styles/why.css";
import { When } from "./time";
import type { Overview } from "./types";

export function Waiting({ rows }: { rows: Overview["waiting_longest"] }) {
  if (rows.length === 0) return <Empty>Nothing waits.</Empty>;
  return (
    <ul class="rows waits">
      {rows.map((row) => (
        <li key={`${row.run_id} ${row.task_id} ${row.state}`}>
          <a
            class="row"
            data-row
            href={row.count > 1 ? `${runHref(row.run_id)}/tasks?of=${enc(row.task_id)}&state=${row.state}` : taskHref(row.run_id, row.task_id, row.map_index, row.round)}
          >
            <Glyph state={row.state} />
            <span class="grow why-text">{row.text}</span>
            <span class="c-run cut soft narrow-hide" title={row.run_id}>
              {row.run_id}
            </span>
            <span class="num soft">
              <When at={row.since} />
            </span>
          </a>
        </li>
      ))}
    </ul>
  );
}
