// Every text of the page's shell in one table, so that another language is another table.
// Texts with a number or a name in them are functions of these.

const count = (value: number): string => value.toLocaleString("en");
const many = (value: number, one: string, other = `${one}s`): string => `${count(value)} ${value === 1 ? one : other}`;

export const texts = {
  product: "aioflow",

  common: {
    loading: "Loading",
    retry: "Retry",
    cancel: "Cancel",
    close: "Close",
    dismiss: "Dismiss",
    undo: "Undo",
    copy: "Copy",
    copied: "Copied",
    notCopied: "The browser did not allow copying",
    download: "Download",
    noMatches: "No matches.",
    clearFilters: "Clear filters",
    resize: "Resize",
    more: "More",
    actions: "Actions",
    showAll: "Show all",
    none: "None",
    of: (some: number, all: number): string => `${count(some)} of ${count(all)}`,
    many,
  },

  table: {
    settings: "Columns and density",
    compact: "Compact rows",
    select: "Select",
    selectAll: "Select all rows loaded",
    actions: "Actions",
    selected: (some: number): string => `${count(some)} selected`,
  },

  dates: {
    label: "Time range",
    all: "Any time",
    own: "Custom range",
    from: "From",
    to: "To",
    until: "to",
    usual: { "1h": "Last hour", "24h": "Last 24 hours", "7d": "Last 7 days", "30d": "Last 30 days" },
  },

  shell: {
    skip: "Skip to content",
    places: "Main navigation",
    search: "Search",
    searchHint: "Search DAGs, runs and pages",
    shortcuts: "Keyboard shortcuts",
    light: "Light theme",
    dark: "Dark theme",
    collapse: "Collapse navigation",
    expand: "Expand navigation",
    breadcrumb: "Breadcrumb",
    user: (name: string, role: string): string => `${name} (${role})`,
    groups: { now: "Now", build: "Build", operate: "Operate", admin: "Admin" },
    modes: { off: "Connecting", live: "Live", polling: "Every 3 s", away: "Daemon away" },
    notFound: "Page not found",
    notFoundText: "No page has this address.",
    goHome: "Go to Home",
    newVersion: (version: string): string => `The daemon now runs version ${version}.`,
    reload: "Reload page",
    storeAway: "The database does not answer.",
    storeAwayText: "Nothing moves until it is back. Check the daemon's log, and that its disk has room.",
    away: "The daemon has not answered",
    awayText: "The page resumes by itself when it is back.",
    stale: (at: string): string => `Showing data from ${at}`,
  },

  places: {
    home: "Home",
    runs: "Runs",
    triggers: "Waiting",
    dags: "DAGs",
    schedules: "Schedules",
    backfills: "Backfills",
    pools: "Pools",
    events: "Events",
    nodes: "Nodes",
    errors: "Import errors",
    access: "Access",
    audit: "Audit log",
    settings: "Settings",
  },

  /** Names of states. The scheduler's own names stay: they are in the API, the CLI and the docs. */
  states: {
    success: "Success",
    done: "Done",
    failed: "Failed",
    damaged: "Damaged",
    partial: "Partial",
    upstream_failed: "Upstream failed",
    running: "Running",
    sensing: "Sensing",
    deferred: "Deferred",
    retrying: "Retrying",
    queued: "Queued",
    pending: "Pending",
    skipped: "Skipped",
    cancelled: "Cancelled",
    removed: "Removed",
    paused: "Paused",
  } as Record<string, string>,

  /** What a state means, as a tooltip. */
  meanings: {
    success: "Ended as it should",
    failed: "Ended with an error, and no retries are left",
    partial: "The run ended, and some of its tasks failed",
    upstream_failed: "Did not start, because a task before it failed",
    running: "Runs now, and holds a slot",
    sensing: "Checks at intervals whether a condition holds",
    deferred: "Waits for a trigger, and holds no slot",
    retrying: "Failed, and starts again after a delay",
    queued: "Could start, and waits for a slot",
    pending: "Waits for the tasks before it",
    skipped: "Did not start, because a branch or a rule left it out",
    cancelled: "Stopped by a user",
    removed: "No longer part of the DAG",
  } as Record<string, string>,
} as const;

export const stateName = (state: string): string => texts.states[state] ?? state.replaceAll("_", " ").replace(/^./, (letter) => letter.toUpperCase());
