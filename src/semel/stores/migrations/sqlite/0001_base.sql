-- One row: who this store is, and the counters that are never reset.
CREATE TABLE semel_store (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    store_id TEXT NOT NULL,
    schema INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    commits INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    record_seq INTEGER NOT NULL,
    work_seq INTEGER NOT NULL,
    ledger_seq INTEGER NOT NULL
) STRICT;

-- start: the offset before the first one; head: the last one given out; first: the lowest one that may be read;
-- hollowed: up to here the sweep has been, and only identities are left.
CREATE TABLE semel_stream (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    start INTEGER NOT NULL,
    head INTEGER NOT NULL,
    first INTEGER NOT NULL,
    hollowed INTEGER NOT NULL
) STRICT;

-- A record keeps its identity after its body has been trimmed, so that a late copy is still known.
CREATE TABLE semel_record (
    seq INTEGER PRIMARY KEY,
    stream_id INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    "offset" INTEGER NOT NULL,
    identity TEXT,
    kind INTEGER NOT NULL,
    target TEXT NOT NULL,
    at INTEGER NOT NULL,
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
    size INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX semel_record_offset ON semel_record (stream_id, "offset");
CREATE UNIQUE INDEX semel_record_identity ON semel_record (stream_id, identity) WHERE identity IS NOT NULL;

CREATE TABLE semel_cursor (
    name TEXT PRIMARY KEY,
    stream TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    "offset" INTEGER NOT NULL,
    pins INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX semel_cursor_stream ON semel_cursor (stream, "offset") WHERE pins = 1;

CREATE TABLE semel_state (
    key TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    version INTEGER NOT NULL
) STRICT;

-- due: when the row may be claimed; for a claimed row, when its lease ends.
-- turn: its place among the rows of its key; NULL while it is scheduled and has not taken its turn.
CREATE TABLE semel_work (
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
    CHECK (state NOT IN (5, 6) OR keep_until IS NOT NULL)
) STRICT;
CREATE UNIQUE INDEX semel_work_identity ON semel_work (queue, identity);
CREATE INDEX semel_work_due ON semel_work (queue, due, seq) WHERE key IS NULL AND state IN (0, 1, 2);
CREATE INDEX semel_work_turn ON semel_work (queue, key, turn) WHERE key IS NOT NULL AND holds = 1;
CREATE INDEX semel_work_claimed ON semel_work (queue, key, due) WHERE key IS NOT NULL AND state = 2;
CREATE INDEX semel_work_waiting ON semel_work (queue, due, seq) WHERE key IS NOT NULL AND turn IS NULL AND state = 1;
CREATE INDEX semel_work_keep ON semel_work (keep_until) WHERE keep_until IS NOT NULL;

-- Only for identities that are unique over more than their own queue.
CREATE TABLE semel_scope (
    scope TEXT NOT NULL,
    identity TEXT NOT NULL,
    seq INTEGER NOT NULL,
    queue TEXT NOT NULL,
    PRIMARY KEY (scope, identity)
) STRICT, WITHOUT ROWID;

-- due: when the first row of the key may be claimed; NULL while that row is put aside and holds the key.
CREATE TABLE semel_work_key (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    due INTEGER,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX semel_work_key_due ON semel_work_key (queue, due) WHERE due IS NOT NULL;

CREATE TABLE semel_blob (
    name TEXT PRIMARY KEY,
    at INTEGER NOT NULL,
    size INTEGER NOT NULL,
    refs INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX semel_blob_orphan ON semel_blob (at) WHERE refs <= 0;

CREATE TABLE semel_chunk (
    blob TEXT NOT NULL,
    part INTEGER NOT NULL,
    data BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX semel_chunk_part ON semel_chunk (blob, part);

CREATE TABLE semel_ledger (
    seq INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    node TEXT NOT NULL,
    pipeline TEXT NOT NULL,
    hop TEXT NOT NULL,
    kind INTEGER NOT NULL,
    message TEXT,
    delivery TEXT,
    session TEXT,
    idx INTEGER,
    peer TEXT NOT NULL,
    stream TEXT,
    epoch INTEGER,
    first INTEGER,
    last INTEGER,
    n INTEGER NOT NULL,
    fold INTEGER,
    attempt INTEGER NOT NULL,
    cause TEXT,
    trace TEXT
) STRICT;
