-- Parameters are $1, $2 as the server knows them, so that every query can be pasted into psql.
-- Many rows travel as arrays, one per column.

-- name: begin
BEGIN ISOLATION LEVEL READ COMMITTED

-- name: hold_epoch
-- Nobody can raise the epoch from now on. What durability rests on is said in each transaction: a session may be shared,
-- or reset by a pooler.
SELECT pg_advisory_xact_lock_shared(1397050700, 1), CASE
    WHEN current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')
    THEN set_config('synchronous_commit', 'on', true)
END

-- name: need_disk
SELECT set_config('synchronous_commit', 'on', true)
WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')

-- name: need_no_disk
SELECT set_config('synchronous_commit', 'off', true)

-- name: barrier
-- Writes to the log and nowhere else, so that COMMIT has something to wait for.
SELECT pg_logical_emit_message(true, 'semel', '')

-- name: wait_for
SELECT set_config('lock_timeout', $1, true)

-- name: store_now
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, epoch, xid_base, members,
    current_setting('transaction_isolation') = 'read committed'
FROM semel_store

-- name: store_joined
-- In a transaction that is not ours: also which store it is in, and whether its COMMIT waits for the disk.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, epoch, xid_base, members,
    current_setting('transaction_isolation') = 'read committed', store_id, current_setting('synchronous_commit')
FROM semel_store

-- name: own_epoch
SELECT pg_advisory_xact_lock(1397050700, 1)

-- name: own_schema
SELECT pg_advisory_xact_lock(1397050700, 2)

-- name: into_own_schema
-- New tables come where the others are: the first schema of the search path may be another.
SELECT set_config('search_path', quote_ident(n.nspname) || ', ' || current_setting('search_path'), true)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass('semel_store')

-- name: own_sweep
SELECT pg_try_advisory_xact_lock(1397050700, 3)

-- name: own_members
SELECT pg_advisory_xact_lock(1397050700, 4), pg_advisory_xact_lock_shared(1397050700, 1)

-- name: draw_fences
SELECT nextval('semel_fence') FROM generate_series(1, $1::bigint)

-- name: draw_seats
SELECT nextval('semel_work_seq') FROM generate_series(1, $1::bigint)

-- name: sign
-- The server may come to it late. What has been voided by then has no number left to sign with, and n may not be null.
INSERT INTO semel_marker AS m (writer, n, at) VALUES ($1, $2, $3)
ON CONFLICT (writer) DO UPDATE SET n = CASE WHEN m.void < excluded.n THEN excluded.n END, at = excluded.at

-- name: void
INSERT INTO semel_marker AS m (writer, n, void, at) VALUES ($1, $2, $2, $3)
ON CONFLICT (writer) DO UPDATE SET n = excluded.n, void = excluded.void, at = excluded.at WHERE m.n < excluded.n

-- name: is_void
SELECT void >= $2 FROM semel_marker WHERE writer = $1

-- name: notify
SELECT pg_notify('semel', '')


-- Streams ---------------------------------------------------------------------------------------------------------

-- name: lock_streams
SELECT name, id, head, first, xid, pg_current_xact_id()::text::bigint
FROM semel_stream
WHERE name = ANY($1)
ORDER BY name
FOR UPDATE

-- name: add_streams
INSERT INTO semel_stream (name, start, head, first)
SELECT name, $2::bigint, $2::bigint, $2::bigint + 1 FROM unnest($1::text[]) AS u (name) ORDER BY name
ON CONFLICT DO NOTHING

-- name: heads
SELECT name, head FROM semel_stream WHERE name = ANY($1)

-- name: known
SELECT s.name, r.identity, r."offset", r.digest
FROM semel_stream s
JOIN semel_record r ON r.stream_id = s.id AND r.identity = ANY($2) AND r.identity IS NOT NULL
WHERE s.name = $1

-- name: known_in_many
-- LATERAL with a LIMIT: each row is looked up by all columns of the index, also by a plan that was made while the table
-- was empty.
SELECT u.stream, u.identity, r."offset", r.digest
FROM unnest($1::text[], $2::text[]) AS u (stream, identity)
CROSS JOIN LATERAL (SELECT id FROM semel_stream WHERE name = u.stream LIMIT 1) s
CROSS JOIN LATERAL (
    SELECT "offset", digest FROM semel_record
    WHERE stream_id = s.id AND identity = u.identity AND identity IS NOT NULL LIMIT 1
) r

-- name: add_records
INSERT INTO semel_record (
    epoch, at, stream_id, "offset", xid, kind, target, identity,
    id, source, type, subject, time, session, idx, datacontenttype, headers, data, blob, size
)
SELECT $1::integer, $2::bigint, u.*
FROM unnest(
    $3::integer[], $4::bigint[], $5::bigint[], $6::smallint[], $7::text[], $8::text[],
    $9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[], $14::text[], $15::bigint[], $16::text[],
    $17::text[], $18::bytea[], $19::text[], $20::bigint[]
) AS u

-- name: add_records_with_digests
INSERT INTO semel_record (
    epoch, at, stream_id, "offset", xid, kind, target, identity,
    id, source, type, subject, time, session, idx, datacontenttype, headers, data, blob, size, digest
)
SELECT $1::integer, $2::bigint, u.*
FROM unnest(
    $3::integer[], $4::bigint[], $5::bigint[], $6::smallint[], $7::text[], $8::text[],
    $9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[], $14::text[], $15::bigint[], $16::text[],
    $17::text[], $18::bytea[], $19::text[], $20::bigint[], $21::bytea[]
) AS u

-- name: set_heads
UPDATE semel_stream s SET head = u.head, xid = u.xid
FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) AS u (id, head, xid)
WHERE s.id = u.id

