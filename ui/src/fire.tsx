// Sends a waiting task its event: a form with the fields of the event where they are known, else JSON.

import { Text } from "./actions";
import { get, send } from "./api";
import { ask } from "./dialog";
import { parsed } from "./form";
import type { Schema, Trigger } from "./types";

type Payload = Record<string, Schema & { default?: unknown }>;

const isText = (schema: Schema): boolean => schema.type === "string" || (Array.isArray(schema.type) && schema.type.includes("string"));

const shown = (schema: Payload[string]): string => (schema.default === undefined || schema.default === null ? "" : isText(schema) ? String(schema.default) : JSON.stringify(schema.default));

/** What a field holds: a text as it is, anything else as JSON; an empty one is null. */
function valueOf(name: string, schema: Schema, text: string): unknown {
  if (text === "") return isText(schema) && !Array.isArray(schema.type) ? "" : null;
  return isText(schema) ? text : parsed(name, text);
}

export async function fire(triggerId: number, what: string): Promise<void> {
  const known = await get<Trigger>(`/triggers/${triggerId}`).catch(() => null);
  const fields: Payload | null = known?.payload ?? null;
  const texts: Record<string, string> = Object.fromEntries(Object.entries(fields ?? {}).map(([name, schema]) => [name, shown(schema)]));
  const wanted = { payload: "null", key: "" };
  ask({
    title: "Send the event?",
    verb: "Send",
    isGrave: true,
    body: (
      <>
        <p>
          {what} resumes as if its trigger had yielded this event{known?.label ? ` (${known.label})` : ""}. This ends the trigger, unless it is a stream.
        </p>
        {fields ? (
          Object.entries(fields).map(([name, schema]) => (
            <Text key={name} label={name} hint={isText(schema) ? "" : "JSON"} value={texts[name]} onValue={(text) => (texts[name] = text)} />
          ))
        ) : (
          <Text label="Payload (JSON)" value="null" onValue={(text) => (wanted.payload = text)} />
        )}
        <details>
          <summary>Advanced</summary>
          <Text label="Key" hint="none" onValue={(text) => (wanted.key = text)} />
        </details>
      </>
    ),
    act: async () => {
      const payload = fields ? Object.fromEntries(Object.entries(fields).map(([name, schema]) => [name, valueOf(name, schema, texts[name] ?? "")])) : parsed("the payload", wanted.payload || "null");
      await send("POST", `/triggers/${triggerId}/fire`, { payload, key: wanted.key || null });
      return `Sent the event of trigger ${triggerId}`;
    },
  });
}
