// The schedule of a DAG as a calendar, with the days on which runs were late, missed or failed.

import { enc, query } from "../api";
import { ofDag, useData } from "../data";
import { Panel, number } from "../parts";
import "../styles/calendar.css";
import { texts } from "../texts";
import { DAY_MS, HOUR_MS, instant, local, millis, zoneName } from "../time";

interface FireDay {
  start: string;
  fired: number;
  failed: number;
  late: number;
  missed: number;
}

const WEEKS = 5;

/** Return the dates of a number of whole weeks, the last of which contains a day. Weeks begin on Monday. */
export function weeksUpTo(today: string, weeks: number): string[][] {
  const at = Date.parse(`${today}T00:00:00Z`);
  const monday = at - ((new Date(at).getUTCDay() + 6) % 7) * DAY_MS;
  const dateOf = (week: number, day: number): string => new Date(monday + (7 * (week + 1 - weeks) + day) * DAY_MS).toISOString().slice(0, 10);
  return Array.from({ length: weeks }, (_, week) => Array.from({ length: 7 }, (_, day) => dateOf(week, day)));
}

export const toneOf = (day: FireDay): string => (day.missed ? "is-missed" : day.failed ? "is-failed" : day.late ? "is-late" : "is-done");

export function ScheduleCalendar({ id }: { id: string }) {
  const now = Math.floor(Date.now() / HOUR_MS) * HOUR_MS;
  const from = instant(now - 7 * WEEKS * DAY_MS);
  const found = useData<{ items: FireDay[]; more: boolean }>(query(`/history/dags/${enc(id)}/schedule`, { from, zone: zoneName() }), { on: ofDag(id), gap: 5000 });
  if (!found.data?.items.length) return null;
  const days = new Map(found.data.items.map((day) => [local(day.start).slice(0, 10), day]));
  const today = local(instant(Date.now())).slice(0, 10);
  return (
    <Panel title={texts.calendar.title} actions={found.data.more && <span class="soft">{texts.calendar.more}</span>}>
      <table class="calendar">
        <caption class="offscreen">{texts.calendar.caption}</caption>
        <thead>
          <tr>
            {texts.calendar.days.map((day) => (
              <th key={day} scope="col">
                {day}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {weeksUpTo(today, WEEKS).map((week) => (
            <tr key={week[0]}>
              {week.map((date) => (
                <td key={date}>
                  <Day id={id} date={date} day={days.get(date)} />
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

function Day({ id, date, day }: { id: string; date: string; day: FireDay | undefined }) {
  const name = (
    <span class="soft" aria-hidden={day !== undefined}>
      <i>{date.slice(5, 8)}</i>
      {date.slice(8)}
    </span>
  );
  if (!day) return <span class="calendar-day">{name}</span>;
  const at = millis(day.start)!;
  return (
    <a class={`calendar-day ${toneOf(day)}`} href={query("/runs", { dag: id, cause: "schedule", from: instant(at), to: instant(at + DAY_MS) })} title={texts.calendar.day(date, day)}>
      <span class="offscreen">{texts.calendar.day(date, day)}</span>
      {name}
      <b aria-hidden>{number(day.fired)}</b>
      <small aria-hidden>{texts.calendar.short(day)}</small>
    </a>
  );
}
