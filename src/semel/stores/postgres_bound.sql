-- The parts of the one statement that Semel adds to a user's transaction; see postgres_bound.py, which joins those that a
-- call needs. Everything in it is conditional on everything else, so that it does all or nothing without a savepoint.
-- Parameters have names, and are texts but for the bodies, so that every driver can bind them.

-- name: store
-- The clock, and whether what is written here is kept: it is this store, and COMMIT waits for the disk. Work rows need a
-- transaction whose later statements see what was committed meanwhile. The table has one row, and nobody analyses it:
-- without the LIMIT the planner expects hundreds, and then makes a new plan for each message.
store AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now, epoch, xid_base, store_id,
        current_setting('synchronous_commit') AS sync, {view} AS view,
        store_id = $store::text AND current_setting('synchronous_commit') IN ('on', 'remote_apply') AND {view} AS ok
    FROM semel_store LIMIT 1
)

-- name: held
-- They come sorted, and are locked in that order, as every transaction does. LATERAL with a LIMIT: looked up by the index,
-- also by a plan that was made while the table was small.
held AS MATERIALIZED (
    SELECT f.*, w.seq, w.blob, coalesce(
            CASE WHEN f.fence IS NULL THEN w.state NOT IN (2, 5) ELSE w.state = 2 AND w.fence = f.fence END, false
        ) AS fits
    FROM json_to_recordset($finishes::text::json) AS f (
        queue text, identity text, fence bigint, state smallint, due bigint, delay bigint, keep bigint,
        holds boolean, cause text, passes boolean, attempts smallint
    )
    LEFT JOIN LATERAL (
        SELECT seq, blob, state, fence FROM semel_work WHERE queue = f.queue AND identity = f.identity LIMIT 1
        FOR UPDATE
    ) w ON true
)

-- name: given
-- Numbered in the order given. A row that was committed after this statement had begun is not seen here; then the insert
-- finds it, and the row is without an answer. i and j are what a sweep has left of rows; what it moves there while the
-- statement runs is looked up by `moved`, in a later view.
given AS MATERIALIZED (
    SELECT g.*, coalesce(i.seq, k.seq) AS known_seq, coalesce(i.queue, k.queue) AS known_queue,
        CASE WHEN i.seq IS NOT NULL THEN 5 ELSE k.state END AS known_state,
        CASE WHEN i.seq IS NOT NULL THEN i.result ELSE k.result END AS known_result,
        coalesce(i.seq, k.seq) IS NULL AND coalesce(o.seq, j.seq) IS NOT NULL AS taken,
        CASE WHEN coalesce(i.seq, k.seq) IS NULL THEN nextval('semel_work_seq') END AS seat
    FROM json_to_recordset($work::text::json) AS g (
        n integer, queue text, scope text, identity text, key text, due bigint, keep bigint,
        id text, source text, type text, subject text, time bigint, session text, idx bigint, datacontenttype text,
        headers text, start integer, size bigint, kept integer
    )
    LEFT JOIN LATERAL (
        SELECT seq, queue, state, result FROM semel_work WHERE scope = g.scope AND identity = g.identity LIMIT 1
    ) k ON true
    LEFT JOIN LATERAL (
        SELECT seq FROM semel_work WHERE queue = g.queue AND identity = g.identity AND scope <> g.scope LIMIT 1
    ) o ON true
    LEFT JOIN LATERAL (SELECT id FROM semel_name WHERE name = g.scope LIMIT 1) s ON true
    LEFT JOIN LATERAL (SELECT id FROM semel_name WHERE name = g.queue LIMIT 1) q ON true
    LEFT JOIN LATERAL (
        SELECT seq, result, (SELECT name FROM semel_name WHERE id = semel_identity.queue LIMIT 1) AS queue
        FROM semel_identity WHERE scope = s.id AND identity = g.identity LIMIT 1
    ) i ON true
    LEFT JOIN LATERAL (
        (
            SELECT seq FROM semel_identity
            WHERE queue = q.id AND identity = g.identity AND queue <> scope AND scope IS DISTINCT FROM s.id LIMIT 1
        ) UNION ALL (
            SELECT seq FROM semel_identity
            WHERE scope = q.id AND queue = q.id AND identity = g.identity AND scope IS DISTINCT FROM s.id LIMIT 1
        )
        LIMIT 1
    ) j ON true
)

