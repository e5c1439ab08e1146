// Texts of the action dialogs: the effect before an action, and the result after it.

import type { ComponentChildren } from "preact";

import { texts as shared } from "./texts";

const { many } = shared.common;
const run = (id: string): ComponentChildren => <code>{id}</code>;

export const texts = {
  advanced: "Advanced",
  state: "State",
  name: "Name",
  key: "Key",
  noKey: "none",
  data: "Data (JSON)",
  payload: "Payload (JSON)",
  ends: { success: "success", failed: "failed" },

  trigger: {
    title: (dag: string): string => `Trigger ${dag}`,
    again: (dag: string): string => `Run ${dag} again`,
    verb: "Trigger",
    verbAgain: "Run",
    meaning: (isPaused: boolean, again: string | null): ComponentChildren => (
      <>
        Starts a {again !== null ? "new " : ""}run of the newest version now{isPaused ? ", although the DAG is paused" : ""}
        {again !== null && <>, with the parameters of {run(again)}</>}.
      </>
    ),
    runId: "Run id",
    runIdHint: "made by the daemon",
    logicalDate: "Logical date",
    logicalDateHint: "2026-01-31T03:00:00Z",
    started: (id: string): string => `Started ${id}`,
    existed: (id: string): string => `${id} was there already`,
  },

  pause: {
    paused: (dag: string): string => `${dag} is paused: its schedule starts no runs, active runs continue`,
    resumed: (dag: string): string => `${dag} follows its schedule again`,
  },

  cancel: {
    title: "Cancel this run?",
    meaning: (id: string): ComponentChildren => <>Stops the running tasks of {run(id)}, and starts no more. It can be retried later.</>,
    done: (id: string, state: string): string => `${id} is ${state}`,
  },

  clear: {
    allTasks: "tasks of this run",
    title: (what: string): string => `Clear ${what}?`,
    retryTitle: (what: string): string => `Retry ${what}?`,
    failedTasks: "the failed tasks",
    meaning: "These tasks run again: their results are deleted, their tries and logs are retained. Running tasks are stopped first. An ended run resumes.",
    downstream: "With everything downstream",
    loop: "Its whole loop restarts with the first round.",
    onlyFailed: "Only what failed, or was cancelled",
    onlyChild: (index: number): string => `Only index ${index}, not all of its siblings`,
    newest: "With the newest code",
    newestMeaning: (own: string, newest: string): ComponentChildren => (
      <>
        The run moves from version {run(own)} to {run(newest)}. What is pending runs that, too; what has ended and is not cleared stays as it is.
      </>
    ),
    unreadable: (problem: string): string => `The file of its DAG cannot be read now, so a change in it has no effect yet: ${problem}`,
    done: (tasks: number, state: string, version: string, left: string): string => `${many(tasks, "task")} ${tasks === 1 ? "runs" : "run"} again; the run is ${state}. It runs version ${version}${left}`,
    noFile: (own: string): string => `${own}; no file defines its DAG any more`,
    isNewest: (own: string): string => `${own}, the newest`,
    isOlder: (own: string, newest: string): string => `${own}, not the newest, ${newest}`,
    left: (names: string, count: number): string => `. ${names} ${count === 1 ? "stays" : "stay"} upstream_failed; clear with everything downstream to run that, too`,
  },

  mark: {
    title: (what: string | null): string => `Set the state of ${what ?? "the run"}?`,
    meaning: "It ends in the state you choose; running tasks are stopped. It has no result.",
    after: "The tasks after it are evaluated again.",
    metTitle: (what: string): string => `Mark the condition of ${what} as met?`,
    met: "It stops checking and ends as a success, without a result.",
    done: (tasks: number, state: string): string => `Marked ${many(tasks, "task")}; the run is ${state}`,
  },

  remove: {
    title: "Delete this run?",
    meaning: (id: string): ComponentChildren => <>Deletes {run(id)} with its results and logs. This cannot be undone.</>,
    done: (id: string): string => `Deleted ${id}`,
  },

  quarantine: {
    title: "End the quarantine?",
    meaning: (path: string): ComponentChildren => (
      <>
        Triggers of {run(path)} run on the shared event loop again. If they block it once more, they return to quarantine.
      </>
    ),
    done: (path: string): string => `${path} is out of quarantine`,
  },

  drain: {
    title: (node: number, isDrained: boolean): string => `${isDrained ? "Undrain" : "Drain"} node ${node}?`,
    start: "It starts tasks and hosts triggers again.",
    stop: "It starts no new tasks and hosts no new triggers. Running tasks continue to their end.",
    done: (node: number, wasDrained: boolean): string => `Node ${node} is ${wasDrained ? "working again" : "being drained"}`,
  },

  pool: {
    title: (name: string): string => `Change the limit of ${name}`,
    meaning: "At most this many slots of the pool are used at once. Running tasks continue.",
    change: "Change",
    create: "Create",
    deferred: "Waiting tasks hold slots, too",
    done: (name: string, slots: number): string => `Pool ${name} has ${many(slots, "slot")}`,
    liftTitle: (name: string): string => `Remove the limit of pool ${name}?`,
    lift: "Remove",
    liftMeaning: "Only the workers limit its tasks then.",
    lifted: (name: string): string => `Pool ${name} has no limit`,
  },

  fire: {
    title: "Send the event?",
    verb: "Send",
    endTitle: "End the wait?",
    endVerb: "End",
    endMeaning: (what: string, label: string | null): string => `${what} resumes now, as if its time${label ? ` (${label})` : ""} had come.`,
    ended: (what: string): string => `Ended the wait of ${what}`,
    meaning: (what: string, label: string | null): string => `${what} resumes as if its trigger had yielded this event${label ? ` (${label})` : ""}. This ends the trigger, unless it is a stream.`,
    what: "the payload",
    done: (trigger: number): string => `Sent the event of trigger ${trigger}`,
  },

  user: {
    add: "Add",
    addMeaning: "They sign in with this name and password, and may choose another password themselves.",
    password: "Password",
    passwordHint: "At least 10 characters",
    role: "Role",
    added: (name: string): string => `${name} can sign in`,
    change: "Change",
    groupsTitle: (name: string): string => `Change the groups of ${name}`,
    groupsMeaning: "A task may ask a group for a decision. A group gives no permission besides. The user's sessions end.",
    groupsHint: "names, separated by spaces",
    groupsDone: (name: string): string => `${name} has new groups`,
    roleTitle: (name: string): string => `Change the role of ${name}`,
    roleMeaning: "Their sessions end, and tokens they have made keep no larger role.",
    roleDone: (name: string, role: string): string => `${name} is ${role}`,
    passwordTitle: (name: string): string => `Set the password of ${name}`,
    set: "Set",
    passwordMeaning: "Their sessions end; they sign in again with the new one.",
    passwordDone: (name: string): string => `${name} has a new password`,
    enableTitle: (name: string): string => `Let ${name} sign in again?`,
    disableTitle: (name: string): string => `Disable ${name}?`,
    enableMeaning: "With the password they had. Tokens that were revoked stay so.",
    disableMeaning: "Their sessions end, the tokens they have made are revoked, and they cannot sign in until they are enabled again.",
    enabled: (name: string): string => `${name} can sign in again`,
    disabled: (name: string): string => `${name} is disabled`,
    removeTitle: (name: string): string => `Delete ${name}?`,
    removeMeaning: "Their sessions end, and the tokens they have made are revoked. The audit continues to name them.",
    removed: (name: string): string => `${name} is deleted`,
  },

  session: {
    title: (name: string): string => `End this session of ${name}?`,
    verb: "End it",
    meaning: "Its user is signed out at once, and may sign in again.",
    done: (name: string): string => `A session of ${name} has ended`,
    label: (id: number, name: string): string => `End session ${id} of ${name}`,
    signedOut: "Signed out",
  },

  token: {
    verb: "Create",
    meaning: "A program that has it can do what its role allows. It is shown once.",
    dags: "DAGs",
    dagsHint: "all; or ids, separated by commas",
    expires: "Expires after",
    created: (name: string): string => `Token ${name} is created`,
    revokeTitle: (name: string): string => `Revoke token ${name}?`,
    revokeMeaning: "Requests with it are refused from now on. This cannot be undone; another of the same name may be created.",
    revoked: (name: string): string => `Token ${name} is revoked`,
  },

  value: {
    setTitle: (kind: string, name: string): string => (name ? `Replace ${kind} ${name}` : `Set a ${kind}`),
    set: "Set",
    meaning: "Tasks that start from now on get it. It is not shown again.",
    value: "Value",
    what: "the value",
    done: (name: string): string => `${name} is set`,
    replace: (name: string): string => `Replace ${name}`,
    remove: (name: string): string => `Delete ${name}`,
    removeTitle: (kind: string, name: string): string => `Delete ${kind} ${name}?`,
    removeMeaning: "Tasks that use it fail from now on.",
    removed: (name: string): string => `${name} is deleted`,
  },

  emit: {
    verb: "Emit",
    meaning: "Every task that waits for an event of this name, and whose filter accepts it, resumes.",
    what: "the data",
    done: (id: number): string => `Event ${id} is stored`,
  },

  backfill: {
    cancelTitle: (id: number): string => `Cancel backfill ${id}?`,
    cancel: "Cancel backfill",
    cancelMeaning: "It creates no more runs, and its active runs are cancelled.",
    cancelled: (id: number): string => `Backfill ${id} is cancelled`,
    title: (dag: string): string => `Backfill ${dag}`,
    verb: "Start backfill",
    started: (id: number): string => `Backfill ${id} creates its runs`,
    meaning: "Each fire time of its schedule in the range gets a run, both ends included.",
    from: "From",
    to: "To",
    fromHint: "2026-01-01",
    toHint: "2026-01-31",
    reprocess: "Fire times that have a run",
    reprocessed: { none: "Leave them", failed: "Run the failed ones again", all: "Run all of them again" },
    atOnce: "At once",
    atOnceHint: "as its DAG says",
    newestFirst: "The newest first",
    preview: "Preview",
    counted: (runs: number, others: number): string => `${many(runs, "run")} would be created, ${many(others, "fire time")} left alone.`,
    fireTimes: "Fire times",
    run: "run",
    skip: "skip",
    has: (state: string): string => `has one: ${state}`,
  },
};
