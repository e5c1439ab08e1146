// Types of API responses; see docs/reference/http.md.

import type { Decision } from "./decision";

export type Counts = Record<string, number>;

export interface Wait {
  kind: string;
  detail: string;
  since: string | null;
  until: string | null;
  /** What the task waits for, in the words of its author. */
  label?: string | null;
  trigger_id?: number | null;
  /** When the condition was last checked and is checked next, if known. */
  last_check_at?: string | null;
  next_check_at?: string | null;
  /** What the last look found. */
  last_answer?: string | null;
  every_seconds?: number | null;
  /** When a wait for a time ends; `until` is its deadline. */
  fires_at?: string | null;
}

export interface TaskError {
  type: string;
  message: string;
  reason: string;
}

export interface Me {
  name: string;
  role: "viewer" | "operator" | "admin";
  kind: "home" | "token" | "session";
}

export interface Dag {
  dag_id: string | null;
  file: string;
  version: string | null;
  paused: boolean;
  schedule: string | null;
  timezone: string | null;
  next_run_at: string | null;
  import_error: string | null;
  tags: string[];
}

export interface AssetConsumer {
  dag_id: string;
  paused: boolean;
  condition: string;
  /** Number of received updates, by asset. */
  received: Record<string, number>;
  missing: string[];
  run_id: string | null;
}

export interface Asset {
  name: string;
  producers: { dag_id: string; task_id: string }[];
  producer_count: number;
  consumers: AssetConsumer[];
  consumer_count: number;
  last_update: { event_id: number; at: string; run_id: string | null } | null;
}

export interface TaskSpec {
  task_id: string;
  body: string;
  parents: string[];
  trigger_rule: string;
  is_mapped: boolean;
  is_sensor: boolean;
  max_tries: number;
  pool: string;
  doc: string;
  line: number;
}

export interface Schema {
  type?: string | string[];
  enum?: unknown[];
  title?: string;
  description?: string;
  format?: string;
  minimum?: number;
  maximum?: number;
}

export interface DagDetail {
  dag_id: string;
  file: string;
  version: string;
  paused: boolean;
  schedule: string | null;
  timezone: string;
  next_run_at: string | null;
  import_error: string | null;
  /** The trigger whose events start the DAG's runs, if any. */
  trigger?: Trigger | null;
  catchup: boolean;
  max_active_runs: number;
  parameters: string[];
  required: string[];
  params: Record<string, { schema: Schema; default?: unknown }>;
  tags: string[];
  doc: string;
  tasks: TaskSpec[];
}

export interface RunSummary {
  run_id: string;
  dag_id: string;
  state: string;
  cause: string;
  logical_date: string | null;
  created_at: string | null;
  started_at: string | null;
  ended_at: string | null;
  version: string;
  quarantine: string | null;
  /** The text of the note on the run. */
  note?: string | null;
  /** The person who started it, or its backfill or calling run. */
  started_by?: string | null;
  /** Whether it is running and only waits. */
  is_waiting?: boolean;
}

/** A note on a run, or on a task of it. */
export interface Note {
  run_id: string;
  task_id: string | null;
  map_index: number;
  round: number;
  text: string;
  author: string;
  at: string;
}

export interface Task {
  task_id: string;
  map_index: number;
  round: number;
  map_label: string | null;
  state: string;
  try_number: number;
  max_tries: number;
  interruptions: number;
  started_at: string | null;
  ended_at: string | null;
  waiting_on: Wait | null;
  error: TaskError | null;
  result: unknown;
}

export interface Run {
  run_id: string;
  dag_id: string;
  state: string;
  cause?: string;
  logical_date: string | null;
  started_at: string | null;
  ended_at: string | null;
  conf: unknown;
  version: string;
  quarantine?: string | null;
  counts: Counts;
  tasks: Task[];
}

export interface Try {
  try_number: number;
  /** The clear before this try, and its user if the audit names one. */
  cleared?: { at: string | null; by: string | null } | null;
  state: string;
  started_at: string | null;
  ended_at: string | null;
  executor: string | null;
  host: string | null;
  worker: string | null;
  worker_url: string | null;
  error: string | null;
  reason: string | null;
}

export interface Trigger {
  trigger_id: number;
  kind: string;
  dag_id: string;
  run_id: string | null;
  task_id: string | null;
  map_index: number;
  round: number;
  since: string;
  deadline: string | null;
  /** When a trigger of one time or duration fires. */
  fires_at?: string | null;
  node: number | null;
  shared_with: number | null;
  state: string;
  events: number | null;
  detail: string;
  label: string | null;
  map_label: string | null;
  /** What the trigger waits for, in words. */
  text: string | null;
  /** The fields of its event as JSON schemas, if known; only for a single trigger. */
  payload?: Record<string, Schema & { default?: unknown }> | null;
}

export interface TaskShown extends Task {
  inputs?: { name: string; from_task: string | null; value: unknown }[];
  tries?: Try[];
  /** `at` is a place in the code. */
  records?: { ordinal: number; kind: string; name: string; label: string | null; at: string; value: unknown }[];
  trigger?: Trigger | null;
  note?: Note | null;
}

export interface Cause {
  depth: number;
  run_id: string;
  task_id: string;
  map_index: number;
  round: number;
  map_label: string | null;
  state: string;
  waiting_on: Wait | null;
  /** The number of children that are in this state for the same cause. */
  count: number;
  error: TaskError | null;
  /** The cause as one sentence, without times. */
  text: string;
  /** The number of all children, for a mapped task. */
  total: number | null;
  target: Target | null;
  /** The runs that use the pool that is waited for. */
  shares: { run_id: string; dag_id: string; slots: number }[];
  actions: string[];
  /** The usual duration of such waits of the task. */
  usual_seconds?: number | null;
}

