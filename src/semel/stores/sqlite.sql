-- CROSS JOIN after json_each fixes the order: look up each given key, never scan the table for the keys.

-- name: begin_store
SELECT epoch, commits, fence, record_seq, work_seq, ledger_seq FROM semel_store

-- name: end_store
UPDATE semel_store SET commits = ?, fence = ?, record_seq = ?, work_seq = ?, ledger_seq = ?

-- name: lock_work
SELECT w.queue, w.identity, w.seq, w.key, w.state, w.fence, w.attempts
FROM json_each(?) j CROSS JOIN semel_work w ON w.queue = j.value ->> 0 AND w.identity = j.value ->> 1

-- name: lock_states
SELECT s.key, s.version FROM json_each(?) j CROSS JOIN semel_state s ON s.key = j.value

-- name: lock_cursors
SELECT c.name, c.stream, c.epoch, c."offset", c.pins FROM json_each(?) j CROSS JOIN semel_cursor c ON c.name = j.value

-- name: lock_stream
SELECT name, id, head, first FROM semel_stream WHERE name = ?

-- name: lock_streams
SELECT s.name, s.id, s.head, s.first FROM json_each(?) j CROSS JOIN semel_stream s ON s.name = j.value

-- name: add_stream
INSERT INTO semel_stream (name, start, head, first, hollowed) VALUES (?1, ?2, ?2, ?2 + 1, ?2) RETURNING id

-- name: set_head
UPDATE semel_stream SET head = ? WHERE id = ?

-- name: known
SELECT r.identity, r."offset", r.digest FROM json_each(?2) j
CROSS JOIN semel_record r ON r.stream_id = ?1 AND r.identity = j.value AND r.identity IS NOT NULL

