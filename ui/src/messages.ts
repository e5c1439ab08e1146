// Error messages of the API in the words of the page, without advice for the command line.

import { Problem } from "./api";
import { sentenceCase, texts } from "./texts";

const COMMAND = /`aioflow [^`]*`/;
/** The end of a message that advises a command, as a clause or in brackets. */
const ADVICE = /\s*(?:[;,.:]\s*[^;,.:()]*`aioflow [^`]*`[^;()]*|\([^()]*`aioflow [^`]*`[^()]*\))/g;
const NO_TIME = /^(\w+) (['"])(.*)\2 is not a timestamp;.*/s;

/** Return a message of the API as a sentence. */
export function plainly(message: string): string {
  const time = NO_TIME.exec(message);
  if (time) return texts.problems.noTime(texts.problems.fields[time[1]!] ?? time[1]!, time[3]!);
  const text = message.replace(ADVICE, "");
  return sentenceCase(COMMAND.test(text) ? message : text);
}

/** Return why something failed, as a sentence. */
export function reason(error: unknown): string {
  if (error instanceof Problem) return texts.problems.own[error.code] ?? plainly(error.message);
  return error instanceof Error ? error.message : String(error);
}

/** Return the stable code of a failure, by which users can look it up; empty if it has none. */
export const codeOf = (error: unknown): string => (error instanceof Problem ? error.code : "");