-- name: exported
SELECT value, version FROM semel_state WHERE key = $1 AND version > 0

-- name: first_unexported
SELECT min(r."offset")
FROM semel_stream s
JOIN semel_record r ON r.stream_id = s.id AND r."offset" >= $2::bigint AND r."offset" < $3::bigint
WHERE s.name = $1 AND (r.xid, r.seq) > ($4::bigint, $5::bigint) AND NOT r.hollow

-- name: trim
UPDATE semel_stream s
SET first = greatest(
    s.first,
    least($2::bigint, s.head + 1, (SELECT min(c."offset") + 1 FROM semel_cursor c WHERE c.stream = s.name AND c.pins))
)
WHERE s.name = $1
RETURNING s.first

-- name: read_first
SELECT first FROM semel_stream WHERE name = $1

-- name: read
SELECT t.epoch, s.first, greatest($2::bigint, s.start),
    r."offset", r.identity, r.kind, r.target, r.at,
    r.id, r.source, r.type, r.subject, r.time, r.session, r.idx, r.datacontenttype, r.headers, r.data, r.blob, r.size
FROM semel_store t
LEFT JOIN semel_stream s ON s.name = $1
LEFT JOIN LATERAL (
    SELECT * FROM semel_record r
    WHERE r.stream_id = s.id AND r."offset" > coalesce($2::bigint, s.start)
    ORDER BY r."offset"
    LIMIT $3::bigint
) r ON true

-- name: read_head
SELECT t.epoch, coalesce(s.head, 0) FROM semel_store t LEFT JOIN semel_stream s ON s.name = $1

-- name: read_index
SELECT r.xid, r.seq, s.name, r.epoch, r."offset", r.identity, r.kind, r.target, r.at, r.size,
    r.id, r.source, r.type, r.subject, r.time, r.session, r.idx, r.datacontenttype, r.headers
FROM semel_record r
JOIN semel_stream s ON s.id = r.stream_id
WHERE (r.xid, r.seq) > ($1::bigint, $2::bigint)
    AND r.xid < (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint + xid_base FROM semel_store)
    AND NOT r.hollow
ORDER BY r.xid, r.seq
LIMIT $3::bigint


-- Ledger ----------------------------------------------------------------------------------------------------------

-- name: add_ledger
INSERT INTO semel_ledger (
    xid, at, node, pipeline, hop, kind, message, delivery, session, idx, peer, stream, epoch, first, last, n, fold,
    attempt, cause, trace
)
SELECT (SELECT pg_current_xact_id()::text::bigint) + $1::bigint, $2::bigint, $3::text, u.*
FROM unnest(
    $4::text[], $5::text[], $6::smallint[], $7::text[], $8::text[], $9::text[], $10::bigint[], $11::text[],
    $12::text[], $13::integer[], $14::bigint[], $15::bigint[], $16::integer[], $17::bigint[], $18::integer[],
    $19::text[], $20::text[]
) AS u

-- name: read_history
SELECT xid, seq, at, node, pipeline, hop, kind, message, delivery, session, idx, peer, stream, epoch, first, last, n,
    fold, attempt, cause, trace
FROM semel_ledger
WHERE message COLLATE "C" = $1 AND message IS NOT NULL
ORDER BY xid, seq
LIMIT $2::bigint

-- name: read_ledger
SELECT xid, seq, at, node, pipeline, hop, kind, message, delivery, session, idx, peer, stream, epoch, first, last, n,
    fold, attempt, cause, trace
FROM semel_ledger
WHERE (xid, seq) > ($1::bigint, $2::bigint)
    AND xid < (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint + xid_base FROM semel_store)
ORDER BY xid, seq
LIMIT $3::bigint


-- Cursors and states ----------------------------------------------------------------------------------------------

-- name: lock_cursors
SELECT name, stream, epoch, "offset", pins FROM semel_cursor WHERE name = ANY($1) ORDER BY name FOR UPDATE

-- name: move_cursors
UPDATE semel_cursor c SET epoch = u.epoch, "offset" = u."offset", pins = u.pins
FROM unnest($1::text[], $2::text[], $3::integer[], $4::bigint[], $5::boolean[]) AS u (name, stream, epoch, "offset", pins)
WHERE c.name = u.name

-- name: add_cursors
INSERT INTO semel_cursor (name, stream, epoch, "offset", pins)
SELECT * FROM unnest($1::text[], $2::text[], $3::integer[], $4::bigint[], $5::boolean[]) AS u (name) ORDER BY name
ON CONFLICT DO NOTHING
RETURNING name

-- name: read_cursor
SELECT stream, epoch, "offset" FROM semel_cursor WHERE name = $1

-- name: lock_states
SELECT key, version FROM semel_state WHERE key = ANY($1) ORDER BY key FOR UPDATE

-- name: change_states
UPDATE semel_state s SET value = u.value, version = u.version, deleted_at = u.deleted_at
FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::bigint[]) AS u (key, value, version, deleted_at)
WHERE s.key = u.key

-- name: add_states
INSERT INTO semel_state (key, value, version, deleted_at)
SELECT * FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::bigint[]) AS u (key) ORDER BY key
ON CONFLICT DO NOTHING
RETURNING key

-- name: read_known
SELECT r.identity, r."offset", (SELECT epoch FROM semel_store)
FROM semel_stream s
JOIN semel_record r ON r.stream_id = s.id AND r.identity = ANY($2) AND r.identity IS NOT NULL
WHERE s.name = $1

-- name: read_state
SELECT value, version FROM semel_state WHERE key = $1 AND version > 0

-- name: read_states
SELECT key, value, version FROM semel_state
WHERE key > $1 AND key >= $2 AND ($3::text IS NULL OR key < $3) AND version > 0 ORDER BY key LIMIT $4


