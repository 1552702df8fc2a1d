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
CREATE INDEX cron_leader_refusal_time ON cron_leader_refusal (at);
CREATE INDEX cron_leader_command_time ON cron_leader_command (at);
CREATE INDEX cron_leader_notice_time ON cron_leader_notice (sent_at);

-- The claim of slots that have no row yet, and planned_to, in one statement that is a transaction by
-- itself: one round trip, and its plans stay with the function, whatever pooler stands between. A
-- slot of a pause is skipped. What is planned once must do for one row and for thousands: by index,
-- and joined by hash. No lock is waited for longer than p_within_ms. At another isolation than READ
-- COMMITTED it does nothing but say so (CL002). The conflict's update changes nothing; it has the row
-- read as an earlier copy, under way until now, has left it.
CREATE FUNCTION cron_leader_claim(p_name text, p_within_ms text, p_frozen_ms text, p_election text,
    p_fence bigint, p_nonce text, p_node text, p_now timestamptz, p_planned_to timestamptz,
    p_known timestamptz, p_job text[], p_scheduled_for timestamptz[], p_command_id text[],
    p_origin text[], p_run_id text[])
RETURNS TABLE (run_id text, attempt integer, state text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_settings text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'cron_leader: claimed at %', current_setting('transaction_isolation')
            USING ERRCODE = 'CL002';
    END IF;
    v_settings := set_config('application_name', p_name, true)
        || set_config('synchronous_commit', 'on', true)
        || set_config('lock_timeout', p_within_ms, true)
        || set_config('tcp_user_timeout', p_frozen_ms, true)
        || set_config('plan_cache_mode', 'force_generic_plan', true)
        || set_config('enable_seqscan', 'off', true)
        || set_config('enable_nestloop', 'off', true);
    RETURN QUERY
    WITH wanted AS (
        SELECT w.job, w.scheduled_for, w.command_id, w.origin, w.run_id,
            w.command_id = '' AND EXISTS (
                SELECT FROM cron_leader_job AS j WHERE j.job = w.job AND (j.paused_until > p_now
                    OR (w.scheduled_for >= j.paused_from AND w.scheduled_for < j.paused_until))
            ) AS paused
        FROM unnest(p_job, p_scheduled_for, p_command_id, p_origin, p_run_id)
            AS w (job, scheduled_for, command_id, origin, run_id)
    ), claimed AS (
        INSERT INTO cron_leader_slot AS s (job, scheduled_for, command_id, election, fence, node,
            state, reason, origin, attempt, run_id, started_at, finished_at)
        SELECT w.job, w.scheduled_for, w.command_id, p_election, p_fence, p_node,
            CASE WHEN w.paused THEN 'skipped' ELSE 'running' END,
            CASE WHEN w.paused THEN 'paused' END, w.origin, CASE WHEN w.paused THEN 0 ELSE 1 END,
            CASE WHEN NOT w.paused THEN w.run_id END,
            CASE WHEN NOT w.paused THEN p_now END, CASE WHEN w.paused THEN p_now END
        FROM wanted AS w
        ON CONFLICT (job, scheduled_for, command_id) DO UPDATE SET run_id = s.run_id
        WHERE s.state = 'running' AND s.run_id = ANY (p_run_id)
            OR s.state = 'skipped' AND s.reason = 'paused' AND s.finished_at = p_now
        RETURNING s.*
    ), attempts AS (
        INSERT INTO cron_leader_attempt
            (job, scheduled_for, command_id, attempt, run_id, fence, node, state, started_at)
        SELECT c.job, c.scheduled_for, c.command_id, c.attempt, c.run_id, c.fence, c.node,
            'running', c.started_at
        FROM claimed AS c WHERE c.state = 'running'
        ON CONFLICT DO NOTHING
    ), planned AS (
        UPDATE cron_leader_term SET planned_to = p_planned_to
        WHERE election = p_election AND fence = p_fence AND nonce = p_nonce
            AND planned_to < p_planned_to AND planned_to >= p_known
    )
    SELECT w.run_id, c.attempt, c.state FROM claimed AS c JOIN wanted AS w ON w.job = c.job
        AND w.scheduled_for = c.scheduled_for AND w.command_id = c.command_id;
    PERFORM cron_leader_guard(p_election, p_fence, p_nonce);
END
$$;

UPDATE cron_leader_meta SET schema_version = 2;
