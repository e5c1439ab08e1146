ALTER TABLE session ADD COLUMN agent TEXT;
ALTER TABLE session ADD COLUMN last_used_at BIGINT;
CREATE TABLE note (
    run_no BIGINT NOT NULL,
    task_index BIGINT NOT NULL,
    map_index BIGINT NOT NULL,
    at BIGINT NOT NULL,
    author TEXT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (run_no, task_index, map_index),
    FOREIGN KEY(run_no) REFERENCES run (run_no)
);
