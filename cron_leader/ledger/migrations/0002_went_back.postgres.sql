-- cron_leader ledger, schema 2: only additions; programs of schema 1 that run go on.

-- When a raise last found that the ledger had lost its end, the fence that etcd remembered, and the
-- answer to it (skip or refire); NULL: never.
ALTER TABLE cron_leader_fence ADD COLUMN went_back_at timestamptz;
ALTER TABLE cron_leader_fence ADD COLUMN went_back_from bigint;
ALTER TABLE cron_leader_fence ADD COLUMN went_back text;

-- Since when it is paused; with paused_until, once that has passed, the last pause there was.
ALTER TABLE cron_leader_job ADD COLUMN paused_from timestamptz;

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

-- The claim of slots that have no row yet, and planned_to, in one statement that is a transaction by
-- itself: one round trip, and its plans stay with the function, whatever pooler stands between. A
-- slot of a pause is skipped. What is planned once must do for one row and for thousands: by index,
-- and joined by hash. No lock is waited for longer than within_ms. At another isolation than READ
-- COMMITTED it does nothing but say so (CL002). The conflict's update changes nothing; it has the row
-- read as an earlier copy, under way until now, has left it. p_term: one value instead of ten, which
-- the server would look up one by one.
CREATE FUNCTION cron_leader_claim(p_term jsonb, p_job text[], p_scheduled_for timestamptz[],
    p_command_id text[], p_run_id text[])
RETURNS TABLE (run_id text, attempt integer, state text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_election text := p_term ->> 'election';
    v_fence bigint := (p_term ->> 'fence')::bigint;
    v_nonce text := p_term ->> 'nonce';
    v_node text := p_term ->> 'node';
    v_now timestamptz := (p_term ->> 'now')::timestamptz;
    v_planned_to timestamptz := (p_term ->> 'planned_to')::timestamptz;
    v_known timestamptz := coalesce((p_term ->> 'known')::timestamptz, '-infinity');
    v_settings text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'cron_leader: claimed at %', current_setting('transaction_isolation')
            USING ERRCODE = 'CL002';
    END IF;
    v_settings := set_config('application_name', p_term ->> 'name', true)
        || set_config('synchronous_commit', 'on', true)
        || set_config('lock_timeout', p_term ->> 'within_ms', true)
        || set_config('tcp_user_timeout', p_term ->> 'frozen_ms', true)
        || set_config('plan_cache_mode', 'force_generic_plan', true)
        || set_config('enable_seqscan', 'off', true)
        || set_config('enable_nestloop', 'off', true);
    RETURN QUERY
    WITH wanted AS (
        SELECT w.job, w.scheduled_for, w.command_id, w.run_id,
            w.command_id = '' AND EXISTS (
                SELECT FROM cron_leader_job AS j WHERE j.job = w.job AND (j.paused_until > v_now
                    OR (w.scheduled_for >= j.paused_from AND w.scheduled_for < j.paused_until))
            ) AS paused
        FROM unnest(p_job, p_scheduled_for, p_command_id, p_run_id)
            AS w (job, scheduled_for, command_id, run_id)
    ), claimed AS (
        INSERT INTO cron_leader_slot AS s (job, scheduled_for, command_id, election, fence, node,
            state, reason, origin, attempt, run_id, started_at, finished_at)
        SELECT w.job, w.scheduled_for, w.command_id, v_election, v_fence, v_node,
            CASE WHEN w.paused THEN 'skipped' ELSE 'running' END,
            CASE WHEN w.paused THEN 'paused' END,
            CASE WHEN w.command_id = '' THEN 'schedule' ELSE 'manual' END,
            CASE WHEN w.paused THEN 0 ELSE 1 END, CASE WHEN NOT w.paused THEN w.run_id END,
            CASE WHEN NOT w.paused THEN v_now END, CASE WHEN w.paused THEN v_now END
        FROM wanted AS w
        ON CONFLICT (job, scheduled_for, command_id) DO UPDATE SET run_id = s.run_id
        WHERE s.state = 'running' AND s.run_id = ANY (p_run_id)
            OR s.state = 'skipped' AND s.reason = 'paused' AND s.finished_at = v_now
        RETURNING s.*
    ), attempts AS (
        INSERT INTO cron_leader_attempt
            (job, scheduled_for, command_id, attempt, run_id, fence, node, state, started_at)
        SELECT c.job, c.scheduled_for, c.command_id, c.attempt, c.run_id, c.fence, c.node,
            'running', c.started_at
        FROM claimed AS c WHERE c.state = 'running'
        ON CONFLICT DO NOTHING
    ), planned AS (
        UPDATE cron_leader_term SET planned_to = v_planned_to
        WHERE election = v_election AND fence = v_fence AND nonce = v_nonce
            AND planned_to < v_planned_to AND planned_to >= v_known
    )
    SELECT w.run_id, c.attempt, c.state FROM claimed AS c JOIN wanted AS w ON w.job = c.job
        AND w.scheduled_for = c.scheduled_for AND w.command_id = c.command_id;
    PERFORM cron_leader_guard(v_election, v_fence, v_nonce);
END
$$;

UPDATE cron_leader_meta SET schema_version = 2;
