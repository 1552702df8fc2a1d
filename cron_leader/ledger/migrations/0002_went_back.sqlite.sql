-- cron_leader ledger, schema 2: only additions; programs of schema 1 that run go on.

-- When a raise last found that the ledger had lost its end, the fence that etcd remembered, and the
-- answer to it (skip or refire); NULL: never.
ALTER TABLE cron_leader_fence ADD COLUMN went_back_at text;
ALTER TABLE cron_leader_fence ADD COLUMN went_back_from integer;
ALTER TABLE cron_leader_fence ADD COLUMN went_back text;

UPDATE cron_leader_meta SET schema_version = 2;