-- Work ------------------------------------------------------------------------------------------------------------

-- name: lock_work
SELECT w.queue, w.identity, w.seq, w.key, w.state, w.fence, w.turn, w.holds, w.blob, w.attempts
FROM semel_work w
WHERE w.seq = ANY(ARRAY(
    SELECT o.seq FROM unnest($1::text[], $2::text[]) AS u (queue, identity)
    JOIN semel_work o ON o.queue = u.queue AND o.identity = u.identity
))
ORDER BY w.queue, w.identity
FOR UPDATE

-- name: lock_identities
-- What is left of rows, by the names of their queues.
SELECT u.queue, u.identity, i.seq, i.scope
FROM unnest($1::text[], $2::text[]) AS u (queue, identity)
CROSS JOIN LATERAL (SELECT id FROM semel_name WHERE name = u.queue LIMIT 1) q
CROSS JOIN LATERAL (
    SELECT seq, scope FROM semel_identity
    WHERE scope = q.id AND queue = q.id AND identity = u.identity LIMIT 1 FOR UPDATE
) i
UNION ALL
SELECT u.queue, u.identity, i.seq, i.scope
FROM unnest($1::text[], $2::text[]) AS u (queue, identity)
CROSS JOIN LATERAL (SELECT id FROM semel_name WHERE name = u.queue LIMIT 1) q
CROSS JOIN LATERAL (
    SELECT seq, scope FROM semel_identity
    WHERE queue = q.id AND identity = u.identity AND queue <> scope LIMIT 1 FOR UPDATE
) i

-- name: restore_work
-- Makes rows again of the identities that are left of them.
WITH bare AS (
    DELETE FROM semel_identity i USING unnest($1::integer[], $2::text[]) AS u (scope, identity)
    WHERE i.scope = u.scope AND i.identity = u.identity
    RETURNING i.seq, i.keep_until, i.scope, i.queue, i.identity, i.result
)
INSERT INTO semel_work (seq, queue, scope, identity, state, holds, due, keep_until, result, id, source, type, size)
SELECT b.seq, q.name, s.name, b.identity, 5, false, 0, b.keep_until, b.result, b.identity, $3::text, $4::text, 0
FROM bare b
CROSS JOIN LATERAL (SELECT name FROM semel_name WHERE id = b.queue LIMIT 1) q
CROSS JOIN LATERAL (SELECT name FROM semel_name WHERE id = b.scope LIMIT 1) s

-- name: set_keys
UPDATE semel_work w SET key = u.key FROM unnest($1::bigint[], $2::text[]) AS u (seq, key) WHERE w.seq = u.seq

-- name: move_work
UPDATE semel_work w SET
    result = NULL,
    state = u.state, fence = u.fence, holds = u.holds, turn = u.turn, keep_until = u.keep_until,
    due = coalesce(u.due, w.due), cause = coalesce(u.cause, w.cause), attempts = coalesce(u.attempts, w.attempts),
    headers = CASE WHEN u.drops THEN NULL ELSE w.headers END,
    data = CASE WHEN u.drops THEN NULL ELSE w.data END,
    blob = CASE WHEN u.drops THEN NULL ELSE w.blob END,
    size = CASE WHEN u.drops THEN 0 ELSE w.size END
