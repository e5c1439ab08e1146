// Common schedules in words. Other schedules are shown as written.

import { sentenceCase, texts } from "./texts";
import { span } from "./time";

interface Scheduled {
  schedule: string | null;
  timezone: string | null;
}

/** Whether a schedule fires about once a day or less: rare runs need a longer period to show anything. */
export const isRare = ({ schedule }: Pick<Scheduled, "schedule">): boolean => schedule !== null && (/^@(daily|midnight|weekly|monthly|yearly|annually)$/.test(schedule) || /^\d{1,2} \d{1,2} /.test(schedule));

const words = texts.schedules.words;
const NUMBER = /^\d{1,2}$/;
const NUMBERS = /^\d{1,2}(,\d{1,2})*$/;

const two = (text: string): string => text.padStart(2, "0");

/** Return "Weekdays at 03:30" for "30 3 * * 1-5"; null for schedules without a short name. */
function cronWords(cron: string): string | null {
  const [minute, hour, day, month, weekday, more] = cron.trim().split(/\s+/);
  if (minute === undefined || hour === undefined || day === undefined || weekday === undefined || more !== undefined || month !== "*") return null;
  const isEachDay = day === "*" && weekday === "*";
  const everyMinutes = /^\*\/(\d+)$/.exec(minute)?.[1];
  if (isEachDay && hour === "*" && (minute === "*" || everyMinutes)) return words.minutes(Number(everyMinutes ?? 1));
  if (!NUMBER.test(minute)) return null;
  const everyHours = /^\*\/(\d+)$/.exec(hour)?.[1];
  if (isEachDay && (hour === "*" || everyHours)) return words.hours(Number(everyHours ?? 1), minute === "0" ? "" : two(minute));
  if (!NUMBERS.test(hour)) return null;
  const at = hour.split(",").map((one) => `${two(one)}:${two(minute)}`);
  if (isEachDay) return words.daily(at);
  if (weekday === "*") return NUMBER.test(day) ? words.monthly(day, at) : null;
  const days = day === "*" ? weekdays(weekday) : null;
  return days === null ? null : words.weekly(days, at);
}

function weekdays(text: string): string | null {
  if (text === "1-5" || text.toLowerCase() === "mon-fri") return words.weekdays;
  const found = text.split(",").map((one) => (/^[0-7]$/.test(one) ? words.days[Number(one) % 7] : words.days.find((name) => name.toLowerCase() === one.toLowerCase())));
  return found.every((one) => one !== undefined) ? found.join(", ") : null;
}

/** Return "Every 1d 30m" for "every 1 day, 0:30:00". */
function intervalWords(text: string): string | null {
  const found = /^every (?:(\d+) days?, )?(\d+):(\d\d):(\d\d)$/.exec(text);
  if (!found) return null;
  const [days = 0, hours = 0, minutes = 0, seconds = 0] = found.slice(1).map((part) => Number(part ?? 0));
  return words.interval(span((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000));
}

const EVENT = /^(?:each )?EventTrigger\((?:name=)?'([^']*)'(?:, key='([^']*)')?\)$/;

/** Return the name of an event, and its key if there is one; null for other triggers. */
function eventOf(text: string): string | null {
  const [, name, key] = EVENT.exec(text) ?? [];
  return name === undefined ? null : key === undefined ? name : `${name} ${key}`;
}

function eventWords(text: string): string | null {
  const name = eventOf(text);
  return name === null ? null : words.event(name);
}

/** Return what a trigger for an event waits for; null for other triggers. */
export function eventName(text: string): string | null {
  const name = eventOf(text);
  return name === null ? null : texts.triggers.event(name);
}

/** Return the name of a schedule, with its time zone unless that is UTC; null if there is none. */
export function scheduleName({ schedule, timezone }: Scheduled): string | null {
  if (schedule === null) return null;
  const named = cronWords(schedule) ?? intervalWords(schedule) ?? eventWords(schedule) ?? sentenceCase(schedule.replace(/^@/, ""));
  return timezone === null || timezone === "UTC" ? named : `${named} (${timezone})`;
}
