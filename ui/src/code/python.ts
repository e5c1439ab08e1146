// A tokenizer for Python: strings, comments, numbers, keywords and names of definitions.

export type Kind = "plain" | "comment" | "string" | "number" | "keyword" | "constant" | "definition" | "decorator" | "call" | "builtin";

export interface Token {
  kind: Kind;
  text: string;
}

const KEYWORDS = new Set(
  "and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try type while with yield".split(" "),
);
const SOFT = new Set(["match", "case", "type"]);
const CONSTANTS = new Set(["True", "False", "None", "self", "cls", "Ellipsis", "NotImplemented"]);
const BUILTINS = new Set(
  "abs all any bool bytes callable dict enumerate filter float frozenset getattr hasattr hash int isinstance issubclass iter len list map max min next object open print property range repr reversed round set setattr sorted staticmethod classmethod str sum super tuple type vars zip Exception ValueError TypeError KeyError RuntimeError".split(" "),
);

// Each alternative is tried in this order; strings may span lines.
const TOKEN =
  /(#[^\n]*)|((?:[rRbBfFuUtT]{1,2})?(?:"""(?:[^\\]|\\[\s\S])*?(?:"""|$)|'''(?:[^\\]|\\[\s\S])*?(?:'''|$)|"(?:[^"\\\n]|\\[\s\S])*(?:"|$|(?=\n))|'(?:[^'\\\n]|\\[\s\S])*(?:'|$|(?=\n))))|(\b(?:0[xX][\da-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|\d[\d_]*(?:\.[\d_]*)?(?:[eE][+-]?\d+)?[jJ]?))|(@[\w.]+)|([\p{L}_][\p{L}\p{N}_]*)/gu;

/** Return the tokens of each line. */
export function pythonLines(text: string): Token[][] {
  const lines: Token[][] = [[]];
  function put(kind: Kind, part: string): void {
    for (const [index, piece] of part.split("\n").entries()) {
      if (index > 0) lines.push([]);
      if (piece === "") continue;
      const line = lines.at(-1)!;
      const before = line.at(-1);
      if (before?.kind === kind) before.text += piece;
      else line.push({ kind, text: piece });
    }
  }
  let from = 0;
  let word = "";
  for (const found of text.matchAll(TOKEN)) {
    const between = text.slice(from, found.index);
    if (between !== "") put("plain", between);
    from = found.index + found[0].length;
    const [whole, comment, string, number, decorator, name] = found;
    if (comment !== undefined) put("comment", whole);
    else if (string !== undefined) put("string", whole);
    else if (number !== undefined) put("number", whole);
    else if (decorator !== undefined) put(isLineStart(text, found.index) ? "decorator" : "plain", whole);
    else if (name !== undefined) put(kindOf(name, word, text, from, between, found.index), name);
    word = name ?? "";
  }
  put("plain", text.slice(from));
  return lines;
}

const isLineStart = (text: string, at: number): boolean => text.slice(text.lastIndexOf("\n", at - 1) + 1, at).trim() === "";

function kindOf(name: string, before: string, text: string, after: number, between: string, at: number): Kind {
  if (between.endsWith(".")) return text[after] === "(" ? "call" : "plain";
  if (before === "def" || before === "class") return "definition";
  if (KEYWORDS.has(name) && !(SOFT.has(name) && !(isLineStart(text, at) && /^ +[^=\s]/.test(text.slice(after, after + 8))))) return "keyword";
  if (CONSTANTS.has(name)) return "constant";
  if (BUILTINS.has(name)) return "builtin";
  return text[after] === "(" ? "call" : "plain";
}