FROM unnest(
    $1::bigint[], $2::smallint[], $3::bigint[], $4::boolean[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[],
    $9::integer[], $10::boolean[]
) AS u (seq, state, fence, holds, turn, keep_until, due, cause, attempts, drops)
WHERE w.seq = u.seq

-- name: replace_bodies
UPDATE semel_work w SET
    id = u.id, source = u.source, type = u.type, subject = u.subject, time = u.time, session = u.session, idx = u.idx,
    datacontenttype = u.datacontenttype, headers = u.headers, data = u.data, blob = u.blob, size = u.size
FROM unnest(
    $1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::bigint[], $9::text[],
    $10::text[], $11::bytea[], $12::text[], $13::bigint[]
) AS u (seq, id, source, type, subject, time, session, idx, datacontenttype, headers, data, blob, size)
WHERE w.seq = u.seq

-- name: add_work
INSERT INTO semel_work (
    seq, queue, scope, identity, key, turn, state, holds, due, keep_until, result,
    id, source, type, subject, time, session, idx, datacontenttype, headers, data, blob, size
)
SELECT * FROM unnest(
    $1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::smallint[], $8::boolean[],
    $9::bigint[], $10::bigint[], $11::bytea[],
    $12::text[], $13::text[], $14::text[], $15::text[], $16::bigint[], $17::text[], $18::bigint[], $19::text[],
    $20::text[], $21::bytea[], $22::text[], $23::bigint[]
) AS u
ON CONFLICT DO NOTHING
RETURNING scope, identity

-- name: known_identities
-- What is left of rows: by the names of their scopes, and by those of their queues for whoever comes from another scope.
-- Asked after the insert, in a statement of its own: the insert may have waited for the sweep that moved the row. What is
-- found by its scope is locked, so that nobody forgets it before it is set again.
SELECT u.scope, u.identity, i.seq, q.name, i.result
FROM unnest($1::text[], $2::text[], $3::text[]) AS u (queue, scope, identity)
CROSS JOIN LATERAL (SELECT id FROM semel_name WHERE name = u.scope LIMIT 1) s
CROSS JOIN LATERAL (
    SELECT seq, queue, result FROM semel_identity WHERE scope = s.id AND identity = u.identity LIMIT 1 FOR UPDATE
) i
CROSS JOIN LATERAL (SELECT name FROM semel_name WHERE id = i.queue LIMIT 1) q
UNION ALL
SELECT s.name, u.identity, i.seq, u.queue, i.result
FROM unnest($1::text[], $2::text[], $3::text[]) AS u (queue, scope, identity)
CROSS JOIN LATERAL (SELECT id FROM semel_name WHERE name = u.queue LIMIT 1) q
CROSS JOIN LATERAL (
    SELECT seq, scope, result FROM semel_identity
    WHERE queue = q.id AND identity = u.identity AND queue <> scope LIMIT 1
) i
CROSS JOIN LATERAL (SELECT name FROM semel_name WHERE id = i.scope LIMIT 1) s
WHERE s.name <> u.scope
UNION ALL
SELECT u.queue, u.identity, i.seq, u.queue, i.result
FROM unnest($1::text[], $2::text[], $3::text[]) AS u (queue, scope, identity)
CROSS JOIN LATERAL (SELECT id FROM semel_name WHERE name = u.queue LIMIT 1) q
CROSS JOIN LATERAL (
    SELECT seq, result FROM semel_identity WHERE scope = q.id AND queue = q.id AND identity = u.identity LIMIT 1
) i
WHERE u.queue <> u.scope

-- name: known_in_queue
-- The same where all are of one queue and of its own scope, as nearly always.
SELECT $1::text, i.identity, i.seq, q.name, i.result
FROM (SELECT id FROM semel_name WHERE name = $1 LIMIT 1) n
CROSS JOIN LATERAL (
    SELECT identity, seq, queue, result FROM semel_identity WHERE scope = n.id AND identity = ANY($2) FOR UPDATE
) i
CROSS JOIN LATERAL (SELECT name FROM semel_name WHERE id = i.queue LIMIT 1) q
UNION ALL
SELECT s.name, i.identity, i.seq, $1::text, i.result
FROM (SELECT id FROM semel_name WHERE name = $1 LIMIT 1) n
CROSS JOIN LATERAL (
    SELECT identity, seq, scope, result FROM semel_identity
    WHERE queue = n.id AND identity = ANY($2) AND queue <> scope
) i
CROSS JOIN LATERAL (SELECT name FROM semel_name WHERE id = i.scope LIMIT 1) s

-- name: moved_meanwhile
SELECT EXISTS (
    SELECT FROM unnest($1::text[], $2::text[]) AS u (scope, identity)
    CROSS JOIN LATERAL (SELECT id FROM semel_name WHERE name = u.scope LIMIT 1) s
    CROSS JOIN LATERAL (SELECT FROM semel_identity WHERE scope = s.id AND identity = u.identity LIMIT 1) i
)

-- name: take_back_work
DELETE FROM semel_work WHERE seq = ANY($1)

-- name: known_work
SELECT w.scope, w.identity, w.seq, w.queue, w.state, w.result
FROM unnest($1::text[], $2::text[]) AS u (scope, identity)
JOIN semel_work w ON w.scope = u.scope AND w.identity = u.identity

-- name: work_of_another_scope
SELECT w.queue, w.identity
FROM unnest($1::text[], $2::text[], $3::text[]) AS u (queue, scope, identity)
JOIN semel_work w ON w.queue = u.queue AND w.identity = u.identity AND w.scope <> u.scope
LIMIT 1

-- name: add_news
INSERT INTO semel_work_news (queue, key) SELECT * FROM unnest($1::text[], $2::text[]) AS u

-- name: give_turns
-- Only one claim at a time gives turns in a queue: two at once could give them in the wrong order. Answers how long it
-- took, how many were given, and whether it was ours to give them.
WITH own AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(1397050701, hashtext($1)) AS is_mine
), waiting AS (
    SELECT seq FROM semel_work
    WHERE queue = $1 AND key IS NOT NULL AND turn IS NULL AND state <= 1
        AND due >= $3::bigint AND due <= $2::bigint AND (SELECT is_mine FROM own)
    ORDER BY due, seq
    FOR UPDATE SKIP LOCKED
), seats AS (
    SELECT seq, nextval('semel_work_seq') AS turn FROM waiting
), seated AS (
    UPDATE semel_work w SET turn = s.turn, holds = true, state = 0
    FROM seats s
    WHERE w.seq = s.seq
    RETURNING w.key
), news AS (
    INSERT INTO semel_work_news (queue, key) SELECT DISTINCT $1, key FROM seated
)
SELECT (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint, n, is_mine
FROM (SELECT count(*) AS n FROM seated) s CROSS JOIN own

-- name: by_index
-- For the rest of the transaction. A planner that knows of few living rows would rather read the whole table, with all
-- that is dead in it.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)

