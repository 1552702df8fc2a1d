-- Every statement of the ledger, by name; both databases run the same text.
--
-- `-- name: NAME (column, ...)` starts a statement; with columns it takes a batch of rows, read as
-- the relation `batch`. `:word` is a parameter. sql.py turns both into each database's notation.
-- "slot" is the primary key (job, scheduled_for, command_id).
--
-- One order of locks in every transaction, lest two of them wait for each other: slots that there
-- are, by key; their attempts; jobs; new slots, by key; gaps; the term's row; orders; the guard.

-- ------------------------------------------------------------------ fence

-- name: raise_fence
INSERT INTO cron_leader_fence AS f
    (election, fence, nonce, "offset", cluster, node, raised_at)
SELECT :election, :revision, :nonce, 0, :cluster, :node, :now
WHERE :least = 0 OR EXISTS (
    SELECT g.fence FROM cron_leader_fence AS g WHERE g.election = :election AND g.fence >= :least)
ON CONFLICT (election) DO UPDATE SET fence = f."offset" + :revision, nonce = :nonce,
    cluster = :cluster, node = :node, raised_at = :now
WHERE f.fence < f."offset" + :revision AND (f.cluster IS NULL OR f.cluster = :cluster)

-- name: admit_went_back
-- Before the raise, with ledger_rollback other than refuse: a row that shows less than etcd
-- remembers is lifted to :least, kept by an offset; a second copy finds nothing to do. Whoever
-- still holds the row's old fence is refused from here on.
INSERT INTO cron_leader_fence AS f
    (election, fence, nonce, "offset", cluster, node, raised_at, went_back_at, went_back_from,
    went_back)
SELECT :election, :least, '', CASE WHEN :revision > :least THEN 0 ELSE :least END, :cluster, :node,
    :now, :now, :least, :rollback
WHERE :least > 0
ON CONFLICT (election) DO UPDATE SET fence = :least, nonce = '',
    "offset" = CASE WHEN f."offset" + :revision > :least THEN f."offset" ELSE :least END,
    went_back_at = :now, went_back_from = :least, went_back = :rollback
WHERE f.fence < :least AND (f.cluster IS NULL OR f.cluster = :cluster)

-- name: read_fence
SELECT fence, nonce, "offset", cluster FROM cron_leader_fence WHERE election = :election

-- name: rebase_fence
UPDATE cron_leader_fence
SET "offset" = CASE WHEN "offset" < fence THEN fence ELSE "offset" END, cluster = NULL
WHERE election = :election

-- name: record_refusal
INSERT INTO cron_leader_refusal (at, election, fence, high, node, what, outcome)
VALUES (:now, :election, :fence, :high, :node, :what, :outcome)

-- ------------------------------------------------------------------ identity

-- name: identity
SELECT ledger_id, fleet, shards, schema_version FROM cron_leader_meta

-- name: adopt
UPDATE cron_leader_meta SET fleet = :fleet, shards = :shards WHERE fleet = ''

-- ------------------------------------------------------------------ terms

-- name: open_term
-- A plain INSERT: a second copy of a settlement fails here, before it does anything.
INSERT INTO cron_leader_term
    (election, fence, nonce, node, lease, elected_at, heartbeat_at, planned_to)
VALUES (:election, :fence, :nonce, :node, :lease, :elected_at, :now, :planned_to)

-- name: end_older_terms
UPDATE cron_leader_term SET ended_at = heartbeat_at, reason = coalesce(reason, 'lease_expired')
WHERE election = :election AND fence < :fence AND ended_at IS NULL

-- name: heartbeat
UPDATE cron_leader_term SET heartbeat_at = :now,
    planned_to = CASE WHEN planned_to < :planned_to THEN :planned_to ELSE planned_to END
WHERE election = :election AND fence = :fence AND nonce = :nonce AND planned_to >= :known

-- name: beat_attempts (job, scheduled_for, command_id, run_id)
-- A row that a user's transaction holds is passed over: a run frozen in it must not hold up its
-- leader's heartbeat.
UPDATE cron_leader_attempt SET heartbeat_at = :now
WHERE (job, scheduled_for, command_id, attempt) IN (
    SELECT a.job, a.scheduled_for, a.command_id, a.attempt
    FROM batch AS b JOIN cron_leader_attempt AS a ON a.job = b.job
        AND a.scheduled_for = b.scheduled_for AND a.command_id = b.command_id
    WHERE a.run_id = b.run_id AND a.fence = :fence AND a.state = 'running'
    FOR UPDATE OF a SKIP LOCKED)

