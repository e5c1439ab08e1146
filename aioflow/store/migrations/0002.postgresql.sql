CREATE TABLE try_worker (
    task_no BIGINT NOT NULL,
    start_no BIGINT NOT NULL,
    run_no BIGINT NOT NULL,
    executor TEXT NOT NULL,
    host TEXT NOT NULL,
    worker TEXT NOT NULL,
    PRIMARY KEY (task_no, start_no),
    FOREIGN KEY(task_no) REFERENCES task (task_no)
);
