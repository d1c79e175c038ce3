-- Times are microseconds since 1970. Names and ids compare byte by byte, whatever the locale of the database.

-- One row: who this store is. system, timeline and tables tell a restored or failed-over database from the one that was
-- here before. xid_base is added to transaction ids: in a database restored from a dump they begin low again.
CREATE TABLE semel_store (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    store_id text NOT NULL,
    schema integer NOT NULL,
    epoch integer NOT NULL DEFAULT 1,
    xid_base bigint NOT NULL DEFAULT 0,
    system text,
    timeline bigint,
    tables text
);

-- Never reset. A fence is drawn for each claim; seats and turns of work rows come from the other.
CREATE SEQUENCE semel_fence AS bigint;
CREATE SEQUENCE semel_work_seq AS bigint;

-- start: the offset before the first one; head: the last one given out; first: the lowest one that may be read;
-- xid: the mark of the newest record. Whoever appends holds the row until the commit, so offsets appear in order.
CREATE TABLE semel_stream (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    start bigint NOT NULL,
    head bigint NOT NULL,
    first bigint NOT NULL,
    xid bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- hollowed: below this offset only identities are left; forgotten: below this one nothing is. Apart from the heads,
-- so that a sweep never waits for an append nor an append for a sweep.
CREATE TABLE semel_retention (
    stream_id integer PRIMARY KEY,
    hollowed bigint NOT NULL,
    forgotten bigint NOT NULL
) WITH (fillfactor = 50);

-- A record keeps its identity after its body has been swept (hollow), so that a late copy is still known.
-- (xid, seq) is the order of the index: see semel.kernel.ledger.Mark.
CREATE TABLE semel_record (
    stream_id integer NOT NULL,
    "offset" bigint NOT NULL,
    seq bigint GENERATED ALWAYS AS IDENTITY,
    xid bigint NOT NULL,
    epoch integer NOT NULL,
    at bigint NOT NULL,
    kind smallint NOT NULL,
    hollow boolean NOT NULL DEFAULT false,
    target text NOT NULL,
    identity text COLLATE "C",
    id text NOT NULL,
    source text NOT NULL,
    type text NOT NULL,
    subject text,
    time bigint,
    session text,
    idx bigint,
    datacontenttype text,
    headers text,
    data bytea,
    blob text,
    size bigint NOT NULL,
    PRIMARY KEY (stream_id, "offset")
);
CREATE UNIQUE INDEX semel_record_identity ON semel_record (stream_id, identity) WHERE identity IS NOT NULL;
CREATE INDEX semel_record_mark ON semel_record (xid, seq);

CREATE TABLE semel_cursor (
    name text COLLATE "C" PRIMARY KEY,
    stream text COLLATE "C" NOT NULL,
    epoch integer NOT NULL,
    "offset" bigint NOT NULL,
    pins boolean NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX semel_cursor_stream ON semel_cursor (stream) WHERE pins;

CREATE TABLE semel_state (
    key text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL,
    version bigint NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

-- due: when the row may be claimed; for a claimed row, when its lease ends.
-- turn: its place among the rows of its key; NULL while it is scheduled and has not taken its turn.
-- A row is new by its scope and named by its queue, so it is the only one of its identity in both.
CREATE TABLE semel_work (
    seq bigint PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    scope text COLLATE "C" NOT NULL,
    identity text COLLATE "C" NOT NULL,
    key text COLLATE "C",
    turn bigint,
    state smallint NOT NULL,
    holds boolean NOT NULL,
    due bigint NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    fence bigint NOT NULL DEFAULT 0,
    owner text NOT NULL DEFAULT '',
    keep_until bigint,
    cause text,
    id text NOT NULL,
    source text NOT NULL,
    type text NOT NULL,
    subject text,
    time bigint,
    session text,
    idx bigint,
    datacontenttype text,
    headers text,
    data bytea,
    blob text,
    size bigint NOT NULL,
    UNIQUE (scope, identity),
    UNIQUE (queue, identity)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX semel_work_due ON semel_work (queue, due, seq) WHERE key IS NULL AND state <= 2;
CREATE INDEX semel_work_turn ON semel_work (queue, key, turn) WHERE key IS NOT NULL AND holds;
CREATE INDEX semel_work_claimed ON semel_work (queue, key) WHERE key IS NOT NULL AND state = 2;
CREATE INDEX semel_work_waiting ON semel_work (queue, due, seq) WHERE key IS NOT NULL AND turn IS NULL AND state <= 1;
CREATE INDEX semel_work_keep ON semel_work (keep_until) WHERE keep_until IS NOT NULL AND NOT holds;

-- due: when the first row of the key may be claimed; NULL while that row is put aside and holds the key. seq is that
-- row's. Only claims touch this table, so that a user's transaction never keeps a key from others.
CREATE TABLE semel_work_key (
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    due bigint,
    seq bigint NOT NULL,
    PRIMARY KEY (queue, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX semel_work_key_due ON semel_work_key (queue, due, seq) WHERE due IS NOT NULL;

-- Keys with a row that is new or has moved. Whoever writes such a row leaves a note; the next claim reads the notes and
-- brings the keys up to date.
CREATE TABLE semel_work_news (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX semel_work_news_queue ON semel_work_news (queue, seq);

CREATE TABLE semel_blob (
    name text COLLATE "C" PRIMARY KEY,
    at bigint NOT NULL,
    refs integer NOT NULL DEFAULT 0
);
CREATE INDEX semel_blob_orphan ON semel_blob (at) WHERE refs <= 0;

CREATE TABLE semel_chunk (
    blob text COLLATE "C" NOT NULL,
    part integer NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (blob, part)
);
ALTER TABLE semel_chunk ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE semel_ledger (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    xid bigint NOT NULL,
    at bigint NOT NULL,
    node text NOT NULL,
    pipeline text NOT NULL,
    hop text NOT NULL,
    kind smallint NOT NULL,
    message text,
    delivery text,
    session text,
    idx bigint,
    peer text NOT NULL,
    stream text,
    epoch integer,
    first bigint,
    last bigint,
    n integer NOT NULL,
    fold bigint,
    attempt integer NOT NULL,
    cause text,
    trace text,
    PRIMARY KEY (xid, seq)
);

-- One row per writer: the number of its last commit. After a connection broke inside COMMIT, the row tells whether that
-- commit happened. void is the number of a commit that was found not to have happened and never will.
CREATE TABLE semel_marker (
    writer text COLLATE "C" PRIMARY KEY,
    n bigint NOT NULL,
    void bigint NOT NULL DEFAULT 0,
    at bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