-- name: term_and_orders
-- What operators ask of the leader comes with its heartbeat, in the same round trip. No row: the
-- heartbeat found less than was known, and left it.
-- An order of a kind that this version does not know waits for one that does.
SELECT t.fence, c.id, c.kind, c.args, c.at FROM cron_leader_term AS t
LEFT JOIN cron_leader_command AS c
    ON c.target = t.election AND c.done_by_fence IS NULL
    AND c.kind IN ('step-down', 'trigger', 'pause', 'resume', 'backfill')
WHERE t.election = :election AND t.fence = :fence AND t.nonce = :nonce
    AND t.planned_to >= :planned_to
ORDER BY c.at, c.id
LIMIT 100

-- name: plan_to
-- A row that shows less than was known is left as it is: the next heartbeat must find it so.
UPDATE cron_leader_term SET planned_to = :planned_to
WHERE election = :election AND fence = :fence AND nonce = :nonce AND planned_to < :planned_to
    AND planned_to >= :known

-- name: close_term
UPDATE cron_leader_term SET ended_at = :now, reason = :reason
WHERE election = :election AND fence = :fence AND nonce = :nonce AND ended_at IS NULL

-- name: term_closed
SELECT fence FROM cron_leader_term
WHERE election = :election AND fence = :fence AND ended_at = :now AND reason = :reason

-- name: planned_to
-- A loss is dealt with once a term has settled above the fence that was lost; of that, terms know.
SELECT max(t.planned_to) AS planned_to, max(t.fence) AS settled,
    max(f.went_back_at) AS went_back_at, max(f.went_back_from) AS went_back_from,
    max(f.went_back) AS went_back, EXISTS (
        SELECT s.state FROM cron_leader_slot AS s JOIN cron_leader_fence AS g
            ON g.election = s.election AND s.fence < g.fence
        WHERE s.election = :election AND s.state IN ('due', 'running', 'retrying')) AS unfinished
FROM cron_leader_fence AS f LEFT JOIN cron_leader_term AS t ON t.election = f.election
WHERE f.election = :election

-- ------------------------------------------------------------------ operators' orders

-- name: put_command
-- Unfenced, from any host that reaches the ledger. A resend changes nothing.
INSERT INTO cron_leader_command (id, kind, target, args, who, why, at)
VALUES (:id, :kind, :target, :args, :who, :why, :at)
ON CONFLICT DO NOTHING

-- name: answer_order
UPDATE cron_leader_command SET done_by_fence = :fence, result = :result
WHERE id = :command_id AND target = :election AND done_by_fence IS NULL

-- name: order_answered
-- Ours is written: now, or by an earlier copy of this very statement.
SELECT id FROM cron_leader_command
WHERE id = :command_id AND done_by_fence = :fence AND result = :result

-- An order is carried out, by what follows, and answered in one transaction: each statement looks
-- whether it is answered already, so a late copy does nothing.

-- name: pause_jobs
-- A pause on top of one goes on from where that began.
UPDATE cron_leader_job AS j SET paused_until = :until, paused_why = c.why,
    paused_from = CASE WHEN j.paused_until > :now THEN j.paused_from ELSE :now END
FROM cron_leader_command AS c
WHERE c.id = :command_id AND c.target = :election AND c.done_by_fence IS NULL
    AND j.election = :election AND j.retired_at IS NULL AND j.job = coalesce(:job, j.job)

-- name: resume_jobs
-- What is left says which slots lay in the pause: they are not caught up.
UPDATE cron_leader_job AS j SET paused_until = :now
FROM cron_leader_command AS c
WHERE c.id = :command_id AND c.target = :election AND c.done_by_fence IS NULL
    AND j.election = :election AND j.job = coalesce(:job, j.job) AND j.paused_until > :now

-- name: put_manual (job, scheduled_for, command_id, next_at)
-- Beside the row of the schedule, which says what became of that. Unless :anew, only where nothing
-- of that time has ever run, or is about to.
INSERT INTO cron_leader_slot (job, scheduled_for, command_id, election, fence, node, state, origin,
    attempt, next_at)
