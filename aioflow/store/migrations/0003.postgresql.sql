ALTER TABLE run ADD COLUMN started_by TEXT;
ALTER TABLE backfill ADD COLUMN started_by TEXT;
ALTER TABLE account ADD COLUMN groups BYTEA;
CREATE TABLE decision (
    decision_no BIGINT NOT NULL,
    run_no BIGINT NOT NULL,
    task_no BIGINT NOT NULL,
    question BYTEA NOT NULL,
    asked_at BIGINT NOT NULL,
    deadline_at BIGINT,
    vote_count BIGINT NOT NULL,
    votes BYTEA NOT NULL,
    outcome TEXT,
    answer BYTEA,
    ended_at BIGINT,
    PRIMARY KEY (decision_no),
    FOREIGN KEY(run_no) REFERENCES run (run_no)
);
CREATE INDEX decision_by_run ON decision (run_no, decision_no);
CREATE INDEX decision_open ON decision (decision_no) WHERE ended_at IS NULL;
