ALTER TABLE run ADD COLUMN started_by TEXT;
ALTER TABLE backfill ADD COLUMN started_by TEXT;
ALTER TABLE account ADD COLUMN groups BLOB;
CREATE TABLE decision (
    decision_no INTEGER NOT NULL,
    run_no INTEGER NOT NULL,
    task_no INTEGER NOT NULL,
    question BLOB NOT NULL,
    asked_at INTEGER NOT NULL,
    deadline_at INTEGER,
    vote_count INTEGER NOT NULL,
    votes BLOB NOT NULL,
    outcome TEXT,
    answer BLOB,
    ended_at INTEGER,
    PRIMARY KEY (decision_no),
    FOREIGN KEY(run_no) REFERENCES run (run_no)
)
 STRICT;
CREATE INDEX decision_by_run ON decision (run_no, decision_no);
CREATE INDEX decision_open ON decision (decision_no) WHERE ended_at IS NULL;