SELECT b.job, b.scheduled_for, b.command_id, :election, :fence, :node, 'due', 'manual', 0, b.next_at
FROM batch AS b JOIN cron_leader_command AS c ON c.id = b.command_id
WHERE c.target = :election AND c.done_by_fence IS NULL
    AND (:anew = 1 OR NOT EXISTS (
        SELECT s.state FROM cron_leader_slot AS s
        WHERE s.job = b.job AND s.scheduled_for = b.scheduled_for
            AND s.state NOT IN ('missed', 'skipped')))
ON CONFLICT DO NOTHING

-- name: manual_slots (job, scheduled_for, command_id, next_at)
-- No row: our answer is not the one that stands.
SELECT c.id, s.job, s.scheduled_for, s.command_id, s.attempt, s.next_at
FROM batch AS b JOIN cron_leader_command AS c ON c.id = b.command_id
LEFT JOIN cron_leader_slot AS s ON s.job = b.job AND s.scheduled_for = b.scheduled_for
    AND s.command_id = b.command_id AND s.fence = :fence AND s.state = 'due'
WHERE c.done_by_fence = :fence AND c.result = :result

-- ------------------------------------------------------------------ jobs

-- name: read_jobs
SELECT job, first_seen, effective_from, digest, retired_at, paused_from, paused_until
FROM cron_leader_job WHERE election = :election

-- name: put_jobs (job, first_seen, effective_from, digest)
-- Unchanged rows are left alone: a takeover does not rewrite a hundred thousand jobs.
INSERT INTO cron_leader_job AS j (job, election, first_seen, effective_from, digest)
SELECT b.job, :election, b.first_seen, b.effective_from, b.digest FROM batch AS b
WHERE true
ON CONFLICT (job) DO UPDATE SET election = excluded.election,
    effective_from = excluded.effective_from, digest = excluded.digest, retired_at = NULL
WHERE j.election <> excluded.election OR j.effective_from <> excluded.effective_from
    OR j.digest <> excluded.digest OR j.retired_at IS NOT NULL

-- Rows that a job of the new name has from an earlier time stay what they are; so does, under the
-- former name, a row of the same slot. In this order: attempts go by their slots, all of them by
-- the job.

-- name: rename_attempts (job, former)
UPDATE cron_leader_attempt AS a SET job = b.job
FROM batch AS b JOIN cron_leader_job AS j ON j.job = b.former AND j.election = :election
WHERE a.job = b.former AND NOT EXISTS (
    SELECT o.job FROM cron_leader_slot AS o WHERE o.job = b.job
        AND o.scheduled_for = a.scheduled_for AND o.command_id = a.command_id)

-- name: rename_slots (job, former)
UPDATE cron_leader_slot AS s SET job = b.job
FROM batch AS b JOIN cron_leader_job AS j ON j.job = b.former AND j.election = :election
WHERE s.job = b.former AND NOT EXISTS (
    SELECT o.job FROM cron_leader_slot AS o WHERE o.job = b.job
        AND o.scheduled_for = s.scheduled_for AND o.command_id = s.command_id)

-- name: rename_gaps (job, former)
UPDATE cron_leader_gap AS g SET job = b.job
FROM batch AS b JOIN cron_leader_job AS j ON j.job = b.former AND j.election = :election
WHERE g.job = b.former AND NOT EXISTS (
    SELECT o.job FROM cron_leader_gap AS o WHERE o.job = b.job AND o."first" = g."first")

-- name: rename_jobs (job, former)
UPDATE cron_leader_job AS j SET job = b.job
FROM batch AS b
WHERE j.job = b.former AND j.election = :election
    AND NOT EXISTS (SELECT o.job FROM cron_leader_job AS o WHERE o.job = b.job)

-- name: retire_jobs (job)
UPDATE cron_leader_job AS j SET retired_at = :now
FROM batch AS b
WHERE j.job = b.job AND j.election = :election AND j.retired_at IS NULL

-- ------------------------------------------------------------------ the sweep, in this order

-- name: hold_unfinished
-- A finish, a claim, a user's transaction of an older term may still hold some of these rows, and
-- want their attempts next.
SELECT count(*) AS held FROM (
    SELECT s.job FROM cron_leader_slot AS s
    WHERE s.election = :election AND s.fence < :fence AND s.state IN ('due', 'running', 'retrying')
    ORDER BY s.job, s.scheduled_for, s.command_id
    FOR UPDATE OF s) AS h

-- name: sweep_attempts
-- It ended when it was last seen alive; nobody knows more.
UPDATE cron_leader_attempt AS a SET state = 'abandoned',
    finished_at = coalesce(a.heartbeat_at, a.started_at)
