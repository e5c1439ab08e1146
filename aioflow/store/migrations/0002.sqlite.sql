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