-- name: try_locks
-- Whoever does not want to wait for another transaction with the same identity must not come to the insert.
SELECT bool_and(
    pg_try_advisory_xact_lock(hashtextextended((scope || ' ' || identity) COLLATE "C", 1397050702))
) AS ok
FROM given

-- name: finished_one
-- One row need not be locked before it is changed: the rest hangs on that change. One with a body in chunks is left to
-- the longer statement, which this one need not carry along. What is claimed has its turn already.
finished AS (
    UPDATE semel_work w SET
        state = $state::text::smallint, keep_until = s.now + $keep::text::bigint,
        holds = $holds::text::boolean AND NOT ($passes::text::boolean AND w.key IS NOT NULL),
        turn = CASE WHEN $passes::text::boolean THEN NULL ELSE w.turn END,
        attempts = CASE $attempts::text WHEN '1' THEN 0 WHEN '2' THEN greatest(0, w.attempts - 1) ELSE w.attempts END,
        cause = coalesce($cause::text, w.cause), due = coalesce(s.now + $delay::text::bigint, $due::text::bigint, s.now),
        headers = CASE WHEN $state::text = '5' THEN NULL ELSE w.headers END,
        data = CASE WHEN $state::text = '5' THEN NULL ELSE w.data END,
        size = CASE WHEN $state::text = '5' THEN 0 ELSE w.size END
    FROM {gated}
    WHERE w.queue = $queue::text AND w.identity = $identity::text AND w.state = 2 AND w.fence = $fence::text::bigint
        AND w.blob IS NULL AND m.ok
    RETURNING w.queue, w.key
)

-- name: finished_done
-- One that is done with and says nothing else, as nearly every message ends: half as many values and no cases.
finished AS (
    UPDATE semel_work w SET
        state = 5, holds = false, keep_until = s.now + $keep::text::bigint, due = s.now, headers = NULL, data = NULL,
        size = 0
    FROM {gated}
    WHERE w.queue = $queue::text AND w.identity = $identity::text AND w.state = 2 AND w.fence = $fence::text::bigint
        AND w.blob IS NULL AND m.ok
    RETURNING w.queue, w.key
)

-- name: finished_many
finished AS (
    UPDATE semel_work w SET
        state = h.state, holds = h.holds AND NOT (h.passes AND w.key IS NOT NULL), keep_until = s.now + h.keep,
        turn = CASE WHEN h.passes THEN NULL ELSE w.turn END,
        attempts = CASE h.attempts WHEN 1 THEN 0 WHEN 2 THEN greatest(0, w.attempts - 1) ELSE w.attempts END,
        cause = coalesce(h.cause, w.cause),
        due = coalesce(s.now + h.delay, h.due, s.now),
        headers = CASE WHEN h.state = 5 THEN NULL ELSE w.headers END,
        data = CASE WHEN h.state = 5 THEN NULL ELSE w.data END,
        blob = CASE WHEN h.state = 5 THEN NULL ELSE w.blob END,
        size = CASE WHEN h.state = 5 THEN 0 ELSE w.size END
    FROM held h, store s, may m
    WHERE w.seq = h.seq AND m.ok
    RETURNING w.queue, w.key
)

-- name: forgotten
forgotten AS (
    UPDATE semel_blob b SET refs = b.refs - u.refs, at = s.now
    FROM (SELECT blob, count(*)::integer AS refs FROM held WHERE state = 5 AND blob IS NOT NULL GROUP BY blob) u,
        store s, may m
    WHERE b.name = u.blob AND m.ok
)

-- name: added
-- In the order of their identities, as every transaction does. Those with a time to be kept are remembered: done from
-- the start, with a result in place of a body.
added AS (
    INSERT INTO semel_work (
        seq, queue, scope, identity, key, turn, state, holds, due, keep_until, result,
        id, source, type, subject, time, session, idx, datacontenttype, headers, data, size
    )
    SELECT g.seat, g.queue, g.scope, g.identity, g.key,
        CASE WHEN g.key IS NOT NULL AND coalesce(g.due, 0) <= s.now THEN g.seat END,
        CASE WHEN g.keep IS NOT NULL THEN 5 WHEN g.due > s.now THEN 1 ELSE 0 END,
        g.keep IS NULL AND (g.key IS NULL OR coalesce(g.due, 0) <= s.now),
        coalesce(g.due, s.now), s.now + g.keep, substring($bodies::bytea FROM g.start FOR g.kept),
        g.id, g.source, g.type, g.subject, g.time, g.session, g.idx, g.datacontenttype, g.headers,
        substring($bodies::bytea FROM g.start FOR g.size::integer), g.size
    FROM given g, store s, {verdict} v
    WHERE g.known_seq IS NULL AND v.ok
    ORDER BY g.scope COLLATE "C", g.identity COLLATE "C"
    ON CONFLICT DO NOTHING
    RETURNING seq, queue, key, holds, state, result
)

