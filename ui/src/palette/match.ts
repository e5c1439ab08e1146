// Fuzzy matching of palette items, best match first.

export interface Found {
  key: string;
  name: string;
  detail?: string;
  /** Other words by which it is found. */
  words?: string;
  /** Whether the daemon has found it by the text, which may be a part that is not shown. */
  isFound?: boolean;
}

const VERBS = ["trigger", "pause", "resume", "backfill"] as const;
const SHORTEST = 3;

/** The verb that a text begins with, and what it is to be done with: "trig sett" triggers a DAG. */
export function verbOf(text: string): { verb: string | null; rest: string } {
  const [, first = "", rest = ""] = /^(\S+)\s+(.*)$/.exec(text) ?? [];
  const verb = first.length < SHORTEST ? undefined : VERBS.find((one) => one.startsWith(first.toLowerCase()));
  return verb ? { verb, rest: rest.trim() } : { verb: null, rest: "" };
}

/** How well a name answers the words: 0 the best; infinite when it lacks one of them. */
export function distance(name: string, words: string[]): number {
  const lower = name.toLowerCase();
  if (words.length === 1 && lower === words[0]) return 0;
  return words.reduce((worst, word) => Math.max(worst, place(lower, word)), 1);
}

function place(name: string, word: string): number {
  const at = name.indexOf(word);
  if (at === -1) return Infinity;
  if (at === 0) return 1;
  return /[^\p{L}\p{N}]/u.test(name[at - 1]!) ? 2 : 3;
}

const MOST = 20;

/** The items of each group that have every word of the text, the best group and item first. */
export function matching<I extends Found>(groups: { title: string; items: I[] }[], text: string): { title: string; items: I[] }[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return groups.filter((group) => group.items.length > 0);
  const ranked = groups.map(({ title, items }) => {
    const rated = items.map((item) => ({ item, far: Math.min(distance(item.words ? `${item.name} ${item.words}` : item.name, words), item.isFound ? 4 : Infinity) })).filter(({ far }) => far < Infinity);
    rated.sort((one, other) => one.far - other.far);
    return { title, items: rated.slice(0, MOST).map(({ item }) => item), far: rated[0]?.far ?? Infinity };
  });
  return ranked
    .filter((group) => group.items.length > 0)
    .sort((one, other) => one.far - other.far)
    .map(({ title, items }) => ({ title, items }));
}
