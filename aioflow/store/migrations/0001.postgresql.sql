CREATE TABLE account (
    account_no BIGINT NOT NULL,
    name TEXT NOT NULL CHECK (length(name) <= 250),
    secret BYTEA NOT NULL,
    role SMALLINT NOT NULL CHECK (role BETWEEN 0 AND 2),
    is_disabled SMALLINT NOT NULL,
    created_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    PRIMARY KEY (account_no)
);
CREATE UNIQUE INDEX account_by_name ON account (name);
CREATE TABLE api_token (
    token_no BIGINT NOT NULL,
    name TEXT NOT NULL CHECK (length(name) <= 250),
    digest BYTEA NOT NULL,
    role SMALLINT NOT NULL CHECK (role BETWEEN 0 AND 2),
    scopes BYTEA,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    last_used_at BIGINT,
    PRIMARY KEY (token_no)
);
CREATE UNIQUE INDEX api_token_by_digest ON api_token (digest);
CREATE TABLE audit (
    audit_no BIGINT NOT NULL,
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    role TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    address TEXT NOT NULL,
    is_refused SMALLINT NOT NULL,
    code TEXT,
    before TEXT,
    after TEXT,
    previous BYTEA NOT NULL,
    digest BYTEA NOT NULL,
    PRIMARY KEY (audit_no)
);
CREATE TABLE audit_head (
    head_no BIGINT NOT NULL,
    encrypted BYTEA NOT NULL,
    PRIMARY KEY (head_no)
);
CREATE TABLE backfill (
    backfill_no BIGINT NOT NULL,
    dag_id TEXT NOT NULL CHECK (length(dag_id) <= 250),
    first BIGINT NOT NULL,
    last BIGINT NOT NULL,
    reprocess TEXT NOT NULL,
    max_active BIGINT NOT NULL,
    is_reverse BIGINT NOT NULL,
    state TEXT NOT NULL,
    conf BYTEA,
    next_at BIGINT,
    made BIGINT NOT NULL,
    skipped BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    failure TEXT,
    key TEXT,
    PRIMARY KEY (backfill_no)
);
CREATE UNIQUE INDEX backfill_by_key ON backfill (dag_id, key);
CREATE UNIQUE INDEX backfill_running ON backfill (dag_id) WHERE state = 'running';
CREATE TABLE dag_trigger (
    trigger_no BIGINT NOT NULL,
    dag_id TEXT NOT NULL CHECK (length(dag_id) <= 250),
    class_path TEXT NOT NULL,
    kwargs BYTEA NOT NULL,
    since BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    event BYTEA,
    event_key TEXT,
    held BYTEA,
    run_no BIGINT,
    PRIMARY KEY (trigger_no)
);
CREATE UNIQUE INDEX dag_trigger_by_dag ON dag_trigger (dag_id);
CREATE TABLE deletion (
    run_no BIGINT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (run_no)
);
CREATE TABLE drained (
    node_no BIGINT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (node_no)
);
CREATE TABLE event (
    trigger_no BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    run_no BIGINT NOT NULL,
    key TEXT,
    payload BYTEA,
    PRIMARY KEY (trigger_no, sequence)
);
CREATE INDEX event_by_run ON event (run_no);
CREATE TABLE journal (
    commit_no BIGINT NOT NULL,
    at BIGINT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (commit_no)
);
CREATE TABLE meta (
    name TEXT NOT NULL CHECK (length(name) <= 100),
    value TEXT NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE named_event (
    event_no BIGINT NOT NULL,
    name TEXT NOT NULL CHECK (length(name) <= 250),
    key TEXT CHECK (length(key) <= 250),
    data BYTEA NOT NULL,
    at BIGINT NOT NULL,
    run_no BIGINT,
    request TEXT CHECK (length(request) <= 250),
    PRIMARY KEY (event_no)
);
CREATE INDEX named_event_by_name ON named_event (name, event_no);
CREATE UNIQUE INDEX named_event_by_request ON named_event (name, request) WHERE request IS NOT NULL;
CREATE TABLE named_value (
    kind TEXT NOT NULL CHECK (kind IN ('secret', 'connection', 'variable')),
    name TEXT NOT NULL CHECK (length(name) <= 250),
    value_no BIGINT NOT NULL,
    at BIGINT NOT NULL,
    encrypted BYTEA NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE TABLE node (
    node_no BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    commit_no BIGINT NOT NULL,
    started_at BIGINT,
    seen_at BIGINT,
    version TEXT,
    pid BIGINT,
    host TEXT,
    steady_at BIGINT,
    PRIMARY KEY (node_no)
);
CREATE TABLE number_lease (
    name TEXT NOT NULL CHECK (length(name) <= 100),
    next_no BIGINT NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE outbox (
    outbox_no BIGINT NOT NULL,
    kind TEXT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (outbox_no)
);
CREATE TABLE pool (
    name TEXT NOT NULL CHECK (length(name) <= 250),
    slots BIGINT NOT NULL,
    include_deferred SMALLINT NOT NULL CHECK (include_deferred BETWEEN 0 AND 1),
    PRIMARY KEY (name)
);
CREATE TABLE session (
    session_no BIGINT NOT NULL,
    name TEXT NOT NULL CHECK (length(name) <= 250),
    digest BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    address TEXT NOT NULL,
    PRIMARY KEY (session_no)
);
CREATE UNIQUE INDEX session_by_digest ON session (digest);
CREATE TABLE stream_item (
    task_no BIGINT NOT NULL,
    item_index BIGINT NOT NULL,
    run_no BIGINT NOT NULL,
    payload BYTEA NOT NULL,
    PRIMARY KEY (task_no, item_index)
);
CREATE INDEX stream_item_by_run ON stream_item (run_no, task_no);
CREATE TABLE version (
    version TEXT NOT NULL CHECK (length(version) <= 128),
    file TEXT NOT NULL,
    dags BYTEA NOT NULL,
    sources BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (version)
);
CREATE TABLE dag (
    dag_id TEXT NOT NULL CHECK (length(dag_id) <= 250),
    file TEXT NOT NULL,
    version TEXT NOT NULL,
    paused SMALLINT NOT NULL CHECK (paused BETWEEN 0 AND 1),
    next_run_at BIGINT,
    gone SMALLINT NOT NULL CHECK (gone BETWEEN 0 AND 1),
    last_fire_time BIGINT,
    late_alert_for BIGINT,
    PRIMARY KEY (dag_id),
    FOREIGN KEY(version) REFERENCES version (version)
);
CREATE TABLE dag_event (
    event_no BIGINT NOT NULL,
    trigger_no BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    key TEXT,
    at BIGINT NOT NULL,
    outcome SMALLINT NOT NULL CHECK (outcome BETWEEN 0 AND 4),
    run_no BIGINT,
    reason TEXT,
    asset TEXT,
    data BYTEA,
    PRIMARY KEY (event_no),
    FOREIGN KEY(trigger_no) REFERENCES dag_trigger (trigger_no)
);
CREATE UNIQUE INDEX dag_event_by_key ON dag_event (trigger_no, key) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX dag_event_by_sequence ON dag_event (trigger_no, sequence);
CREATE INDEX dag_event_held ON dag_event (event_no) WHERE outcome = 1;
CREATE TABLE dag_file (
    file TEXT NOT NULL CHECK (length(file) <= 600),
    version TEXT,
    reason TEXT,
    message TEXT,
    parsed_at BIGINT NOT NULL,
    PRIMARY KEY (file),
    FOREIGN KEY(version) REFERENCES version (version)
);
CREATE TABLE run (
    run_no BIGINT NOT NULL,
    run_id TEXT NOT NULL CHECK (length(run_id) <= 500),
    dag_id TEXT NOT NULL CHECK (length(dag_id) <= 250),
    version TEXT NOT NULL,
    state SMALLINT NOT NULL CHECK (state BETWEEN 0 AND 5),
    cause TEXT NOT NULL,
    first_task_no BIGINT NOT NULL,
    logical_date BIGINT,
    conf BYTEA,
    key TEXT CHECK (length(key) <= 250),
    created_at BIGINT NOT NULL,
    started_at BIGINT,
    ended_at BIGINT,
    quarantine TEXT,
    caller BIGINT,
    backfill BIGINT,
    PRIMARY KEY (run_no),
    FOREIGN KEY(version) REFERENCES version (version)
);
CREATE INDEX run_by_backfill ON run (backfill, run_no) WHERE backfill IS NOT NULL;
CREATE INDEX run_by_dag ON run (dag_id, run_no);
CREATE INDEX run_by_date ON run (dag_id, logical_date) WHERE logical_date IS NOT NULL;
CREATE UNIQUE INDEX run_by_fire_time ON run (dag_id, logical_date) WHERE cause = 'schedule';
CREATE UNIQUE INDEX run_by_id ON run (run_id);
CREATE UNIQUE INDEX run_by_key ON run (dag_id, key);
CREATE INDEX run_by_version ON run (version);
CREATE INDEX run_ended ON run (dag_id, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX run_live ON run (run_no) WHERE ended_at IS NULL;
CREATE INDEX run_unsuccessful ON run (state, run_no) WHERE state > 2;
CREATE TABLE clear_request (
    run_no BIGINT NOT NULL,
    key TEXT NOT NULL CHECK (length(key) <= 250),
    cleared BIGINT NOT NULL,
    PRIMARY KEY (run_no, key),
    FOREIGN KEY(run_no) REFERENCES run (run_no)
);
CREATE TABLE expansion (
    run_no BIGINT NOT NULL,
    task_index BIGINT NOT NULL,
    width BIGINT NOT NULL,
    first_task_no BIGINT NOT NULL,
    is_open SMALLINT DEFAULT '0' NOT NULL CHECK (is_open BETWEEN 0 AND 1),
    PRIMARY KEY (run_no, task_index),
    FOREIGN KEY(run_no) REFERENCES run (run_no)
);
CREATE TABLE task (
    task_no BIGINT NOT NULL,
    run_no BIGINT NOT NULL,
    task_index BIGINT NOT NULL,
    map_index BIGINT NOT NULL,
    state SMALLINT NOT NULL CHECK (state BETWEEN 0 AND 11),
    try_number BIGINT NOT NULL,
    start_no BIGINT NOT NULL,
    interruptions BIGINT NOT NULL,
    due_at BIGINT,
    deadline_at BIGINT,
    queued_at BIGINT,
    started_at BIGINT,
    ended_at BIGINT,
    failure BYTEA,
    PRIMARY KEY (task_no),
    FOREIGN KEY(run_no) REFERENCES run (run_no)
);
CREATE INDEX task_by_run ON task (run_no);
CREATE TABLE task_trigger (
    trigger_no BIGINT NOT NULL,
    task_no BIGINT NOT NULL,
    run_no BIGINT NOT NULL,
    state SMALLINT NOT NULL CHECK (state BETWEEN 0 AND 2),
    class_path TEXT NOT NULL,
    kwargs BYTEA,
    since BIGINT NOT NULL,
    deadline_at BIGINT,
    next_method TEXT NOT NULL,
    next_kwargs BYTEA,
    event BYTEA,
    event_key TEXT,
    ordinal BIGINT DEFAULT '-1' NOT NULL,
    branch BIGINT DEFAULT '0' NOT NULL,
    "window" BIGINT DEFAULT '0' NOT NULL,
    failure BYTEA,
    timeout_method TEXT DEFAULT '' NOT NULL,
    PRIMARY KEY (trigger_no),
    FOREIGN KEY(run_no) REFERENCES run (run_no)
);
CREATE INDEX task_trigger_by_run ON task_trigger (run_no);
CREATE TABLE result_chunk (
    task_no BIGINT NOT NULL,
    start_no BIGINT NOT NULL,
    chunk_no BIGINT NOT NULL,
    stored_at BIGINT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (task_no, start_no, chunk_no)
);
CREATE TABLE map_label (
    task_no BIGINT NOT NULL,
    run_no BIGINT NOT NULL,
    label TEXT NOT NULL,
    PRIMARY KEY (task_no),
    FOREIGN KEY(task_no) REFERENCES task (task_no)
);
CREATE TABLE record (
    task_no BIGINT NOT NULL,
    ordinal BIGINT NOT NULL,
    run_no BIGINT NOT NULL,
    state SMALLINT NOT NULL CHECK (state BETWEEN 0 AND 2),
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    source_location TEXT NOT NULL,
    answer BYTEA,
    failure BYTEA,
    PRIMARY KEY (task_no, ordinal),
    FOREIGN KEY(task_no) REFERENCES task (task_no)
);
CREATE INDEX record_by_run ON record (run_no);
CREATE TABLE result (
    task_no BIGINT NOT NULL,
    run_no BIGINT NOT NULL,
    start_no BIGINT NOT NULL,
    body BYTEA,
    size BIGINT NOT NULL,
    width BIGINT,
    PRIMARY KEY (task_no),
    FOREIGN KEY(task_no) REFERENCES task (task_no)
);
CREATE INDEX result_wide ON result (run_no) WHERE width IS NOT NULL;
CREATE TABLE try (
    task_no BIGINT NOT NULL,
    start_no BIGINT NOT NULL,
    run_no BIGINT NOT NULL,
    try_number BIGINT NOT NULL,
    state SMALLINT NOT NULL CHECK (state BETWEEN 0 AND 11),
    started_at BIGINT,
    ended_at BIGINT NOT NULL,
    failure BYTEA,
    PRIMARY KEY (task_no, start_no),
    FOREIGN KEY(task_no) REFERENCES task (task_no)
);
INSERT INTO meta (name, value) VALUES ('product', 'aioflow');