-- name: answered
answered AS MATERIALIZED (
    SELECT g.n, coalesce(g.known_seq, a.seq) AS seq, coalesce(g.known_queue, g.queue) AS queue, a.seq IS NOT NULL AS fresh,
        coalesce(g.known_state, a.state) AS state,
        CASE WHEN a.seq IS NOT NULL THEN a.result ELSE g.known_result END AS result
    FROM given g LEFT JOIN added a ON a.seq = g.seat
    WHERE g.known_seq IS NOT NULL OR a.seq IS NOT NULL
)

-- name: written
-- An event without a number is about the call; one with a number hangs on the verdict over that row.
written AS (
    INSERT INTO semel_ledger (
        xid, at, node, pipeline, hop, kind, message, delivery, session, idx, peer, stream, epoch, first, last, n, fold,
        attempt, cause, trace
    )
    SELECT (SELECT pg_current_xact_id()::text::bigint) + s.xid_base, s.now, $node::text,
        e.pipeline, e.hop, e.kind, e.message, e.delivery, e.session, e.idx, e.peer, e.stream, e.epoch, e.first, e.last,
        e.n, e.fold, e.attempt, e.cause, e.trace
    FROM store s, {verdict} v, json_to_recordset($events::text::json) AS e (
        "of" integer, fresh boolean,
        pipeline text, hop text, kind smallint, message text, delivery text, session text, idx bigint, peer text,
        stream text, epoch integer, first bigint, last bigint, n integer, fold bigint, attempt integer, cause text,
        trace text
    )
    WHERE v.ok AND {condition}
)

-- name: written_one
-- An event about one message, without JSON.
written AS (
    INSERT INTO semel_ledger (
        xid, at, node, pipeline, hop, kind, message, delivery, session, idx, peer, n, attempt, cause, trace
    )
    SELECT pg_current_xact_id()::text::bigint + s.xid_base, s.now, $node::text,
        $epipeline::text, $ehop::text, $ekind::text::smallint, $emessage::text, $edelivery::text, $esession::text,
        $eidx::text::bigint, $epeer::text, $en::text::integer, $eattempt::text::integer, $ecause::text, $etrace::text
    FROM store s, {verdict} v
    WHERE v.ok
)

-- name: condition
(e."of" IS NULL OR e.fresh = (SELECT a.fresh FROM answered a WHERE a.n = e."of"))

-- name: moved
-- Asked after rows were inserted, in a view of its own: whether a sweep had moved one of the same name out of the way.
SELECT u.identity FROM json_to_recordset($fresh::text::json) AS u (queue text, scope text, identity text)
WHERE EXISTS (
    SELECT FROM (SELECT id FROM semel_name WHERE name = u.scope LIMIT 1) s
    CROSS JOIN LATERAL (SELECT FROM semel_identity WHERE scope = s.id AND identity = u.identity LIMIT 1) i
) OR EXISTS (
    SELECT FROM (SELECT id FROM semel_name WHERE name = u.queue LIMIT 1) q
    CROSS JOIN LATERAL (
        (SELECT FROM semel_identity WHERE queue = q.id AND identity = u.identity AND queue <> scope LIMIT 1)
        UNION ALL (SELECT FROM semel_identity WHERE scope = q.id AND queue = q.id AND identity = u.identity LIMIT 1)
    ) i
)
LIMIT 1

-- name: keep_result
UPDATE semel_work SET result = $result::bytea
WHERE scope = $scope::text AND identity = $identity::text AND state = 5
RETURNING seq

-- name: spoil
-- There is no savepoint to go back to: what the call has done must not be committed.
SELECT 1 / 0