-- name: read_news
-- How long it took until the first came, or none, stands before each. So it does in pick_keys and pick_rows.
WITH found AS MATERIALIZED (
    SELECT seq, key FROM semel_work_news WHERE queue = $1 AND seq >= $3::bigint ORDER BY seq LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED
)
SELECT (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint, found.*
FROM (SELECT 1) one LEFT JOIN found ON true

-- name: drop_news
DELETE FROM semel_work_news WHERE seq = ANY($1)

-- name: add_keys
INSERT INTO semel_work_key (queue, key, due, seq)
SELECT $1, u.key, NULL, 0
FROM unnest($2::text[]) AS u (key)
WHERE (SELECT true FROM semel_work_key k WHERE k.queue = $1 AND k.key = u.key LIMIT 1) IS NULL
ORDER BY u.key
ON CONFLICT DO NOTHING

-- name: lock_keys
SELECT key FROM semel_work_key WHERE queue = $1 AND key = ANY($2) ORDER BY key FOR UPDATE SKIP LOCKED

-- name: refresh_keys
-- A live claim keeps the whole key, also from an earlier row that came into sight after it.
UPDATE semel_work_key k SET (due, seq) = (
    SELECT CASE WHEN head.state <= 2 THEN greatest(head.due, claimed.due) END, coalesce(head.seq, 0)
    FROM (
        SELECT max(w.due) AS due FROM semel_work w
        WHERE w.queue = k.queue AND w.key = k.key AND w.key IS NOT NULL AND w.state = 2
    ) claimed
    LEFT JOIN (
        SELECT w.seq, w.state, w.due FROM semel_work w
        WHERE w.queue = k.queue AND w.key = k.key AND w.key IS NOT NULL AND w.holds
        ORDER BY w.turn
        LIMIT 1
    ) head ON true
)
WHERE k.queue = $1 AND k.key = ANY($2)

-- name: drop_keys
DELETE FROM semel_work_key WHERE queue = $1 AND key = ANY($2) AND seq = 0

-- name: pick_keys
WITH found AS MATERIALIZED (
    SELECT key, due FROM semel_work_key
    WHERE queue = $1 AND due >= $6::bigint AND due <= $2::bigint AND due IS NOT NULL
        AND ($3::text IS NULL OR key = $3) AND key <> ALL($4::text[])
    ORDER BY due, seq
    LIMIT $5::bigint
    FOR UPDATE SKIP LOCKED
)
SELECT (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint, found.*
FROM (SELECT 1) one LEFT JOIN found ON true

-- name: pick_heads
SELECT h.place, w.holds, w.seq, w.queue, w.identity, w.key, w.state, w.due, w.attempts, w.fence, w.owner, w.cause,
    w.id, w.source, w.type, w.subject, w.time, w.session, w.idx, w.datacontenttype, w.headers, w.data, w.blob, w.size
FROM unnest($2::text[]) AS u (key)
CROSS JOIN LATERAL (
    SELECT o.seq, row_number() OVER (ORDER BY o.turn) AS place FROM semel_work o
    WHERE o.queue = $1 AND o.key = u.key AND o.key IS NOT NULL AND o.holds
    ORDER BY o.turn
    LIMIT $3::bigint
) h
JOIN semel_work w ON w.seq = h.seq
FOR UPDATE OF w SKIP LOCKED

-- name: pick_groups
-- As pick_heads, for several rows of each key: key by key, and no more rows than are wanted in all.
WITH RECURSIVE walk (n, seqs, taken) AS (
    SELECT 0, ARRAY[]::bigint[], 0
    UNION ALL
    SELECT n + 1, h.seqs, taken + cardinality(h.seqs)
    FROM walk CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(o.seq ORDER BY o.turn), ARRAY[]::bigint[]) AS seqs FROM (
            SELECT w.seq, w.turn FROM semel_work w
            WHERE w.queue = $1 AND w.key = ($2::text[])[n + 1] AND w.key IS NOT NULL AND w.holds
            ORDER BY w.turn
            LIMIT least($3::bigint, $4::bigint - taken)
        ) o
    ) h
    WHERE n < cardinality($2::text[]) AND taken < $4::bigint
)
SELECT h.place, w.holds, w.seq, w.queue, w.identity, w.key, w.state, w.due, w.attempts, w.fence, w.owner, w.cause,
    w.id, w.source, w.type, w.subject, w.time, w.session, w.idx, w.datacontenttype, w.headers, w.data, w.blob, w.size
FROM walk CROSS JOIN LATERAL unnest(walk.seqs) WITH ORDINALITY AS h (seq, place)
JOIN semel_work w ON w.seq = h.seq
FOR UPDATE OF w SKIP LOCKED

-- name: pick_rows
WITH found AS MATERIALIZED (
    SELECT holds, seq, queue, identity, key, state, due, attempts, fence, owner, cause,
        id, source, type, subject, time, session, idx, datacontenttype, headers, data, blob, size
    FROM semel_work
    WHERE queue = $1 AND key IS NULL AND state <= 2 AND due >= $4::bigint AND due <= $2::bigint
    ORDER BY due, seq
    LIMIT $3::bigint
    FOR UPDATE SKIP LOCKED
)
SELECT (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint, found.*
FROM (SELECT 1) one LEFT JOIN found ON true

-- name: work_due
-- Rows, keys, rows that wait for their turn, and news, each from its own begin, and each by its index: EXISTS alone may
-- be answered by reading the table.
WITH clock AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now)
SELECT coalesce(
    (
        SELECT true FROM semel_work
        WHERE queue = $1 AND key IS NULL AND state <= 2 AND due >= $2::bigint AND due <= (SELECT now FROM clock)
        ORDER BY due, seq LIMIT 1
    ), (
        SELECT true FROM semel_work_key
        WHERE queue = $1 AND due IS NOT NULL AND due >= $3::bigint AND due <= (SELECT now FROM clock)
        ORDER BY due, seq LIMIT 1
    ), (
        SELECT true FROM semel_work
        WHERE queue = $1 AND key IS NOT NULL AND turn IS NULL AND state <= 1
            AND due >= $4::bigint AND due <= (SELECT now FROM clock)
        ORDER BY due, seq LIMIT 1
    ), (
        SELECT true FROM semel_work_news WHERE queue = $1 AND seq >= $5::bigint ORDER BY seq LIMIT 1
    ), false
)

-- name: pick_one
SELECT 1, holds, seq, queue, identity, key, state, due, attempts, fence, owner, cause,
    id, source, type, subject, time, session, idx, datacontenttype, headers, data, blob, size
FROM semel_work
WHERE queue = $1 AND identity = $2
FOR UPDATE SKIP LOCKED

-- name: read_work
SELECT 1, holds, seq, queue, identity, key, state, due, attempts, fence, owner, cause,
    id, source, type, subject, time, session, idx, datacontenttype, headers, data, blob, size
FROM semel_work
WHERE queue = $1 AND identity = $2

