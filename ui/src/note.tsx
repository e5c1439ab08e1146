// The note on a run or a task: shown, written and removed.

import type { ComponentChildren } from "preact";

import { enc, query, send } from "./api";
import { Icon } from "./components/icons";
import { ask } from "./dialog";
import { childName } from "./parts";
import "./styles/notes.css";
import { texts } from "./texts";
import { When } from "./time";
import type { Note } from "./types";

export interface Noted {
  run: string;
  task?: string;
  map?: number;
  round?: number;
}

const URLS = /https?:\/\/[^\s<>"'`]+/g;
const END = /[.,;:!?)\]}]+$/;
const MOST_BYTES = 2048;

/** A text in which web addresses are links. */
function Linked({ text }: { text: string }) {
  const found: ComponentChildren[] = [];
  let from = 0;
  for (const url of text.matchAll(URLS)) {
    const href = url[0].replace(END, "");
    found.push(
      text.slice(from, url.index),
      <a href={href} target="_blank" rel="noopener noreferrer">
        {href}
      </a>,
    );
    from = url.index + href.length;
  }
  return (
    <>
      {found}
      {text.slice(from)}
    </>
  );
}

const sizeOf = (text: string): number => new TextEncoder().encode(text).length;

const nameOf = (of: Noted): string => (of.task === undefined ? of.run : childName(of.task, of.map ?? -1, of.round ?? 0));

/** Ask for the text of a note; an empty one removes it. */
export function writeNote(of: Noted, before = ""): void {
  let text = before;
  const base = of.task === undefined ? `/runs/${enc(of.run)}/note` : `/runs/${enc(of.run)}/tasks/${enc(of.task)}/note`;
  const path = query(base, { map: (of.map ?? -1) >= 0 ? of.map : null, round: (of.round ?? 0) > 0 ? of.round : null });
  ask({
    title: texts.notes.title(nameOf(of)),
    verb: texts.notes.save,
    body: (
      <label class="note-field">
        <span>{texts.notes.text}</span>
        <textarea
          rows={5}
          maxLength={MOST_BYTES}
          onInput={(event) => {
            const field = event.currentTarget;
            text = field.value;
            field.setCustomValidity(sizeOf(text) > MOST_BYTES ? texts.notes.tooLong : "");
          }}
        >
          {before}
        </textarea>
        <small>{before === "" ? texts.notes.hint : texts.notes.removeHint}</small>
      </label>
    ),
    act: async () => {
      if (text.trim() !== "") {
        await send("PUT", path, { text });
        return texts.notes.saved;
      }
      if (before !== "") await send("DELETE", path);
      return before === "" ? texts.notes.unchanged : texts.notes.removed;
    },
  });
}

/** The note, or a button to write one. */
export function NoteBox({ of, note }: { of: Noted; note: Note | null | undefined }) {
  if (!note) {
    return (
      <button type="button" data-needs="operator" class="plain small add-note" onClick={() => writeNote(of)}>
        <Icon name="sticky-note" size={14} /> {texts.notes.add}
      </button>
    );
  }
  return (
    <aside class="note" aria-label={texts.notes.title(nameOf(of))}>
      <Icon name="sticky-note" />
      <p class="note-text">
        <Linked text={note.text} />
      </p>
      <span class="note-by soft">
        {note.author} <When at={note.at} />
      </span>
      <button type="button" data-needs="operator" class="small" aria-label={texts.notes.edit} onClick={() => writeNote(of, note.text)}>
        {texts.notes.change}
      </button>
    </aside>
  );
}

/** A mark in a list, with the text of a note. */
export function NoteMark({ text }: { text: string | null | undefined }) {
  if (!text) return null;
  return (
    <span class="note-mark" role="img" aria-label={`${texts.notes.name}: ${text}`} title={text}>
      <Icon name="sticky-note" size={14} />
    </span>
  );
}
