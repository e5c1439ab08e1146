// The dialog that sends an event to a waiting task: a form if its fields are known, otherwise JSON.

import { texts } from "./action_texts";
import { Text } from "./actions";
import { get, send } from "./api";
import { ask } from "./dialog";
import { parsed } from "./form";
import { texts as shared } from "./texts";
import type { Schema, Trigger } from "./types";

type Payload = Record<string, Schema & { default?: unknown }>;

const isText = (schema: Schema): boolean => schema.type === "string" || (Array.isArray(schema.type) && schema.type.includes("string"));

const shown = (schema: Payload[string]): string => (schema.default === undefined || schema.default === null ? "" : isText(schema) ? String(schema.default) : JSON.stringify(schema.default));

/** Return the value of a field: text as typed, or parsed JSON. An empty field is null, or "" if it must be a text. */
function valueOf(name: string, schema: Schema, text: string): unknown {
  if (text === "") return isText(schema) && !Array.isArray(schema.type) ? "" : null;
  return isText(schema) ? text : parsed(name, text);
}

const isTime = (kind: string | undefined): boolean => kind === "time";

/** The label of the action on a trigger of this kind. */
export const fireName = (kind: string | undefined): string => (isTime(kind) ? shared.actions.endWait : shared.actions.fire);

export async function fire(triggerId: number, what: string): Promise<void> {
  const known = await get<Trigger>(`/triggers/${triggerId}`).catch(() => null);
  if (known && isTime(known.kind)) return endWait(known, what);
  const fields: Payload | null = known?.payload ?? null;
  const given: Record<string, string> = Object.fromEntries(Object.entries(fields ?? {}).map(([name, schema]) => [name, shown(schema)]));
  const wanted = { payload: "null", key: "" };
  ask({
    title: texts.fire.title,
    verb: texts.fire.verb,
    isGrave: true,
    body: (
      <>
        <p>{texts.fire.meaning(what, known?.label ?? null)}</p>
        {fields ? (
          Object.entries(fields).map(([name, schema]) => (
            <Text key={name} label={name} hint={isText(schema) ? "" : "JSON"} value={given[name]} onValue={(text) => (given[name] = text)} />
          ))
        ) : (
          <Text label={texts.payload} value="null" onValue={(text) => (wanted.payload = text)} />
        )}
        <details>
          <summary>{texts.advanced}</summary>
          <Text label={texts.key} hint={texts.noKey} onValue={(text) => (wanted.key = text)} />
        </details>
      </>
    ),
    act: async () => {
      const payload = fields ? Object.fromEntries(Object.entries(fields).map(([name, schema]) => [name, valueOf(name, schema, given[name] ?? "")])) : parsed(texts.fire.what, wanted.payload || "null");
      await send("POST", `/triggers/${triggerId}/fire`, { payload, key: wanted.key || null });
      return texts.fire.done(triggerId);
    },
  });
}

/** End a wait for a time, which has no payload. */
function endWait(trigger: Trigger, what: string): void {
  ask({
    title: texts.fire.endTitle,
    verb: texts.fire.endVerb,
    isGrave: true,
    body: <p>{texts.fire.endMeaning(what, trigger.label)}</p>,
    act: async () => {
      await send("POST", `/triggers/${trigger.trigger_id}/fire`, { payload: null, key: null });
      return texts.fire.ended(what);
    },
  });
}
