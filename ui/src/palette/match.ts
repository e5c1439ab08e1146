// Fuzzy matching of palette items, best match first.

export interface Found {
  key: string;
  name: string;
  detail?: string;
  /** Other words by which the item is found. */
  words?: string;
  /** Whether the daemon has found the item by the text, which may match a part that is not shown. */
  isFound?: boolean;
}

const VERBS = ["trigger", "pause", "resume", "backfill"] as const;
const SHORTEST = 3;

/** Return the verb that a text begins with, and the rest: "trig sett" triggers a DAG. */
export function verbOf(text: string): { verb: string | null; rest: string } {
  const [, first = "", rest = ""] = /^(\S+)\s+(.*)$/.exec(text) ?? [];
  const verb = first.length < SHORTEST ? undefined : VERBS.find((one) => one.startsWith(first.toLowerCase()));
  return verb ? { verb, rest: rest.trim() } : { verb: null, rest: "" };
}

/** Return how well a name matches the words: 0 is best, infinite if a word is missing. */
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

/** Return the items of each group that match every word of the text, the best group and item first. */
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
