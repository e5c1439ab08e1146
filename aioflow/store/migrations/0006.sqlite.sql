CREATE INDEX run_by_kind ON run (dag_id, state, cause, created_at);