FROM cron_leader_slot AS s
WHERE s.election = :election AND s.fence < :fence AND s.state IN ('due', 'running', 'retrying')
    AND s.state = 'running' AND a.job = s.job AND a.scheduled_for = s.scheduled_for
    AND a.command_id = s.command_id AND a.attempt = s.attempt AND a.state = 'running'

-- name: sweep_running_to_due (job)
-- At-least-once, unless this slot has felled :takeovers leaders already.
UPDATE cron_leader_slot AS s SET state = 'due', fence = :fence, node = :node,
    run_id = NULL, started_at = NULL
WHERE s.election = :election AND s.fence < :fence
    AND s.state IN ('due', 'running', 'retrying') AND s.state = 'running'
    AND s.job IN (SELECT b.job FROM batch AS b)
    AND (SELECT count(*) FROM cron_leader_attempt AS a
         WHERE a.job = s.job AND a.scheduled_for = s.scheduled_for
             AND a.command_id = s.command_id AND a.state = 'abandoned') <= :takeovers

-- name: sweep_running
-- A final row keeps the fence and node of the term that ran it.
UPDATE cron_leader_slot SET state = 'abandoned', reason = 'lost_leadership', finished_at = :now
WHERE election = :election AND fence < :fence AND state IN ('due', 'running', 'retrying')
    AND state = 'running'

-- name: sweep_waiting
UPDATE cron_leader_slot SET fence = :fence, node = :node
WHERE election = :election AND fence < :fence AND state IN ('due', 'running', 'retrying')
    AND state <> 'running'

-- name: sweep_went_back
-- Instead of the two above, where the ledger went back and the answer is to skip: what is
-- unfinished in it may have been run, or finished, in the part that it lost.
UPDATE cron_leader_slot SET state = CASE WHEN attempt = 0 THEN 'missed' ELSE 'abandoned' END,
    reason = 'rollback', finished_at = :now
WHERE election = :election AND fence < :fence AND state IN ('due', 'running', 'retrying')

-- name: drop_orders
-- The same of orders to run something: answered in the part that was lost, they would run again.
UPDATE cron_leader_command SET done_by_fence = :fence, result = :result
WHERE target = :election AND done_by_fence IS NULL AND kind IN ('trigger', 'backfill')

-- name: waiting_slots
-- An attempt that was put back has run nothing, and is no try.
SELECT s.job, s.scheduled_for, s.command_id, s.attempt, s.origin, s.next_at,
    CASE WHEN s.attempt = 0 THEN 0 ELSE (
        SELECT count(*) FROM cron_leader_attempt AS a
        WHERE a.job = s.job AND a.scheduled_for = s.scheduled_for AND a.command_id = s.command_id
            AND a.state = 'cancelled' AND a.error = :put_back) END AS put_backs
FROM cron_leader_slot AS s
WHERE s.election = :election AND s.fence = :fence AND s.state IN ('due', 'running', 'retrying')
    AND s.state <> 'running'
ORDER BY s.scheduled_for, s.job, s.command_id

-- ------------------------------------------------------------------ slots without a run

-- name: new_entries (job, scheduled_for, command_id, state, reason, origin, next_at, finished_at)
INSERT INTO cron_leader_slot (job, scheduled_for, command_id, election, fence, node, state, reason,
    origin, attempt, next_at, finished_at)
SELECT b.job, b.scheduled_for, b.command_id, :election, :fence, :node, b.state, b.reason, b.origin,
    0, b.next_at, b.finished_at
FROM batch AS b WHERE true
ON CONFLICT DO NOTHING

-- name: end_entries (job, scheduled_for, command_id, seen, state, reason, next_at, finished_at)
UPDATE cron_leader_slot AS s SET state = b.state, reason = b.reason, next_at = b.next_at,
    finished_at = b.finished_at
FROM batch AS b
WHERE s.job = b.job AND s.scheduled_for = b.scheduled_for AND s.command_id = b.command_id
    AND s.fence = :fence AND s.state IN ('due', 'retrying') AND s.attempt = b.seen

