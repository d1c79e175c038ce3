-- The names of scopes and queues, once each.
CREATE TABLE semel_name (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- What a sweep leaves of a work row that is done: enough to know a late copy, and where the first one stood. Rows come
-- and go in the order of seq, more or less, so that pages fill up and become free as wholes.
CREATE TABLE semel_identity (
    seq INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL,
    queue INTEGER NOT NULL,
    keep_until INTEGER NOT NULL,
    identity TEXT NOT NULL,
    result BLOB
) STRICT;
CREATE UNIQUE INDEX semel_identity_scope ON semel_identity (scope, identity);
CREATE INDEX semel_identity_queue ON semel_identity (queue, identity) WHERE queue <> scope;
CREATE INDEX semel_identity_keep ON semel_identity (keep_until);

-- SQLite cannot change a CHECK, so the table is made anew: a dead row may stay for ever, and a row may have a result.
CREATE TABLE semel_work_new (
    seq INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    scope TEXT NOT NULL,
    identity TEXT NOT NULL,
    key TEXT,
    turn INTEGER,
    state INTEGER NOT NULL,
    holds INTEGER NOT NULL,
    due INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    owner TEXT NOT NULL,
    keep_until INTEGER,
    cause TEXT,
    result BLOB,
    id TEXT NOT NULL,
    source TEXT NOT NULL,
    type TEXT NOT NULL,
    subject TEXT,
    time INTEGER,
    session TEXT,
    idx INTEGER,
    datacontenttype TEXT,
    headers TEXT,
    data BLOB,
    blob TEXT,
    size INTEGER NOT NULL,
    CHECK (state <> 5 OR keep_until IS NOT NULL)
) STRICT;
INSERT INTO semel_work_new
SELECT
    seq, queue, scope, identity, key, turn, state, holds, due, attempts, fence, owner, keep_until, cause, NULL,
    id, source, type, subject, time, session, idx, datacontenttype, headers, data, blob, size
FROM semel_work ORDER BY seq;
DROP TABLE semel_work;
ALTER TABLE semel_work_new RENAME TO semel_work;
CREATE UNIQUE INDEX semel_work_identity ON semel_work (queue, identity);
CREATE INDEX semel_work_due ON semel_work (queue, due, seq) WHERE key IS NULL AND state IN (0, 1, 2);
CREATE INDEX semel_work_turn ON semel_work (queue, key, turn) WHERE key IS NOT NULL AND holds = 1;
CREATE INDEX semel_work_claimed ON semel_work (queue, key, due) WHERE key IS NOT NULL AND state = 2;
CREATE INDEX semel_work_waiting ON semel_work (queue, due, seq) WHERE key IS NOT NULL AND turn IS NULL AND state = 1;
CREATE INDEX semel_work_done ON semel_work (state) WHERE state = 5;
CREATE INDEX semel_work_dead ON semel_work (keep_until) WHERE state = 6 AND holds = 0 AND keep_until IS NOT NULL;
CREATE INDEX semel_work_aside ON semel_work (queue, state, seq) WHERE state IN (3, 4, 6);

-- A message's way through the ledger.
CREATE INDEX semel_ledger_message ON semel_ledger (message) WHERE message IS NOT NULL;
