// The number of lines that a word-wrapped text fills.

const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|\p{Extended_Pictographic}/gu;
const TAB = 8;

const wideIn = (text: string): number => (/[^\u0000-\u10ff]/.test(text) ? (text.match(WIDE)?.length ?? 0) : 0);

/**
 * Return the number of lines of a text in a number of columns of equal width.
 *
 * A browser may also break at other places, such as hyphens. It then needs as many lines or fewer.
 */
export function wrappedLines(text: string, columns: number): number {
  if (text.length + wideIn(text) <= columns && !text.includes("\t")) return 1;
  let lines = 1;
  let at = 0;
  for (const piece of text.match(/\S+|\s+/g) ?? []) {
    if (/^\s/.test(piece)) {
      for (const space of piece) at = space === "\t" ? (Math.floor(at / TAB) + 1) * TAB : at + 1;
      at = Math.min(at, columns); // spaces at the end of a line do not start another line
      continue;
    }
    const wide = wideIn(piece);
    const cells = piece.length + wide;
    if (at + cells <= columns) {
      at += cells;
      continue;
    }
    if (at > 0) lines += 1;
    // A wide character that does not fit leaves the last column of a line free.
    const own = Math.max(1, wide > 0 ? columns - 1 : columns);
    const full = Math.ceil(cells / own) - 1;
    lines += full;
    at = cells - full * own;
  }
  return lines;
}
