ALTER TABLE session ADD COLUMN agent TEXT;
ALTER TABLE session ADD COLUMN last_used_at INTEGER;
CREATE TABLE note (
    run_no INTEGER NOT NULL,
    task_index INTEGER NOT NULL,
    map_index INTEGER NOT NULL,
    at INTEGER NOT NULL,
    author TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (run_no, task_index, map_index),
    FOREIGN KEY(run_no) REFERENCES run (run_no)
)
 WITHOUT ROWID,
 STRICT;
