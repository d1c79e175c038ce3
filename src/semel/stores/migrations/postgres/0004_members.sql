-- Who answers for this store, so that after a switch to another server somebody can say that nothing was lost.
-- members: how many have ever joined; 0 until the first one does. raised_on: the timeline on which the epoch was last
-- raised. switch_timeline, switch_at: a switch that is being decided on, and since when by this server's clock.
ALTER TABLE semel_store ADD COLUMN members bigint NOT NULL DEFAULT 0;
ALTER TABLE semel_store ADD COLUMN raised_on bigint;
ALTER TABLE semel_store ADD COLUMN switch_timeline bigint;
ALTER TABLE semel_store ADD COLUMN switch_at bigint;

-- number: how many had joined with it. seen: up to which number it knows the others. process: which one it is on its
-- machine. renewed, until: its lease by the clock of the server. timeline: the last one that it has vouched for.
CREATE TABLE semel_member (
    member text COLLATE "C" PRIMARY KEY,
    node text NOT NULL,
    process text NOT NULL,
    number bigint NOT NULL,
    seen bigint NOT NULL,
    renewed bigint NOT NULL,
    until bigint NOT NULL,
    timeline bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
