// The longest waits, one row per task: a fan-out with thousands of waiting children is one row.

import { Empty, childrenHref, taskHref } from "./parts";
import { Glyph } from "./states";
import "./styles/why.css";
import { texts } from "./texts";
import { When } from "./time";
import type { Overview } from "./types";

export function Waiting({ rows }: { rows: Overview["waiting_longest"] }) {
  if (rows.length === 0) return <Empty>{texts.home.nothingWaits}</Empty>;
  return (
    <ul class="rows waits">
      {rows.map((row) => (
        <li key={`${row.run_id} ${row.task_id} ${row.state}`}>
          <a
            class="home-row"
            data-row
            href={row.count > 1 ? childrenHref(row.run_id, row.task_id, row.state) : taskHref(row.run_id, row.task_id, row.map_index, row.round)}
          >
            <Glyph state={row.state} />
            <span class="why-text">{row.text}</span>
            <span class="end">
              <When at={row.since} />
            </span>
            <span class="second">
              <span class="cut mono">{row.run_id}</span>
            </span>
          </a>
        </li>
      ))}
    </ul>
  );
}
