CREATE TABLE account (
    account_no INTEGER NOT NULL,
    name TEXT NOT NULL CHECK (length(name) <= 250),
    secret BLOB NOT NULL,
    role INTEGER NOT NULL CHECK (role BETWEEN 0 AND 2),
    is_disabled INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (account_no)
)
 STRICT;
CREATE UNIQUE INDEX account_by_name ON account (name);
CREATE TABLE api_token (
    token_no INTEGER NOT NULL,
    name TEXT NOT NULL CHECK (length(name) <= 250),
    digest BLOB NOT NULL,
    role INTEGER NOT NULL CHECK (role BETWEEN 0 AND 2),
    scopes BLOB,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    last_used_at INTEGER,
    PRIMARY KEY (token_no)
)
 STRICT;
CREATE UNIQUE INDEX api_token_by_digest ON api_token (digest);
CREATE TABLE audit (
    audit_no INTEGER NOT NULL,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    role TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    address TEXT NOT NULL,
    is_refused INTEGER NOT NULL,
    code TEXT,
    "before" TEXT,
    "after" TEXT,
    previous BLOB NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (audit_no)
)
 STRICT;
CREATE TABLE audit_head (
    head_no INTEGER NOT NULL,
    encrypted BLOB NOT NULL,
    PRIMARY KEY (head_no)
)
 STRICT;
CREATE TABLE backfill (
    backfill_no INTEGER NOT NULL,
    dag_id TEXT NOT NULL CHECK (length(dag_id) <= 250),
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    reprocess TEXT NOT NULL,
    max_active INTEGER NOT NULL,
    is_reverse INTEGER NOT NULL,
    state TEXT NOT NULL,
    conf BLOB,
    next_at INTEGER,
    made INTEGER NOT NULL,
    skipped INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at INTEGER,
    failure TEXT,
    "key" TEXT,
    PRIMARY KEY (backfill_no)
)
 STRICT;
CREATE UNIQUE INDEX backfill_by_key ON backfill (dag_id, "key");
CREATE UNIQUE INDEX backfill_running ON backfill (dag_id) WHERE state = 'running';
CREATE TABLE dag_trigger (
    trigger_no INTEGER NOT NULL,
    dag_id TEXT NOT NULL CHECK (length(dag_id) <= 250),
    class_path TEXT NOT NULL,
    kwargs BLOB NOT NULL,
    since INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    event BLOB,
    event_key TEXT,
    held BLOB,
    run_no INTEGER,
    PRIMARY KEY (trigger_no)
)
 STRICT;
CREATE UNIQUE INDEX dag_trigger_by_dag ON dag_trigger (dag_id);
CREATE TABLE deletion (
    run_no INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (run_no)
)
 STRICT;
CREATE TABLE drained (
    node_no INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (node_no)
)
 STRICT;
CREATE TABLE event (
    trigger_no INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    run_no INTEGER NOT NULL,
    "key" TEXT,
    payload BLOB,
    PRIMARY KEY (trigger_no, sequence)
)
 WITHOUT ROWID,
 STRICT;
CREATE INDEX event_by_run ON event (run_no);
CREATE TABLE journal (
    commit_no INTEGER NOT NULL,
    at INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (commit_no)
)
 STRICT;
CREATE TABLE meta (
    name TEXT NOT NULL CHECK (length(name) <= 100),
    value TEXT NOT NULL,
    PRIMARY KEY (name)
)
 STRICT;
CREATE TABLE named_event (
    event_no INTEGER NOT NULL,
    name TEXT NOT NULL CHECK (length(name) <= 250),
    "key" TEXT CHECK (length(key) <= 250),
    data BLOB NOT NULL,
    at INTEGER NOT NULL,
    run_no INTEGER,
    request TEXT CHECK (length(request) <= 250),
    PRIMARY KEY (event_no)
)
 STRICT;
CREATE INDEX named_event_by_name ON named_event (name, event_no);
CREATE UNIQUE INDEX named_event_by_request ON named_event (name, request) WHERE request IS NOT NULL;
CREATE TABLE named_value (
    kind TEXT NOT NULL CHECK (kind IN ('secret', 'connection', 'variable')),
    name TEXT NOT NULL CHECK (length(name) <= 250),
    value_no INTEGER NOT NULL,
    at INTEGER NOT NULL,
    encrypted BLOB NOT NULL,
    PRIMARY KEY (kind, name)
)
 WITHOUT ROWID,
 STRICT;
CREATE TABLE node (
    node_no INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    commit_no INTEGER NOT NULL,
    started_at INTEGER,
    seen_at INTEGER,
    version TEXT,
    pid INTEGER,
    host TEXT,
    steady_at INTEGER,
    PRIMARY KEY (node_no)
)
 STRICT;
