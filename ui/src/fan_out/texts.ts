// Texts of mapped tasks.

import { count, texts } from "../texts";
import { span } from "../time";

export const childrenText = (value: number): string => texts.common.many(value, "child", "children");

/** Format a limit, which is a round number: "2s", not "2.0s". */
const limit = (seconds: number): string => span(seconds * 1000).replace(/\.0(?=m?s$)/, "");

export const fanOut = {
  children: "Children",
  colour: "Colour by",
  by: { state: "State", duration: "Duration" },
  heatMap: (task: string, width: number): string => `${childrenText(width)} of ${task}, one cell each`,
  shared: (size: number): string => `Each cell stands for ${childrenText(size)}, and shows the state that needs attention most.`,
  help: "Arrow keys move between the cells, Enter opens the child.",
  asTable: "As a table",
  none: "No children yet.",
  noDuration: "No duration yet",
  scale: "Duration of the last try",
  rate: "Per second",
  rateMeaning: "Children that ended in the last minute, per second",
  left: "Time left",
  leftMeaning: "Children that have not ended, at the rate of the last minute. Shown once 10 have ended.",
  durations: "Durations",
  slowest: "Slowest",
  errors: "Errors",
  times: (value: number): string => `${count(value)} ×`,
  first: (grouped: number, failed: number): string => `Of the first ${count(grouped)} of ${count(failed)} failed children.`,
  more: (groups: number): string => `And ${texts.common.many(groups, "more group")}.`,
  example: "The first one",
  clear: "Retry these",
  clearMeaning: "Clears them: they run again",
  clearTitle: (value: number, task: string): string => `Retry ${childrenText(value)} of ${task}?`,
  clearBody: "They run again: their results are deleted, their tries and logs are retained. The other children stay as they are.",
  cleared: (value: number, state: string): string => `${texts.common.many(value, "task")} ${value === 1 ? "runs" : "run"} again; the run is ${state}`,
  noneLeft: "They have been retried already",
  under: (seconds: number): string => `under ${limit(seconds)}`,
  over: (seconds: number): string => `${limit(seconds)} and more`,
  between: (from: number, to: number): string => `${limit(from)} to ${limit(to)}`,
};

/** The name of a duration bucket, given its limits in seconds. */
export function bucketName(from: number | null, to: number | null): string {
  if (to === null) return fanOut.over(from ?? 0);
  return from === null ? fanOut.under(to) : fanOut.between(from, to);
}
