// The text of a log as lines: nothing of it is interpreted, and of a long text only the end is stored.

const KEPT_CHARS = 4 * 1024 * 1024;
const KEPT_LINES = 50_000;
const LONGEST = 4_000;
// Colours and cursor moves of a terminal, and what else is no text.
const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-_])/g;
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;
// A progress bar writes over its line; here each of its states is one.
const BREAK = /\r\n|\n|\r(?!$)/;

export function plain(text: string): string {
  const shown = text.replace(ESCAPES, "").replace(CONTROLS, "\u00b7");
  return shown.length <= LONGEST ? shown : `${shown.slice(0, LONGEST)} … ${(shown.length - LONGEST).toLocaleString("en")} characters more`;
}

export class Lines {
  /** Number of the first stored line, counted from the first one read. */
  first = 0;
  stored: string[] = [];
  private rest = "";
  private chars = 0;

  /** All lines, the last one as far as it has come. */
  get all(): string[] {
    return this.rest === "" ? this.stored : [...this.stored, plain(this.rest)];
  }

  add(text: string): void {
    const found = (this.rest + text).split(BREAK);
    this.rest = found.pop() ?? "";
    for (const line of found) {
      const shown = plain(line);
      this.stored.push(shown);
      this.chars += shown.length + 1;
    }
    if (this.rest.length > KEPT_CHARS) this.rest = this.rest.slice(0, LONGEST);
    this.drop();
  }

  private drop(): void {
    let gone = Math.max(0, this.stored.length - KEPT_LINES);
    let chars = this.stored.slice(0, gone).reduce((all, line) => all + line.length + 1, 0);
    while (this.chars - chars > KEPT_CHARS) {
      chars += this.stored[gone]!.length + 1;
      gone += 1;
    }
    if (gone === 0) return;
    this.stored = this.stored.slice(gone);
    this.chars -= chars;
    this.first += gone;
  }
}

/** How many bytes of a piece are whole characters: UTF-8 may be cut in the middle of one. */
export function wholeCharacters(bytes: Uint8Array): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back += 1) {
    const byte = bytes[bytes.length - back]!;
    if ((byte & 0b1100_0000) === 0b1000_0000) continue;
    const wanted = byte >= 0b1111_0000 ? 4 : byte >= 0b1110_0000 ? 3 : byte >= 0b1100_0000 ? 2 : 1;
    return wanted > back ? bytes.length - back : bytes.length;
  }
  return bytes.length;
}
