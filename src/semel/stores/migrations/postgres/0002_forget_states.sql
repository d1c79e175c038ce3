-- deleted_at: when the key was deleted; NULL while it is set. What was deleted before this column was here counts as
-- deleted now. The index asks nothing of other columns, so that a state that is set again and again stays in its page.
ALTER TABLE semel_state ADD COLUMN deleted_at bigint;
UPDATE semel_state SET deleted_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint WHERE version < 0;
CREATE INDEX semel_state_deleted ON semel_state (deleted_at) WHERE deleted_at IS NOT NULL;