-- name: read_identity
SELECT i.seq FROM semel_name q
JOIN semel_identity i ON i.scope = q.id AND i.queue = q.id AND i.identity = $2
WHERE q.name = $1
UNION ALL
SELECT i.seq FROM semel_name q
JOIN semel_identity i ON i.queue = q.id AND i.identity = $2 AND i.queue <> i.scope
WHERE q.name = $1

-- name: work_rows
-- $2 are states of the few rows that were put aside, $3 the others.
SELECT 1, w.holds, w.seq, w.queue, w.identity, w.key, w.state, w.due, w.attempts, w.fence, w.owner, w.cause,
    w.id, w.source, w.type, w.subject, w.time, w.session, w.idx, w.datacontenttype, w.headers, w.data, w.blob, w.size
FROM (
    SELECT f.seq FROM unnest($2::smallint[]) AS u (state)
    CROSS JOIN LATERAL (
        SELECT seq FROM semel_work
        WHERE queue = $1 AND state = u.state AND state IN (3, 4, 6) AND seq > $4::bigint
        ORDER BY seq
        LIMIT $5::bigint
    ) f
    UNION ALL
    (
        SELECT seq FROM semel_work
        WHERE queue = $1 AND state = ANY($3::smallint[]) AND seq > $4::bigint AND cardinality($3::smallint[]) > 0
        ORDER BY seq
        LIMIT $5::bigint
    )
) f
JOIN semel_work w ON w.seq = f.seq
ORDER BY w.seq
LIMIT $5::bigint

-- name: work_counts
SELECT queue, state, count(*) FROM semel_work
WHERE queue >= $1 AND ($2::text IS NULL OR queue < $2) AND state <> 5
GROUP BY queue, state
ORDER BY queue, state

-- name: take_rows
UPDATE semel_work SET
    state = 2, fence = $2::bigint, owner = $3::text, due = $4::bigint, attempts = attempts + 1, holds = true,
    turn = CASE WHEN key IS NOT NULL AND turn IS NULL THEN nextval('semel_work_seq') ELSE turn END
WHERE seq = ANY($1)

-- name: hold_keys
UPDATE semel_work_key SET due = $3::bigint WHERE queue = $1 AND key = ANY($2)


-- Bodies ----------------------------------------------------------------------------------------------------------

-- name: add_blobs
INSERT INTO semel_blob (name, at) SELECT name, $2::bigint FROM unnest($1::text[]) AS u (name) ORDER BY name
ON CONFLICT DO NOTHING

-- name: lock_blobs
SELECT name, refs FROM semel_blob WHERE name = ANY($1) ORDER BY name FOR UPDATE

-- name: add_chunks
INSERT INTO semel_chunk (blob, part, data) SELECT * FROM unnest($1::text[], $2::integer[], $3::bytea[]) AS u
ON CONFLICT DO NOTHING

-- name: blob_sizes
SELECT blob, sum(octet_length(data))::bigint FROM semel_chunk WHERE blob = ANY($1) GROUP BY blob

-- name: refer_blobs
UPDATE semel_blob b SET refs = b.refs + u.refs FROM unnest($1::text[], $2::integer[]) AS u (name, refs)
WHERE b.name = u.name

-- name: forget_blobs
UPDATE semel_blob b SET refs = b.refs - u.refs, at = $3::bigint FROM unnest($1::text[], $2::integer[]) AS u (name, refs)
WHERE b.name = u.name

-- name: read_blob
SELECT refs FROM semel_blob WHERE name = $1

-- name: read_chunk
SELECT part, data FROM semel_chunk WHERE blob = $1 AND part > $2::integer ORDER BY part LIMIT 1


-- Retention -------------------------------------------------------------------------------------------------------

-- name: streams_to_hollow
SELECT s.id, s.name, coalesce(t.hollowed, 0), s.first
FROM semel_stream s LEFT JOIN semel_retention t ON t.stream_id = s.id
WHERE s.first > coalesce(t.hollowed, 0)
ORDER BY s.id

-- name: records_to_hollow
SELECT "offset", identity IS NULL OR at < $5::bigint, identity IS NOT NULL, blob FROM semel_record
WHERE stream_id = $1 AND "offset" >= $2::bigint AND "offset" < $3::bigint AND NOT hollow
ORDER BY "offset"
LIMIT $4::bigint

-- name: hollow_records
UPDATE semel_record SET hollow = true, headers = NULL, data = NULL, blob = NULL, subject = NULL
WHERE stream_id = $1 AND "offset" = ANY($2)

-- name: delete_records
DELETE FROM semel_record WHERE stream_id = $1 AND "offset" = ANY($2)

-- name: set_hollowed
INSERT INTO semel_retention AS t (stream_id, hollowed, forgotten) VALUES ($1, $2, 0)
ON CONFLICT (stream_id) DO UPDATE SET hollowed = greatest(t.hollowed, excluded.hollowed)

-- name: streams_to_forget
SELECT stream_id, forgotten, hollowed FROM semel_retention WHERE forgotten < hollowed ORDER BY stream_id

-- name: records_to_forget
SELECT "offset", at < $5::bigint FROM semel_record
WHERE stream_id = $1 AND "offset" >= $2::bigint AND "offset" < $3::bigint
ORDER BY "offset"
LIMIT $4::bigint

-- name: set_forgotten
UPDATE semel_retention SET forgotten = $2::bigint WHERE stream_id = $1

-- name: done_work
SELECT seq, queue, scope, keep_until <= $1::bigint FROM semel_work
WHERE state = 5 AND seq > $2::bigint AND seq <= $3::bigint
ORDER BY seq
LIMIT $4::bigint
FOR UPDATE SKIP LOCKED