-- name: new_gaps (job, first, last, slots, state, reason)
-- A slot with a row of its own is explained by that, and not counted: a leader may have committed
-- rows beyond its planned_to, behind a batch that was lost. So a gap of its may begin where this one
-- does: the longer one stands, lest the slots between the two ends stay unexplained.
INSERT INTO cron_leader_gap AS g (job, "first", "last", slots, state, reason, fence)
SELECT b.job, b."first", b."last", b.slots - (
        SELECT count(*) FROM cron_leader_slot AS s
        WHERE s.job = b.job AND s.scheduled_for >= b."first" AND s.scheduled_for <= b."last"
            AND s.command_id = ''
    ), b.state, b.reason, :fence FROM batch AS b
WHERE true
ON CONFLICT (job, "first") DO UPDATE SET "last" = excluded."last", slots = excluded.slots,
    state = excluded.state, reason = excluded.reason, fence = excluded.fence
WHERE g."last" < excluded."last"

-- ------------------------------------------------------------------ claims

-- name: hold_waiting (job, scheduled_for, command_id)
SELECT count(*) AS held FROM (
    SELECT s.job FROM batch AS b JOIN cron_leader_slot AS s ON s.job = b.job
        AND s.scheduled_for = b.scheduled_for AND s.command_id = b.command_id
    WHERE s.fence = :fence AND s.state IN ('due', 'retrying')
    ORDER BY s.job, s.scheduled_for, s.command_id
    FOR UPDATE OF s) AS h

-- name: pause_new (job, scheduled_for, command_id, origin)
-- Also a slot of the pause that only comes to its claim now. What an operator asked for runs.
INSERT INTO cron_leader_slot (job, scheduled_for, command_id, election, fence, node, state, reason,
    origin, attempt, finished_at)
SELECT b.job, b.scheduled_for, b.command_id, :election, :fence, :node, 'skipped', 'paused',
    b.origin, 0, :now
FROM batch AS b JOIN cron_leader_job AS j ON j.job = b.job
WHERE b.command_id = '' AND (j.paused_until > :now
    OR (b.scheduled_for >= j.paused_from AND b.scheduled_for < j.paused_until))
ON CONFLICT DO NOTHING

-- name: claim_new (job, scheduled_for, command_id, origin, run_id)
INSERT INTO cron_leader_slot (job, scheduled_for, command_id, election, fence, node, state, origin,
    attempt, run_id, started_at)
SELECT b.job, b.scheduled_for, b.command_id, :election, :fence, :node, 'running', b.origin,
    1, b.run_id, :now
FROM batch AS b WHERE true
ON CONFLICT DO NOTHING

-- name: pause_waiting (job, scheduled_for, command_id, seen)
-- One that has been tried has failed.
UPDATE cron_leader_slot AS s SET reason = 'paused', finished_at = :now,
    state = CASE WHEN s.attempt > (
        SELECT count(*) FROM cron_leader_attempt AS a
        WHERE a.job = s.job AND a.scheduled_for = s.scheduled_for AND a.command_id = s.command_id
            AND a.state = 'cancelled' AND a.error = :put_back) THEN 'failed' ELSE 'skipped' END
FROM batch AS b JOIN cron_leader_job AS j ON j.job = b.job
WHERE s.job = b.job AND s.scheduled_for = b.scheduled_for AND s.command_id = b.command_id
    AND s.fence = :fence AND s.state IN ('due', 'retrying') AND s.attempt = b.seen
    AND b.command_id = '' AND (j.paused_until > :now
        OR (b.scheduled_for >= j.paused_from AND b.scheduled_for < j.paused_until))

-- name: claim_waiting (job, scheduled_for, command_id, seen, run_id)
UPDATE cron_leader_slot AS s SET state = 'running', attempt = s.attempt + 1, run_id = b.run_id,
    node = :node, started_at = :now
FROM batch AS b
WHERE s.job = b.job AND s.scheduled_for = b.scheduled_for AND s.command_id = b.command_id
    AND s.fence = :fence AND s.state IN ('due', 'retrying') AND s.attempt = b.seen

-- name: new_attempts (job, scheduled_for, command_id, run_id)
INSERT INTO cron_leader_attempt
    (job, scheduled_for, command_id, attempt, run_id, fence, node, state, started_at)
SELECT s.job, s.scheduled_for, s.command_id, s.attempt, s.run_id, s.fence, s.node, 'running',
    s.started_at
FROM batch AS b JOIN cron_leader_slot AS s ON s.job = b.job
    AND s.scheduled_for = b.scheduled_for AND s.command_id = b.command_id
WHERE s.run_id = b.run_id AND s.state = 'running'
ON CONFLICT DO NOTHING

