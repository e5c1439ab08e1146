CREATE TABLE history (
    dag_id TEXT NOT NULL CHECK (length(dag_id) <= 250),
    task_id TEXT NOT NULL CHECK (length(task_id) <= 250),
    measure SMALLINT NOT NULL,
    start BIGINT NOT NULL,
    bucket BIGINT NOT NULL,
    occurrences BIGINT NOT NULL,
    total_ms BIGINT NOT NULL,
    PRIMARY KEY (dag_id, task_id, measure, start, bucket)
);
CREATE INDEX history_hourly ON history (start) WHERE start / 86400000000 * 86400000000 != start;
CREATE INDEX history_daily ON history (start) WHERE start / 86400000000 * 86400000000 = start;
INSERT INTO history
    SELECT dag_id, '', 0, ended_at - ended_at % 3600000000, state, count(*), 0
    FROM run
    WHERE ended_at >= 0
    GROUP BY dag_id, ended_at - ended_at % 3600000000, state;
