ALTER TABLE journal RENAME COLUMN commit_no TO seq;
ALTER TABLE journal ADD COLUMN node_no BIGINT DEFAULT '1' NOT NULL;
ALTER TABLE journal ADD COLUMN commit_no BIGINT DEFAULT '0' NOT NULL;
UPDATE journal SET commit_no = seq;
CREATE UNIQUE INDEX journal_by_commit ON journal (node_no, commit_no);
CREATE SEQUENCE journal_seq;
SELECT setval('journal_seq', max(seq)) FROM journal HAVING max(seq) IS NOT NULL;
ALTER TABLE node ADD COLUMN home TEXT;
ALTER TABLE node ADD COLUMN name TEXT;
ALTER TABLE node ADD COLUMN state SMALLINT DEFAULT '2' NOT NULL CHECK (state BETWEEN 0 AND 3);
ALTER TABLE node ADD COLUMN heartbeat BIGINT DEFAULT '0' NOT NULL;
ALTER TABLE node ADD COLUMN heartbeat_ms BIGINT DEFAULT '0' NOT NULL;
ALTER TABLE node ADD COLUMN heartbeat_at BIGINT;
UPDATE node SET name = host;
UPDATE node SET state = 1, home = (SELECT value FROM meta WHERE meta.name = 'holder')
    WHERE node_no = 1 AND EXISTS (SELECT 1 FROM meta WHERE meta.name = 'holder');
DELETE FROM meta WHERE name = 'holder';
CREATE UNIQUE INDEX node_by_home ON node (home);
CREATE UNIQUE INDEX node_active ON node (state) WHERE state = 1;
INSERT INTO number_lease (name, next_no)
    SELECT 'term', max(epoch) + 1 FROM node HAVING max(epoch) IS NOT NULL;
ALTER TABLE node SET (fillfactor = 50);