-- name: claims_won (job, scheduled_for, command_id, run_id)
-- And those that a pause has ended.
SELECT b.run_id, s.attempt, s.state
FROM batch AS b JOIN cron_leader_slot AS s ON s.job = b.job
    AND s.scheduled_for = b.scheduled_for AND s.command_id = b.command_id
WHERE s.run_id = b.run_id AND s.state = 'running'
    OR s.state IN ('skipped', 'failed') AND s.reason = 'paused' AND s.finished_at = :now

-- ------------------------------------------------------------------ the end of a run

-- name: finish_slot
UPDATE cron_leader_slot SET state = :state, reason = :reason, finished_at = :finished_at
WHERE job = :job AND scheduled_for = :scheduled_for AND command_id = :command_id
    AND state = 'running' AND attempt = :attempt AND run_id = :run_id

-- name: slot_retrying
UPDATE cron_leader_slot SET state = 'retrying', next_at = :next_at, run_id = NULL, started_at = NULL
WHERE job = :job AND scheduled_for = :scheduled_for AND command_id = :command_id
    AND state = 'running' AND attempt = :attempt AND run_id = :run_id

-- name: slot_due_again
UPDATE cron_leader_slot SET state = 'due', run_id = NULL, started_at = NULL
WHERE job = :job AND scheduled_for = :scheduled_for AND command_id = :command_id
    AND state = 'running' AND attempt = :attempt AND run_id = :run_id

-- name: finish_attempt
-- A success that tick.transaction() has committed stands; how the run ended is added to it.
UPDATE cron_leader_attempt SET
    state = CASE WHEN state = 'succeeded' THEN state ELSE :attempt_state END, finished_at = :finished_at,
    exit_code = :exit_code, error = :error, output = :output
WHERE job = :job AND scheduled_for = :scheduled_for AND command_id = :command_id
    AND attempt = :attempt AND run_id = :run_id AND state IN ('running', 'succeeded')

-- name: attempt_finished
-- Ours is written: now, or by an earlier copy of this very statement.
SELECT attempt FROM cron_leader_attempt
WHERE job = :job AND scheduled_for = :scheduled_for AND command_id = :command_id
    AND attempt = :attempt AND run_id = :run_id AND state = :attempt_state

-- ------------------------------------------------------------------ retention
-- expired_*: the oldest keys that may go, read without a lock; trim_*: gone, under the guard. What is
-- final stays final, so what was read may be deleted later, and twice.

-- name: expired_slots
SELECT job, scheduled_for, command_id FROM cron_leader_slot
WHERE scheduled_for < :before AND scheduled_for >= :since AND election = :election
    AND state NOT IN ('due', 'running', 'retrying')
    AND (finished_at IS NULL OR finished_at < :before)
ORDER BY scheduled_for LIMIT :rows

-- name: expired_slots_of_job
SELECT job, scheduled_for, command_id FROM cron_leader_slot
WHERE job = :job AND scheduled_for <= :upto AND scheduled_for >= :since
    AND state NOT IN ('due', 'running', 'retrying')
    AND (finished_at IS NULL OR finished_at < :before)
ORDER BY scheduled_for LIMIT :rows

-- name: surplus
-- Of the next :jobs jobs by name: the newest slot beyond the :keep that stay; NULL: there is none.
SELECT j.job, (
        SELECT s.scheduled_for FROM cron_leader_slot AS s WHERE s.job = j.job
        ORDER BY s.scheduled_for DESC, s.command_id DESC LIMIT 1 OFFSET :keep
    ) AS upto
FROM (SELECT k.job FROM cron_leader_job AS k WHERE k.job > :after AND k.election = :election
    ORDER BY k.job LIMIT :jobs) AS j
ORDER BY j.job

-- name: trim_attempts (job, scheduled_for, command_id)
DELETE FROM cron_leader_attempt WHERE (job, scheduled_for, command_id) IN (
    SELECT b.job, b.scheduled_for, b.command_id FROM batch AS b)

-- name: trim_slots (job, scheduled_for, command_id)
DELETE FROM cron_leader_slot WHERE (job, scheduled_for, command_id) IN (
        SELECT b.job, b.scheduled_for, b.command_id FROM batch AS b)
    AND state NOT IN ('due', 'running', 'retrying')

-- name: expired_gaps
SELECT job, "first" FROM cron_leader_gap WHERE "first" < :before AND "last" < :before
ORDER BY "first" LIMIT :rows

