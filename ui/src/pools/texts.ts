// Texts of the usage of a pool over time.

import { texts } from "../texts";

export const poolTexts = {
  title: "Last 24 hours",
  used: "Slots in use",
  queued: "Tasks queued",
  size: "Limit",
  usedOf: (pool: string): string => `Slots of pool ${pool} in use, the last 24 hours`,
  queuedOf: (pool: string): string => `Tasks queued for pool ${pool}, the last 24 hours`,
  none: "Not used in the last 24 hours.",
  summary: (full: string | null, longest: number): string => (full === null ? "Never full" : `Full for ${full}`) + (longest > 0 ? `, at most ${texts.common.many(longest, "task")} queued.` : ", nothing queued."),
};
