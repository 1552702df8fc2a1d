-- cron_leader ledger, schema 2: only additions; programs of schema 1 that run go on.

-- When a raise last found that the ledger had lost its end, the fence that etcd remembered, and the
-- answer to it (skip or refire); NULL: never.
ALTER TABLE cron_leader_fence ADD COLUMN went_back_at text;
ALTER TABLE cron_leader_fence ADD COLUMN went_back_from integer;
ALTER TABLE cron_leader_fence ADD COLUMN went_back text;

-- Since when it is paused; with paused_until, once that has passed, the last pause there was.
ALTER TABLE cron_leader_job ADD COLUMN paused_from text;

-- For the history, newest first, and for retention, oldest first.
CREATE INDEX cron_leader_slot_time ON cron_leader_slot (scheduled_for DESC, job, command_id);
CREATE INDEX cron_leader_slot_fence ON cron_leader_slot (fence, scheduled_for);
CREATE INDEX cron_leader_slot_trouble ON cron_leader_slot (state, scheduled_for)
    WHERE state IN ('failed', 'timed_out', 'cancelled', 'abandoned', 'skipped', 'missed');
CREATE INDEX cron_leader_gap_time ON cron_leader_gap ("first");
CREATE INDEX cron_leader_job_retired ON cron_leader_job (retired_at) WHERE retired_at IS NOT NULL;
CREATE INDEX cron_leader_refusal_time ON cron_leader_refusal (at);
CREATE INDEX cron_leader_command_time ON cron_leader_command (at);
CREATE INDEX cron_leader_notice_time ON cron_leader_notice (sent_at);

UPDATE cron_leader_meta SET schema_version = 2;