-- name: add_record
INSERT INTO semel_record (
    seq, stream_id, epoch, "offset", identity, kind, target, at,
    id, source, type, subject, time, session, idx, datacontenttype, headers, data, blob, size,
    digest
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: put_state
INSERT INTO semel_state (key, value, version, deleted_at) VALUES (?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version, deleted_at = excluded.deleted_at

-- name: put_cursor
INSERT INTO semel_cursor (name, stream, epoch, "offset", pins) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, "offset" = excluded."offset", pins = excluded.pins

-- name: blob_refs
SELECT refs FROM semel_blob WHERE name = ?

-- name: add_blob
INSERT INTO semel_blob (name, at, size, refs) VALUES (?, ?, 0, 0)

-- name: add_chunk
INSERT INTO semel_chunk (blob, part, data) VALUES (?, ?, ?) ON CONFLICT (blob, part) DO NOTHING

-- name: grow_blob
UPDATE semel_blob SET size = size + ?, at = ? WHERE name = ?

-- name: blob_size
SELECT size FROM semel_blob WHERE name = ?

-- name: refer_blob
UPDATE semel_blob SET refs = refs + 1 WHERE name = ?

-- name: forget_blob
UPDATE semel_blob SET refs = refs - 1, at = ? WHERE name = ?

-- name: work_blob
SELECT blob FROM semel_work WHERE queue = ? AND identity = ? AND blob IS NOT NULL

-- name: known_work
-- Rows by the names of their queues.
SELECT w.scope, w.identity, w.seq, w.queue, w.state, w.result FROM json_each(?) j
CROSS JOIN semel_work w ON w.queue = j.value ->> 0 AND w.identity = j.value ->> 1

-- name: known_scope
SELECT s.scope, s.identity, s.seq, s.queue, w.state, w.result FROM json_each(?) j
CROSS JOIN semel_scope s ON s.scope = j.value ->> 0 AND s.identity = j.value ->> 1
CROSS JOIN semel_work w ON w.seq = s.seq

-- name: known_identities
-- What is left of rows, by the names of their scopes and of their queues.
SELECT n.name, i.identity, i.seq, q.name, 5, i.result FROM json_each(?1) j
CROSS JOIN semel_name n ON n.name = j.value ->> 0
CROSS JOIN semel_identity i ON i.scope = n.id AND i.identity = j.value ->> 1
CROSS JOIN semel_name q ON q.id = i.queue
UNION ALL
SELECT s.name, i.identity, i.seq, n.name, 5, i.result FROM json_each(?1) j
CROSS JOIN semel_name n ON n.name = j.value ->> 0
CROSS JOIN semel_identity i ON i.queue = n.id AND i.identity = j.value ->> 1 AND i.queue <> i.scope
CROSS JOIN semel_name s ON s.id = i.scope

-- name: add_work
INSERT INTO semel_work (
    seq, queue, scope, identity, key, turn, state, holds, due, attempts, fence, owner, keep_until, result, cause,
    id, source, type, subject, time, session, idx, datacontenttype, headers, data, blob, size
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, '', ?, ?, NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: add_scope
INSERT INTO semel_scope (scope, identity, seq, queue) VALUES (?, ?, ?, ?)

-- name: add_key
INSERT INTO semel_work_key (queue, key, due) VALUES (?, ?, ?) ON CONFLICT (queue, key) DO NOTHING

-- name: move_work
UPDATE semel_work SET
    key = :key, state = :state, fence = :fence, holds = :holds, keep_until = :keep_until, result = NULL,
    due = coalesce(:due, due), cause = coalesce(:cause, cause), attempts = coalesce(:attempts, attempts),
    turn = CASE WHEN :holds = 1 THEN coalesce(turn, :turn) WHEN :state = 1 THEN NULL ELSE turn END
WHERE queue = :queue AND identity = :identity

-- name: drop_body
UPDATE semel_work SET headers = NULL, data = NULL, blob = NULL, size = 0 WHERE queue = ? AND identity = ?

-- name: new_body
UPDATE semel_work SET
    id = ?, source = ?, type = ?, subject = ?, time = ?, session = ?, idx = ?, datacontenttype = ?, headers = ?,
    data = ?, blob = ?, size = ?
WHERE queue = ? AND identity = ?

-- name: key_head
SELECT state, due FROM semel_work
WHERE queue = ? AND key = ? AND key IS NOT NULL AND holds = 1 ORDER BY turn LIMIT 1

-- name: key_claimed
SELECT max(due) FROM semel_work WHERE queue = ? AND key = ? AND key IS NOT NULL AND state = 2

-- name: delete_key
DELETE FROM semel_work_key WHERE queue = ? AND key = ?

-- name: put_key
INSERT INTO semel_work_key (queue, key, due) VALUES (?, ?, ?)
ON CONFLICT (queue, key) DO UPDATE SET due = excluded.due

-- name: rows_to_turn
SELECT seq, key FROM semel_work
WHERE queue = ? AND key IS NOT NULL AND turn IS NULL AND state = 1 AND due <= ? ORDER BY due, seq LIMIT 1000

-- name: give_turn
UPDATE semel_work SET turn = ?, holds = 1, state = 0 WHERE seq = ?

-- name: claimable_rows
SELECT
    seq, queue, identity, key, state, due, attempts, fence, owner, cause,
    id, source, type, subject, time, session, idx, datacontenttype, headers, data, blob, size
FROM semel_work WHERE queue = ? AND key IS NULL AND state IN (0, 1, 2) AND due <= ? ORDER BY due, seq LIMIT ?

-- name: claimable_keys
SELECT key FROM semel_work_key WHERE queue = ? AND due IS NOT NULL AND due <= ? ORDER BY due LIMIT ?

-- name: work_due
SELECT EXISTS (SELECT 1 FROM semel_work WHERE queue = ?1 AND key IS NULL AND state IN (0, 1, 2) AND due <= ?2)
    OR EXISTS (SELECT 1 FROM semel_work_key WHERE queue = ?1 AND due IS NOT NULL AND due <= ?2)
    OR EXISTS (
        SELECT 1 FROM semel_work WHERE queue = ?1 AND key IS NOT NULL AND turn IS NULL AND state = 1 AND due <= ?2
    )

-- name: key_rows
SELECT
    seq, queue, identity, key, state, due, attempts, fence, owner, cause,
    id, source, type, subject, time, session, idx, datacontenttype, headers, data, blob, size
FROM semel_work WHERE queue = ? AND key = ? AND key IS NOT NULL AND holds = 1 ORDER BY turn LIMIT ?

-- name: one_row
SELECT
    seq, queue, identity, key, state, due, attempts, fence, owner, cause,
    id, source, type, subject, time, session, idx, datacontenttype, headers, data, blob, size
FROM semel_work WHERE queue = ? AND identity = ?

-- name: claim_row
UPDATE semel_work SET
    state = 2, holds = 1, fence = ?, owner = ?, attempts = attempts + 1, due = ?, turn = coalesce(turn, ?)
WHERE seq = ?

-- name: add_ledger
INSERT INTO semel_ledger (
    seq, at, node, pipeline, hop, kind, message, delivery, session, idx, peer, stream, epoch, first, last, n, fold,
    attempt, cause, trace
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: lowest_pin
SELECT min("offset") FROM semel_cursor WHERE stream = ? AND pins = 1

-- name: first_unexported
SELECT min("offset") FROM semel_record WHERE stream_id = ? AND seq > ?

-- name: set_first
UPDATE semel_stream SET first = ? WHERE id = ?

-- name: read_stream
SELECT id, start, head, first, (SELECT epoch FROM semel_store) FROM semel_stream WHERE name = ?

-- name: read_records
SELECT
    epoch, "offset", identity, kind, target, at,
    id, source, type, subject, time, session, idx, datacontenttype, headers, data, blob, size
FROM semel_record WHERE stream_id = ? AND "offset" > ? ORDER BY "offset" LIMIT ?

-- name: read_cursor
SELECT stream, epoch, "offset" FROM semel_cursor WHERE name = ?

-- name: read_state
SELECT value, version FROM semel_state WHERE key = ? AND version > 0

-- name: read_states
SELECT key, value, version FROM semel_state
WHERE key > ?1 AND key >= ?2 AND (?3 IS NULL OR key < ?3) AND version > 0 ORDER BY key LIMIT ?4

-- name: read_history
SELECT
    seq, at, node, pipeline, hop, kind, message, delivery, session, idx, peer, stream, epoch, first, last, n, fold,
    attempt, cause, trace
FROM semel_ledger WHERE message = ? AND message IS NOT NULL ORDER BY seq LIMIT ?

-- name: work_rows
SELECT
    seq, queue, identity, key, state, due, attempts, fence, owner, cause,
    id, source, type, subject, time, session, idx, datacontenttype, headers, data, blob, size
FROM semel_work WHERE queue = ?1 AND state IN (SELECT value FROM json_each(?2)) AND seq > ?3 ORDER BY seq LIMIT ?4

-- name: work_rows_aside
SELECT
    seq, queue, identity, key, state, due, attempts, fence, owner, cause,
    id, source, type, subject, time, session, idx, datacontenttype, headers, data, blob, size
FROM semel_work WHERE queue = ?1 AND state = ?2 AND state IN (3, 4, 6) AND seq > ?3 ORDER BY seq LIMIT ?4

-- name: work_counts
SELECT queue, state, count(*) FROM semel_work
WHERE queue >= ?1 AND (?2 IS NULL OR queue < ?2) AND state <> 5 GROUP BY queue, state ORDER BY queue, state

-- name: read_ledger
SELECT
    seq, at, node, pipeline, hop, kind, message, delivery, session, idx, peer, stream, epoch, first, last, n, fold,
    attempt, cause, trace
FROM semel_ledger WHERE seq > ? ORDER BY seq LIMIT ?

-- name: read_index
SELECT
    r.seq, s.name, r.epoch, r."offset", r.identity, r.kind, r.target, r.at, r.size,
    r.id, r.source, r.type, r.subject, r.time, r.session, r.idx, r.datacontenttype, r.headers
FROM semel_record r JOIN semel_stream s ON s.id = r.stream_id WHERE r.seq > ? ORDER BY r.seq LIMIT ?

-- name: read_chunks
SELECT part, data FROM semel_chunk WHERE blob = ? AND part > ? ORDER BY part LIMIT 1

-- name: sweep_streams
SELECT id, first, hollowed FROM semel_stream WHERE first > start + 1 ORDER BY id

-- name: bodies_to_drop
-- Where they end, how many there are, how many of them have an identity, and how many of these one that is to go.
SELECT max("offset"), count(*), count(identity), count(CASE WHEN identity IS NOT NULL AND at < ?6 THEN 1 END)
FROM (
    SELECT "offset", identity, at FROM semel_record
    WHERE stream_id = ?1 AND "offset" > ?2 AND "offset" < ?3 AND seq <= ?4 ORDER BY "offset" LIMIT ?5
)

-- name: drop_records
DELETE FROM semel_record WHERE stream_id = ? AND "offset" > ? AND "offset" <= ? AND (identity IS NULL OR at < ?)

-- name: blobs_to_drop
SELECT blob FROM semel_record WHERE stream_id = ? AND "offset" > ? AND "offset" <= ? AND blob IS NOT NULL

-- name: forget_records
DELETE FROM semel_record WHERE at < ? AND seq IN (
    SELECT seq FROM semel_record WHERE stream_id = ? AND "offset" <= ? ORDER BY "offset" LIMIT ?
)

-- name: set_hollowed
UPDATE semel_stream SET hollowed = ? WHERE id = ?

-- name: hollow_records
UPDATE semel_record SET headers = NULL, data = NULL, blob = NULL
WHERE stream_id = ? AND "offset" > ? AND "offset" <= ?

-- name: dead_work
SELECT seq, queue, scope, identity, blob FROM semel_work
WHERE state = 6 AND holds = 0 AND keep_until IS NOT NULL AND keep_until <= ? ORDER BY keep_until LIMIT ?

-- name: done_work
-- Where they end, how many there are, and how many of them nobody needs to remember.
SELECT max(seq), count(*), count(CASE WHEN keep_until <= ?1 THEN 1 END)
FROM (SELECT seq, keep_until FROM semel_work WHERE state = 5 ORDER BY seq LIMIT ?2)

-- name: add_names
INSERT INTO semel_name (name)
SELECT name FROM (
    SELECT queue AS name FROM semel_work WHERE state = 5 AND seq <= ?1
    UNION SELECT scope FROM semel_work WHERE state = 5 AND seq <= ?1
) WHERE name NOT IN (SELECT name FROM semel_name)

-- name: move_done
-- A name that is missing makes it fail: an identity is never lost on the way. A process of an older version does not look
-- here, and may have let a late copy in.
INSERT INTO semel_identity (seq, scope, queue, keep_until, identity, result)
SELECT
    seq, (SELECT id FROM semel_name WHERE name = scope), (SELECT id FROM semel_name WHERE name = queue), keep_until,
    identity, result
FROM semel_work WHERE state = 5 AND seq <= ?1 AND keep_until > ?2 ORDER BY seq
ON CONFLICT (scope, identity) DO UPDATE SET keep_until = max(keep_until, excluded.keep_until)

-- name: delete_done_scopes
DELETE FROM semel_scope WHERE (scope, identity) IN (
    SELECT scope, identity FROM semel_work WHERE state = 5 AND seq <= ? AND scope <> queue
)

-- name: delete_done
DELETE FROM semel_work WHERE state = 5 AND seq <= ?

-- name: forget_identities
DELETE FROM semel_identity WHERE seq IN (
    SELECT seq FROM semel_identity WHERE keep_until <= ? ORDER BY keep_until LIMIT ?
)

-- name: one_identity
SELECT i.seq, i.keep_until, i.result, s.name FROM semel_name q
CROSS JOIN semel_identity i ON i.scope = q.id AND i.queue = q.id AND i.identity = ?2
CROSS JOIN semel_name s ON s.id = i.scope
WHERE q.name = ?1
UNION ALL
SELECT i.seq, i.keep_until, i.result, s.name FROM semel_name q
CROSS JOIN semel_identity i ON i.queue = q.id AND i.identity = ?2 AND i.queue <> i.scope
CROSS JOIN semel_name s ON s.id = i.scope
WHERE q.name = ?1

-- name: restore_work
INSERT INTO semel_work (
    seq, queue, scope, identity, key, turn, state, holds, due, attempts, fence, owner, keep_until, result, cause,
    id, source, type, size
) VALUES (?, ?, ?, ?, NULL, NULL, 5, 0, 0, 0, 0, '', ?, ?, NULL, ?, ?, ?, 0)

-- name: delete_identity
DELETE FROM semel_identity WHERE seq = ?

-- name: delete_work
DELETE FROM semel_work WHERE seq = ?

-- name: delete_scope
DELETE FROM semel_scope WHERE scope = ? AND identity = ?

-- name: orphan_blobs
SELECT name FROM semel_blob WHERE refs <= 0 AND at < ? ORDER BY at LIMIT ?

-- name: delete_blob
DELETE FROM semel_blob WHERE name = ?

-- name: delete_chunks
DELETE FROM semel_chunk WHERE blob = ?

-- name: delete_old_ledger
-- Of the oldest: times are in the order of numbers but for clocks that were set.
DELETE FROM semel_ledger WHERE at < ?1 AND seq IN (SELECT seq FROM semel_ledger ORDER BY seq LIMIT ?2)

-- name: delete_ledger
DELETE FROM semel_ledger WHERE seq IN (SELECT seq FROM semel_ledger WHERE seq <= ? ORDER BY seq LIMIT ?)

-- name: sweep_states
-- A process of an older version leaves deleted_at as it is when it sets a key again.
DELETE FROM semel_state WHERE rowid IN (
    SELECT rowid FROM semel_state WHERE deleted_at IS NOT NULL AND deleted_at <= ? AND version < 0
    ORDER BY deleted_at LIMIT ?
)

-- name: raise_epoch
UPDATE semel_store SET epoch = epoch + 1, fence = fence + ?

-- name: raise_heads
UPDATE semel_stream SET head = max(head, ?)

-- name: rebase_cursors
UPDATE semel_cursor SET epoch = (SELECT epoch FROM semel_store)

-- name: cursor_beyond_head
SELECT c.name FROM semel_cursor c LEFT JOIN semel_stream s ON s.name = c.stream WHERE c."offset" > coalesce(s.head, 0)
LIMIT 1

-- name: highest_head
SELECT coalesce(max(head), 0) FROM semel_stream

-- name: status_streams
SELECT name, head, first FROM semel_stream ORDER BY name

-- name: status_cursors
SELECT name, stream, epoch, "offset", pins FROM semel_cursor ORDER BY name

-- name: keep_result
UPDATE semel_work SET result = ? WHERE scope = ? AND identity = ? AND state = 5 RETURNING seq

-- name: status_remembered
SELECT (SELECT count(*) FROM semel_identity) + (SELECT count(*) FROM semel_work WHERE state = 5)

-- name: status_ledger
SELECT count(*) FROM semel_ledger

-- name: status_sweepable
SELECT
    (SELECT count(*) FROM semel_work WHERE state = 5)
    + (SELECT count(*) FROM semel_work WHERE state = 6 AND holds = 0 AND keep_until IS NOT NULL AND keep_until <= ?1)
    + (SELECT count(*) FROM semel_identity WHERE keep_until <= ?1)
    + (SELECT count(*) FROM semel_state WHERE deleted_at IS NOT NULL AND deleted_at <= ?2 AND version < 0)
    + (SELECT count(*) FROM semel_stream s JOIN semel_record r
       ON r.stream_id = s.id AND r."offset" > s.hollowed AND r."offset" < s.first)