/** The object that is waited for, to link to it. */
export interface Target {
  type: string;
  name: string;
  dag_id: string | null;
  run_id: string | null;
  task_id: string | null;
  key: string | null;
  used: number | null;
  all: number | null;
  state: string | null;
}

export interface Chain {
  run_id: string;
  dag_id: string;
  state: string;
  text: string;
  timezone: string;
  causes: Cause[];
  more: number;
}

export interface GraphNode {
  task_id: string;
  body: string;
  group: string | null;
  is_mapped: boolean;
  is_sensor: boolean;
  trigger_rule: string;
  kind?: string;
  doc: string;
  line: number;
}

export interface Graph {
  version: string;
  nodes: GraphNode[];
  edges: { from: string; to: string; rule?: string | null }[];
  groups: { group_id: string; parent: string | null }[];
}

export interface RunGraphTask {
  task_id: string;
  counts: Counts;
  width: number | null;
  is_open: boolean;
  started_at: string | null;
  ended_at: string | null;
  /** The median of the task's durations. */
  usual_seconds?: number | null;
}

export interface RunGraph {
  run: RunSummary;
  version: string;
  tasks: RunGraphTask[];
}

export interface GanttRow {
  task_id: string;
  map_index: number;
  round: number;
  map_label: string | null;
  state: string;
  spans: { kind: string; from: string; to: string | null }[];
}

export interface Grid {
  tasks: string[];
  runs: (RunSummary & { cells: [number, Counts, string | null, string | null][] | null })[];
  next: string | null;
}

export interface Overview {
  status: string;
  version: string;
  uptime_seconds: number;
  is_store_away: boolean;
  live_runs: number;
  states: Counts;
  slots: Record<string, { all: number; used: number }>;
  deferred: Counts;
  failed_24h: number;
  import_errors: number;
  decisions: number;
  loop_lag_seconds: number;
  fires_per_second: number;
  waiting_longest: {
    run_id: string;
    dag_id: string;
    task_id: string;
    map_index: number;
    round: number;
    map_label: string | null;
    state: string;
    /** The number of its tasks that are in this state. */
    count: number;
    since: string | null;
    text: string;
    waiting_on: Wait | null;
    usual_seconds?: number | null;
  }[];
  failed_runs: RunSummary[];
  damaged: { table: string; row: string; column: string; reason: string; run_id: string | null; dag_id: string | null }[];
}

/** A run that has not ended, with the counts of its tasks by state. */
export interface InFlight {
  run: RunSummary;
  counts: Counts;
  slow_after_seconds: number | null;
  usual_seconds?: number | null;
}

/** The runs of a DAG that failed in the last 24 hours. */
export interface Attention {
  dag_id: string;
  count: number;
  state: string;
  last: RunSummary;
  /** The error of the task that failed first. */
  error: TaskError | null;
  since: string | null;
  is_recovered: boolean;
}

export interface HomeData {
  in_flight: InFlight[];
  attention: Attention[];
  pools: Pool[];
  decisions: Decision[];
  import_errors: { file: string; message: string }[];
}

export interface RecentRun {
  run_id: string;
  state: string;
  is_waiting?: boolean;
  started_at: string | null;
  ended_at: string | null;
}

export interface TriggerSummary {
  kinds: {
    kind: string;
    count: number;
    oldest_since: string | null;
    shared_watches: number | null;
    next_check_at: string | null;
    fires: number | null;
    fires_per_second: number | null;
  }[];
  hosts: {
    name: string;
    state: string;
    triggers: number;
    loop_lag_seconds: number | null;
    rss_bytes: number | null;
  }[];
  capacity: number | null;
  waiting_for_capacity: number;
  quarantined: string[];
  ages: { upto_seconds: number | null; count: number }[];
}

export interface Slow {
  kind: string;
  name: string;
  stalls: number;
  longest_ms: number;
  total_ms: number;
  source_location: string;
  last_at: string | null;
  run_id: string;
  task_id: string;
  quarantined: boolean;
}

export interface NamedEvent {
  event_id: number;
  name: string;
  key: string | null;
  at: string;
  run_id: string | null;
  data: unknown;
}

export interface Pool {
  name: string;
  slots: number;
  include_deferred: boolean;
  used?: number;
  queued?: number;
}

export interface Backfill {
  backfill_id: number;
  dag_id: string;
  first: string;
  last: string;
  reprocess: string;
  max_active: number;
  reverse: boolean;
  state: string;
  next_fire_time: string | null;
  made: number;
  skipped: number;
  progress: number;
  runs: Counts;
  created_at: string;
  ended_at: string | null;
  failure: string | null;
}

export interface FireTime {
  logical_date: string;
  run_id: string | null;
  state: string | null;
  action: string;
}

export interface Node {
  node: number;
  name: string | null;
  epoch: number;
  state: string;
  silent_seconds: number | null;
  runs: number | null;
  started_at: string | null;
  seen_at: string | null;
  version: string | null;
  pid: number | null;
  host: string | null;
  slots: number | null;
  triggers: number | null;
  is_here: boolean;
}

export interface AuditRow {
  audit_id: number;
  at: string;
  actor: string;
  role: string | null;
  action: string;
  target: string | null;
  outcome: string;
  code: string | null;
  before: unknown;
  after: unknown;
  address: string | null;
  /** Number of runs that are omitted from `after` in a list. */
  more?: number;
}