-- name: trim_gaps (job, first)
DELETE FROM cron_leader_gap WHERE (job, "first") IN (SELECT b.job, b."first" FROM batch AS b)

-- name: expired_terms
-- The newest one stays, whatever its age: it says up to when the election has planned.
SELECT fence AS old_fence FROM cron_leader_term
WHERE election = :election AND ended_at < :before
    AND fence < (SELECT max(t.fence) FROM cron_leader_term AS t WHERE t.election = :election)
ORDER BY fence LIMIT :rows

-- name: trim_terms (old_fence)
DELETE FROM cron_leader_term
WHERE election = :election AND fence < :fence AND fence IN (SELECT b.old_fence FROM batch AS b)

-- name: expired_refusals
SELECT at FROM cron_leader_refusal WHERE at < :before ORDER BY at LIMIT :rows

-- name: trim_refusals (at)
DELETE FROM cron_leader_refusal WHERE at IN (SELECT b.at FROM batch AS b)

-- name: expired_commands
SELECT id FROM cron_leader_command WHERE at < :before AND result IS NOT NULL
ORDER BY at LIMIT :rows

-- name: trim_commands (id)
DELETE FROM cron_leader_command
WHERE result IS NOT NULL AND id IN (SELECT b.id FROM batch AS b)

-- name: expired_notices
SELECT key FROM cron_leader_notice WHERE sent_at < :before ORDER BY sent_at LIMIT :rows

-- name: expired_jobs
SELECT j.job FROM cron_leader_job AS j
WHERE j.election = :election AND j.retired_at < :before
    AND (j.paused_until IS NULL OR j.paused_until < :before)
    AND NOT EXISTS (SELECT s.job FROM cron_leader_slot AS s WHERE s.job = j.job)
    AND NOT EXISTS (SELECT g.job FROM cron_leader_gap AS g WHERE g.job = j.job)
ORDER BY j.retired_at LIMIT :rows

-- name: trim_jobs (job)
DELETE FROM cron_leader_job
WHERE election = :election AND retired_at IS NOT NULL AND job IN (SELECT b.job FROM batch AS b)

-- name: put_notice
INSERT INTO cron_leader_notice (key, sent_at, fence) VALUES (:key, :now, :fence)
ON CONFLICT DO NOTHING

-- name: notice_is_ours
SELECT key FROM cron_leader_notice WHERE key = :key AND sent_at = :now AND fence = :fence

-- name: failing
-- Newest first. What a job failed of late, unless it has succeeded since.
SELECT s.job, s.scheduled_for, s.attempt, s.state, s.reason, s.node, s.finished_at
FROM cron_leader_slot AS s
WHERE s.state IN ('failed', 'timed_out', 'abandoned') AND s.scheduled_for > :since
    AND s.state IN ('failed', 'timed_out', 'cancelled', 'abandoned', 'skipped', 'missed')
    AND s.election = :election AND s.finished_at IS NOT NULL
    AND NOT EXISTS (
        SELECT n.state FROM cron_leader_slot AS n
        WHERE n.job = s.job AND n.scheduled_for > s.scheduled_for AND n.state = 'succeeded')
ORDER BY s.scheduled_for DESC LIMIT :rows

-- name: trim_notices (key)
DELETE FROM cron_leader_notice WHERE key IN (SELECT b.key FROM batch AS b)

-- ------------------------------------------------------------------ views

-- name: last_slots
SELECT s.* FROM cron_leader_job AS j CROSS JOIN cron_leader_slot AS s
WHERE s.job = j.job AND s.command_id = '' AND s.scheduled_for = (
    SELECT m.scheduled_for FROM cron_leader_slot AS m WHERE m.job = j.job AND m.command_id = ''
    ORDER BY m.scheduled_for DESC LIMIT 1)

-- name: last_word
-- Up to when a node's terms reach, and whether one of them goes on.
SELECT max(heartbeat_at) AS until, max(CASE WHEN ended_at IS NULL THEN 1 ELSE 0 END) AS leads
FROM cron_leader_term WHERE node = :node

-- name: attempts_of (job, scheduled_for, command_id)
SELECT a.* FROM batch AS b JOIN cron_leader_attempt AS a ON a.job = b.job
    AND a.scheduled_for = b.scheduled_for AND a.command_id = b.command_id
ORDER BY a.scheduled_for DESC, a.job, a.command_id, a.attempt DESC