CREATE TABLE number_lease (
    name TEXT NOT NULL CHECK (length(name) <= 100),
    next_no INTEGER NOT NULL,
    PRIMARY KEY (name)
)
 STRICT;
CREATE TABLE outbox (
    outbox_no INTEGER NOT NULL,
    kind TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (outbox_no)
)
 STRICT;
CREATE TABLE pool (
    name TEXT NOT NULL CHECK (length(name) <= 250),
    slots INTEGER NOT NULL,
    include_deferred INTEGER NOT NULL CHECK (include_deferred BETWEEN 0 AND 1),
    PRIMARY KEY (name)
)
 STRICT;
CREATE TABLE session (
    session_no INTEGER NOT NULL,
    name TEXT NOT NULL CHECK (length(name) <= 250),
    digest BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    address TEXT NOT NULL,
    PRIMARY KEY (session_no)
)
 STRICT;
CREATE UNIQUE INDEX session_by_digest ON session (digest);
CREATE TABLE stream_item (
    task_no INTEGER NOT NULL,
    item_index INTEGER NOT NULL,
    run_no INTEGER NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY (task_no, item_index)
)
 WITHOUT ROWID,
 STRICT;
CREATE INDEX stream_item_by_run ON stream_item (run_no, task_no);
CREATE TABLE version (
    version TEXT NOT NULL CHECK (length(version) <= 128),
    file TEXT NOT NULL,
    dags BLOB NOT NULL,
    sources BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (version)
)
 STRICT;
CREATE TABLE dag (
    dag_id TEXT NOT NULL CHECK (length(dag_id) <= 250),
    file TEXT NOT NULL,
    version TEXT NOT NULL,
    paused INTEGER NOT NULL CHECK (paused BETWEEN 0 AND 1),
    next_run_at INTEGER,
    gone INTEGER NOT NULL CHECK (gone BETWEEN 0 AND 1),
    last_fire_time INTEGER,
    late_alert_for INTEGER,
    PRIMARY KEY (dag_id),
    FOREIGN KEY(version) REFERENCES version (version)
)
 STRICT;
CREATE TABLE dag_event (
    event_no INTEGER NOT NULL,
    trigger_no INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    "key" TEXT,
    at INTEGER NOT NULL,
    outcome INTEGER NOT NULL CHECK (outcome BETWEEN 0 AND 4),
    run_no INTEGER,
    reason TEXT,
    asset TEXT,
    data BLOB,
    PRIMARY KEY (event_no),
    FOREIGN KEY(trigger_no) REFERENCES dag_trigger (trigger_no)
)
 STRICT;
CREATE UNIQUE INDEX dag_event_by_key ON dag_event (trigger_no, "key") WHERE "key" IS NOT NULL;
CREATE UNIQUE INDEX dag_event_by_sequence ON dag_event (trigger_no, sequence);
CREATE INDEX dag_event_held ON dag_event (event_no) WHERE outcome = 1;
CREATE TABLE dag_file (
    file TEXT NOT NULL CHECK (length(file) <= 600),
    version TEXT,
    reason TEXT,
    message TEXT,
    parsed_at INTEGER NOT NULL,
    PRIMARY KEY (file),
    FOREIGN KEY(version) REFERENCES version (version)
)
 STRICT;
CREATE TABLE run (
    run_no INTEGER NOT NULL,
    run_id TEXT NOT NULL CHECK (length(run_id) <= 500),
    dag_id TEXT NOT NULL CHECK (length(dag_id) <= 250),
    version TEXT NOT NULL,
    state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 5),
    cause TEXT NOT NULL,
    first_task_no INTEGER NOT NULL,
    logical_date INTEGER,
    conf BLOB,
    "key" TEXT CHECK (length(key) <= 250),
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER,
    quarantine TEXT,
    caller INTEGER,
    backfill INTEGER,
    PRIMARY KEY (run_no),
    FOREIGN KEY(version) REFERENCES version (version)
)
 STRICT;
