CREATE TABLE pool_usage (
    pool TEXT NOT NULL CHECK (length(pool) <= 250),
    start BIGINT NOT NULL,
    slots BIGINT NOT NULL,
    used BIGINT NOT NULL,
    queued BIGINT NOT NULL,
    PRIMARY KEY (pool, start)
);
CREATE INDEX pool_usage_by_start ON pool_usage (start);
