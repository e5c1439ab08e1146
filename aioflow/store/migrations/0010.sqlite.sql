CREATE TABLE pool_usage (
    pool TEXT NOT NULL CHECK (length(pool) <= 250),
    start INTEGER NOT NULL,
    slots INTEGER NOT NULL,
    used INTEGER NOT NULL,
    queued INTEGER NOT NULL,
    PRIMARY KEY (pool, start)
)
 WITHOUT ROWID,
 STRICT;
CREATE INDEX pool_usage_by_start ON pool_usage (start);
