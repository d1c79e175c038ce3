-- The names of scopes and queues, once each.
CREATE TABLE semel_name (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE
);

-- What a sweep leaves of a work row that is done: enough to know a late copy, and where the first one stood. Who looks here
-- has inserted into semel_work before, so that it comes after the sweep that it may have waited for.
CREATE TABLE semel_identity (
    seq bigint NOT NULL,
    keep_until bigint NOT NULL,
    scope integer NOT NULL,
    queue integer NOT NULL,
    identity text COLLATE "C" NOT NULL,
    result bytea,
    PRIMARY KEY (scope, identity)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX semel_identity_queue ON semel_identity USING hash (identity) WHERE queue <> scope;
CREATE INDEX semel_identity_keep ON semel_identity (keep_until);

-- result: what was remembered with the identity. A row that is dead may stay for ever, one that is done may not.
ALTER TABLE semel_work ADD COLUMN result bytea;
ALTER TABLE semel_work ADD CONSTRAINT semel_work_done_ends CHECK (state <> 5 OR keep_until IS NOT NULL);
DROP INDEX semel_work_keep;
CREATE INDEX semel_work_done ON semel_work (seq) WHERE state = 5;
CREATE INDEX semel_work_dead ON semel_work (keep_until) WHERE state = 6 AND NOT holds AND keep_until IS NOT NULL;
CREATE INDEX semel_work_aside ON semel_work (queue, state, seq) WHERE state IN (3, 4, 6);

-- A message's way through the ledger.
CREATE INDEX semel_ledger_message ON semel_ledger (message COLLATE "C") WHERE message IS NOT NULL;
