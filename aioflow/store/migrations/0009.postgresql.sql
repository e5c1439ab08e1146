CREATE UNLOGGED TABLE node_message (
    query_no BIGINT NOT NULL,
    is_answer SMALLINT NOT NULL CHECK (is_answer BETWEEN 0 AND 1),
    to_epoch BIGINT NOT NULL,
    from_epoch BIGINT NOT NULL,
    deadline_at BIGINT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (query_no, is_answer)
);
