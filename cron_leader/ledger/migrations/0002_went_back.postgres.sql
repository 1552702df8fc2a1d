-- cron_leader ledger, schema 2: only additions; programs of schema 1 that run go on.

-- When a raise found that the ledger had lost what etcd remembers, and the answer to it (skip or
-- refire); NULL: never.
ALTER TABLE cron_leader_fence ADD COLUMN went_back_at timestamptz;
ALTER TABLE cron_leader_fence ADD COLUMN went_back text;

UPDATE cron_leader_meta SET schema_version = 2;