-- name: add_names
-- A number is drawn for each row that is tried, so those that are there are not.
INSERT INTO semel_name (name)
SELECT u.name FROM unnest($1::text[]) AS u (name)
WHERE (SELECT true FROM semel_name n WHERE n.name = u.name LIMIT 1) IS NULL
ORDER BY u.name
ON CONFLICT DO NOTHING

-- name: move_done
-- A name that is missing makes it fail: an identity is never lost on the way. A process of an older version does not look
-- here, and may have let a late copy in.
WITH gone AS (
    DELETE FROM semel_work WHERE seq = ANY($1) RETURNING seq, keep_until, scope, queue, identity, result
)
INSERT INTO semel_identity AS i (seq, keep_until, scope, queue, identity, result)
SELECT g.seq, g.keep_until, (SELECT id FROM semel_name WHERE name = g.scope),
    (SELECT id FROM semel_name WHERE name = g.queue), g.identity, g.result
FROM gone g
ON CONFLICT (scope, identity) DO UPDATE SET keep_until = greatest(i.keep_until, excluded.keep_until)

-- name: delete_done
DELETE FROM semel_work WHERE seq = ANY($1)

-- name: forget_identities
DELETE FROM semel_identity d USING (
    SELECT scope, identity FROM semel_identity
    WHERE keep_until <= $1::bigint AND keep_until >= $2::bigint
    ORDER BY keep_until
    LIMIT $3::bigint
    FOR UPDATE SKIP LOCKED
) f
WHERE d.scope = f.scope AND d.identity = f.identity
RETURNING d.keep_until

-- name: sweep_dead
DELETE FROM semel_work WHERE seq = ANY(ARRAY(
    SELECT seq FROM semel_work
    WHERE keep_until <= $1::bigint AND keep_until IS NOT NULL AND NOT holds AND state = 6
    ORDER BY keep_until
    LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED
))
RETURNING blob

-- name: orphan_blobs
SELECT name FROM semel_blob WHERE refs <= 0 AND at < $1::bigint ORDER BY at LIMIT $2::bigint FOR UPDATE SKIP LOCKED

-- name: delete_chunks
DELETE FROM semel_chunk WHERE blob = ANY($1)

-- name: delete_blobs
DELETE FROM semel_blob WHERE name = ANY($1)

-- name: sweep_ledger
DELETE FROM semel_ledger WHERE (xid, seq) IN (
    SELECT xid, seq FROM semel_ledger
    WHERE (xid, seq) > ($1::bigint, $2::bigint) AND (xid, seq) <= ($3::bigint, $4::bigint)
    ORDER BY xid, seq
    LIMIT $5::bigint
)
RETURNING xid, seq

-- name: oldest_ledger
SELECT xid, seq, at < $3::bigint FROM semel_ledger
WHERE (xid, seq) > ($1::bigint, $2::bigint)
ORDER BY xid, seq
LIMIT $4::bigint

-- name: delete_ledger
DELETE FROM semel_ledger l USING unnest($1::bigint[], $2::bigint[]) AS u (xid, seq) WHERE l.xid = u.xid AND l.seq = u.seq

-- name: sweep_states
-- A process of an older version leaves deleted_at as it is when it sets a key again.
DELETE FROM semel_state WHERE key = ANY(ARRAY(
    SELECT key FROM semel_state
    WHERE deleted_at <= $1::bigint AND deleted_at IS NOT NULL AND version < 0
    ORDER BY deleted_at
    LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED
))

-- name: sweep_markers
-- By the server's clock: whoever resolves a doubt goes by it too.
DELETE FROM semel_marker WHERE at < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - $1::bigint


-- The store -------------------------------------------------------------------------------------------------------

-- name: server
SELECT current_setting('server_version_num')::integer, current_setting('server_encoding'), pg_is_in_recovery(),
    to_regclass('semel_store') IS NOT NULL

-- name: origin
-- What is noted and what is. The timeline is that of the last thing written, which a standby cannot tell.
SELECT system, timeline, tables, epoch, members, raised_on, current_setting('synchronous_standby_names') <> '', (
    SELECT ('x' || lpad(left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), 16, '0'))::bit(64)::bigint
), (
    SELECT d.oid || '.' || 'semel_store'::regclass::oid FROM pg_database d WHERE d.datname = current_database()
)
FROM semel_store

-- name: read_store
SELECT store_id, schema, epoch, system, timeline, tables FROM semel_store

-- name: record_schema
INSERT INTO semel_store AS s (store_id, schema) VALUES (replace(gen_random_uuid()::text, '-', ''), $1)
ON CONFLICT (one) DO UPDATE SET schema = excluded.schema

-- name: read_epoch
SELECT epoch FROM semel_store

-- name: system_id
SELECT system_identifier::text FROM pg_control_system()

-- name: cursor_beyond_head
SELECT c.name FROM semel_cursor c LEFT JOIN semel_stream s ON s.name = c.stream
WHERE c."offset" > coalesce(s.head, 0)
LIMIT 1

-- name: note_origin
-- The tables change when they are restored from a dump, into a new database or over the old ones.
UPDATE semel_store SET
    system = coalesce($1::text, system), timeline = coalesce($2::bigint, timeline), tables = coalesce($3::text, tables)

-- name: raise_epoch
UPDATE semel_store SET epoch = epoch + 1, raised_on = $2::bigint, xid_base = greatest(
    xid_base,
    1 - pg_current_xact_id()::text::bigint + greatest(
        $1::bigint, (SELECT max(xid) FROM semel_ledger), (SELECT max(xid) FROM semel_stream)
    )
)
RETURNING epoch

-- name: raise_heads
UPDATE semel_stream SET head = greatest(head + $1::bigint, $2::bigint)

-- name: rebase_cursors
UPDATE semel_cursor SET epoch = $1::integer