CREATE INDEX run_by_backfill ON run (backfill, run_no) WHERE backfill IS NOT NULL;
CREATE INDEX run_by_dag ON run (dag_id, run_no);
CREATE INDEX run_by_date ON run (dag_id, logical_date) WHERE logical_date IS NOT NULL;
CREATE UNIQUE INDEX run_by_fire_time ON run (dag_id, logical_date) WHERE cause = 'schedule';
CREATE UNIQUE INDEX run_by_id ON run (run_id);
CREATE UNIQUE INDEX run_by_key ON run (dag_id, "key");
CREATE INDEX run_by_version ON run (version);
CREATE INDEX run_ended ON run (dag_id, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX run_live ON run (run_no) WHERE ended_at IS NULL;
CREATE INDEX run_unsuccessful ON run (state, run_no) WHERE state > 2;
CREATE TABLE clear_request (
    run_no INTEGER NOT NULL,
    "key" TEXT NOT NULL CHECK (length(key) <= 250),
    cleared INTEGER NOT NULL,
    PRIMARY KEY (run_no, "key"),
    FOREIGN KEY(run_no) REFERENCES run (run_no)
)
 WITHOUT ROWID,
 STRICT;
CREATE TABLE expansion (
    run_no INTEGER NOT NULL,
    task_index INTEGER NOT NULL,
    width INTEGER NOT NULL,
    first_task_no INTEGER NOT NULL,
    is_open INTEGER DEFAULT '0' NOT NULL CHECK (is_open BETWEEN 0 AND 1),
    PRIMARY KEY (run_no, task_index),
    FOREIGN KEY(run_no) REFERENCES run (run_no)
)
 WITHOUT ROWID,
 STRICT;
CREATE TABLE task (
    task_no INTEGER NOT NULL,
    run_no INTEGER NOT NULL,
    task_index INTEGER NOT NULL,
    map_index INTEGER NOT NULL,
    state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 11),
    try_number INTEGER NOT NULL,
    start_no INTEGER NOT NULL,
    interruptions INTEGER NOT NULL,
    due_at INTEGER,
    deadline_at INTEGER,
    queued_at INTEGER,
    started_at INTEGER,
    ended_at INTEGER,
    failure BLOB,
    PRIMARY KEY (task_no),
    FOREIGN KEY(run_no) REFERENCES run (run_no)
)
 STRICT;
CREATE INDEX task_by_run ON task (run_no);
CREATE TABLE task_trigger (
    trigger_no INTEGER NOT NULL,
    task_no INTEGER NOT NULL,
    run_no INTEGER NOT NULL,
    state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 2),
    class_path TEXT NOT NULL,
    kwargs BLOB,
    since INTEGER NOT NULL,
    deadline_at INTEGER,
    next_method TEXT NOT NULL,
    next_kwargs BLOB,
    event BLOB,
    event_key TEXT,
    ordinal INTEGER DEFAULT '-1' NOT NULL,
    branch INTEGER DEFAULT '0' NOT NULL,
    window INTEGER DEFAULT '0' NOT NULL,
    failure BLOB,
    timeout_method TEXT DEFAULT '' NOT NULL,
    PRIMARY KEY (trigger_no),
    FOREIGN KEY(run_no) REFERENCES run (run_no)
)
 STRICT;
CREATE INDEX task_trigger_by_run ON task_trigger (run_no);
CREATE TABLE result_chunk (
    task_no INTEGER NOT NULL,
    start_no INTEGER NOT NULL,
    chunk_no INTEGER NOT NULL,
    stored_at INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (task_no, start_no, chunk_no)
)
 STRICT;
CREATE TABLE map_label (
    task_no INTEGER NOT NULL,
    run_no INTEGER NOT NULL,
    label TEXT NOT NULL,
    PRIMARY KEY (task_no),
    FOREIGN KEY(task_no) REFERENCES task (task_no)
)
 STRICT;
CREATE TABLE record (
    task_no INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    run_no INTEGER NOT NULL,
    state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 2),
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    source_location TEXT NOT NULL,
    answer BLOB,
    failure BLOB,
    PRIMARY KEY (task_no, ordinal),
    FOREIGN KEY(task_no) REFERENCES task (task_no)
)
 WITHOUT ROWID,
 STRICT;
CREATE INDEX record_by_run ON record (run_no);
CREATE TABLE result (
    task_no INTEGER NOT NULL,
    run_no INTEGER NOT NULL,
    start_no INTEGER NOT NULL,
    body BLOB,
    size INTEGER NOT NULL,
    width INTEGER,
    PRIMARY KEY (task_no),
    FOREIGN KEY(task_no) REFERENCES task (task_no)
)
 STRICT;
CREATE INDEX result_wide ON result (run_no) WHERE width IS NOT NULL;
CREATE TABLE try (
    task_no INTEGER NOT NULL,
    start_no INTEGER NOT NULL,
    run_no INTEGER NOT NULL,
    try_number INTEGER NOT NULL,
    state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 11),
    started_at INTEGER,
    ended_at INTEGER NOT NULL,
    failure BLOB,
    PRIMARY KEY (task_no, start_no),
    FOREIGN KEY(task_no) REFERENCES task (task_no)
)
 WITHOUT ROWID,
 STRICT;
CREATE TABLE try_worker (
    task_no INTEGER NOT NULL,
    start_no INTEGER NOT NULL,
    run_no INTEGER NOT NULL,
    executor TEXT NOT NULL,
    host TEXT NOT NULL,
    worker TEXT NOT NULL,
    PRIMARY KEY (task_no, start_no),
    FOREIGN KEY(task_no) REFERENCES task (task_no)
)
 WITHOUT ROWID,
 STRICT;
INSERT INTO meta (name, value) VALUES ('product', 'aioflow');
