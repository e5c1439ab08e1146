// A button that copies a text to the clipboard.

import { useState } from "preact/hooks";

import { texts } from "../texts";
import { Icon } from "./icons";

const SHOWN_MS = 1500;

/** Write a text to the clipboard, even if the page has no secure origin. */
export async function copyText(text: string): Promise<void> {
  // The clipboard API exists only on secure origins, and plain HTTP in a local network is none.
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "offscreen";
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  if (!isDone) throw new Error("the browser does not copy");
}

export function CopyButton({ text, label = texts.common.copy, isNamed }: { text: string | (() => string); label?: string; isNamed?: boolean }) {
  const [shown, setShown] = useState<"" | "done" | "failed">("");
  async function copy(event: Event): Promise<void> {
    event.preventDefault();
    event.stopPropagation();
    try {
      await copyText(typeof text === "string" ? text : text());
      setShown("done");
    } catch {
      setShown("failed");
    }
    setTimeout(() => setShown(""), SHOWN_MS);
  }
  const name = shown === "done" ? texts.common.copied : shown === "failed" ? texts.common.notCopied : label;
  return (
    <button type="button" class={`plain copy ${isNamed ? "" : "icon-only"}`} aria-label={isNamed ? undefined : name} title={name} onClick={copy}>
      <Icon name={shown === "done" ? "check" : shown === "failed" ? "x" : "copy"} size={14} />
      {isNamed && <span>{name}</span>}
    </button>
  );
}