-- name: raise_fence
SELECT setval('semel_fence', nextval('semel_fence') + $1::bigint)


-- Members ---------------------------------------------------------------------------------------------------------

-- name: flushed
-- Nothing is visible that was not written to the log before. A standby has no such place.
SELECT CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint END

-- name: members_gone
-- Their leases ran out, or their process has ended: they answer no more.
DELETE FROM semel_member
WHERE until < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint OR member = ANY($1)

-- name: member_processes
SELECT member, process FROM semel_member

-- name: count_member
UPDATE semel_store SET members = members + 1 RETURNING members

-- name: add_member
INSERT INTO semel_member (member, node, process, number, seen, renewed, until, timeline)
SELECT $1, $2, $3, $4::bigint, $4::bigint, now.us, now.us + $5::bigint, $6::bigint
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) now

-- name: notify_members
SELECT pg_notify('semel_member', '')

-- name: is_known
-- To one at least of those who were there before, or there is none of them.
SELECT coalesce(bool_or(seen >= $1::bigint), true) FROM semel_member
WHERE number < $1::bigint AND until >= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: beat
-- A lease that has run out is not renewed: others may have joined meanwhile without our word.
UPDATE semel_member m SET renewed = now.us, until = now.us + $3::bigint, seen = $2::bigint
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) now, semel_store s
WHERE m.member = $1 AND m.until >= now.us
RETURNING s.members, pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint

-- name: leave
DELETE FROM semel_member WHERE member = $1

-- name: history
SELECT pg_read_file('pg_wal/' || upper(lpad(to_hex($1::bigint), 8, '0')) || '.history')

-- name: has_marker
SELECT EXISTS (SELECT FROM semel_marker WHERE writer = $1 AND n >= $2::bigint)

-- name: lost_records
-- Those of the records that were read and are not here. Before anybody has written on a new timeline a record that is
-- trimmed was here: $4.
SELECT u.stream, u."offset"
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS u (stream, "offset", at)
LEFT JOIN semel_stream s ON s.name = u.stream
WHERE NOT coalesce(u."offset" < s.first AND $4::boolean, false) AND NOT EXISTS (
    SELECT FROM semel_record r WHERE r.stream_id = s.id AND r."offset" = u."offset" AND r.at = u.at
)

-- name: read_member
SELECT number FROM semel_member WHERE member = $1

-- name: read_switch
SELECT timeline, members, switch_timeline, switch_at, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
FROM semel_store

-- name: begin_switch
UPDATE semel_store SET switch_timeline = $1::bigint, switch_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: vouch
UPDATE semel_member SET timeline = $2::bigint WHERE member = $1

-- name: read_vouchers
-- Of those whose lease had not run out when the last of all was renewed, by the clock of the server that is gone.
SELECT count(*), string_agg(node, ', ' ORDER BY node) FILTER (WHERE timeline <> $1::bigint)
FROM semel_member
WHERE until >= (SELECT max(renewed) FROM semel_member)

-- name: drop_silent_members
DELETE FROM semel_member WHERE timeline <> $1::bigint

-- name: restamp_members
-- From now on the clock of this server counts.
UPDATE semel_member SET renewed = now.us, until = now.us + $1::bigint
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) now

-- name: is_settled
SELECT timeline IS NULL
    OR timeline = ('x' || lpad(left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), 16, '0'))::bit(64)::bigint
FROM semel_store


-- name: status_streams
SELECT name, head, first FROM semel_stream ORDER BY name

-- name: status_cursors
SELECT name, stream, epoch, "offset", pins FROM semel_cursor ORDER BY name

-- name: status_remembered
SELECT (SELECT count(*) FROM semel_identity) + (SELECT count(*) FROM semel_work WHERE state = 5)

-- name: status_ledger
SELECT count(*) FROM semel_ledger

-- name: ledger_horizon
SELECT count(*), coalesce(max(now_us - at), 0) FROM (
    SELECT l.at, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us
    FROM semel_ledger l
    WHERE l.xid >= (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint + xid_base FROM semel_store)
    ORDER BY l.xid, l.seq
    LIMIT 100000
) held

-- name: horizon_holder
SELECT pid, name, state, since FROM (
    SELECT pid, application_name AS name, coalesce(state, 'busy') AS state,
        (extract(epoch FROM clock_timestamp() - xact_start) * 1000000)::bigint AS since, age(backend_xid) AS age
    FROM pg_stat_activity
    WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
    UNION ALL
    SELECT NULL, gid, 'prepared', (extract(epoch FROM clock_timestamp() - prepared) * 1000000)::bigint, age(transaction)
    FROM pg_prepared_xacts
) open_ones
ORDER BY age DESC
LIMIT 1

-- name: status_sweepable
SELECT (
    SELECT count(*)
    FROM semel_stream s
    LEFT JOIN semel_retention t ON t.stream_id = s.id
    JOIN semel_record r ON r.stream_id = s.id AND r."offset" >= coalesce(t.hollowed, 0) AND r."offset" < s.first
    WHERE NOT r.hollow
) + (
    SELECT count(*) FROM semel_work WHERE state = 5
) + (
    SELECT count(*) FROM semel_identity
    WHERE keep_until <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
) + (
    SELECT count(*) FROM semel_work
    WHERE state = 6 AND keep_until IS NOT NULL AND NOT holds
        AND keep_until <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
) + (
    SELECT count(*) FROM semel_state
    WHERE deleted_at IS NOT NULL AND version < 0
        AND deleted_at <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - $1::bigint
)

-- name: status_bytes
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_class c
WHERE c.relkind = 'r' AND c.relname LIKE 'semel\_%' AND c.relnamespace = (
    SELECT relnamespace FROM pg_class WHERE oid = 'semel_store'::regclass
)
