// Requests to the API. Every failure is a Problem with the API's stable code.

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    /** The error of each invalid field of a form. */
    readonly fields: Record<string, string> = {},
  ) {
    super(message);
  }

  /** Whether the object, or the route itself, does not exist. */
  get isAbsent(): boolean {
    return this.status === 404;
  }
}

const signedOut = new Set<() => void>();

/** Register a function to call when the daemon no longer accepts our session. */
export function onSignedOut(told: () => void): () => void {
  signedOut.add(told);
  return () => signedOut.delete(told);
}

const reached = new Set<(isThere: boolean) => void>();

/** Register a function to call after each request, with whether the daemon has answered. */
export function onReached(told: (isThere: boolean) => void): () => void {
  reached.add(told);
  return () => reached.delete(told);
}

export const enc = encodeURIComponent;

/** Encode a name whose slashes separate parts of the path. */
export const encName = (name: string): string => name.split("/").map(enc).join("/");

/** Return a path below /api/v1 with its query. Empty fields are left out. */
export function query(path: string, fields: Record<string, string | number | boolean | null | undefined>): string {
  const given = Object.entries(fields).filter(([, value]) => value !== undefined && value !== null && value !== "");
  if (given.length === 0) return path;
  return `${path}?${given.map(([name, value]) => `${enc(name)}=${enc(String(value))}`).join("&")}`;
}

async function ask(path: string, init: RequestInit): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(`/api/v1${path}`, { credentials: "same-origin", cache: "no-store", ...init });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    for (const told of reached) told(false);
    throw new Problem(0, "page.unreachable", "The daemon does not answer. Is it running?");
  }
  // If the daemon is gone, a proxy in between may answer.
  for (const told of reached) told(answer.status !== 502 && answer.status !== 504);
  if (answer.ok) return answer;
  if (answer.status === 401 && path !== "/sessions") for (const told of signedOut) told();
  throw await problemOf(answer);
}

async function problemOf(answer: Response): Promise<Problem> {
  try {
    const body = await answer.json();
    const errors = (body.errors ?? []) as { field: string; detail: string }[];
    const fields = Object.fromEntries(errors.map((one) => [one.field, one.detail]));
    return new Problem(answer.status, String(body.code ?? ""), String(body.detail ?? answer.statusText), fields);
  } catch {
    return new Problem(answer.status, "", answer.statusText || `status ${answer.status}`);
  }
}

export async function getText(path: string, signal?: AbortSignal): Promise<string> {
  return (await ask(path, { signal })).text();
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await ask(path, { signal })).json();
}

export async function send<T>(method: string, path: string, body?: unknown, key?: string, { isLeaving = false } = {}): Promise<T> {
  const headers: Record<string, string> = {};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (key !== undefined) headers["idempotency-key"] = key;
  // With `keepalive`, a request outlives the page that sends it.
  const answer = await ask(path, { method, headers, keepalive: isLeaving, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await answer.text();
  return (text === "" ? null : JSON.parse(text)) as T;
}

/** Return a new idempotency key, with which a request can be repeated safely. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return the fields whose text is not empty. */
export function filled(fields: Record<string, string>): Record<string, string> {
  return Object.fromEntries(Object.entries(fields).filter(([, text]) => text !== ""));
}
