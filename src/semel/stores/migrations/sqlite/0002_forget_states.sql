-- deleted_at: when the key was deleted; NULL while it is set. What was deleted before this column was here counts as
-- deleted now.
ALTER TABLE semel_state ADD COLUMN deleted_at INTEGER;
UPDATE semel_state SET deleted_at = unixepoch() * 1000000 WHERE version < 0;
CREATE INDEX semel_state_deleted ON semel_state (deleted_at) WHERE deleted_at IS NOT NULL;
