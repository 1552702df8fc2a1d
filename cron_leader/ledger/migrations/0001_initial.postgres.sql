-- cron_leader ledger, schema 1. Other programs may read these tables; docs name every column.

CREATE TABLE cron_leader_meta (
    ledger_id      text    NOT NULL,
    fleet          text    NOT NULL,   -- '' until the first node opens the ledger
    shards         integer NOT NULL,
    schema_version integer NOT NULL
);
CREATE UNIQUE INDEX cron_leader_meta_one_row ON cron_leader_meta ((true));

CREATE TABLE cron_leader_fence (
    election  text        PRIMARY KEY,
    fence     bigint      NOT NULL,
    nonce     text        NOT NULL,
    "offset"  bigint      NOT NULL,
    cluster   text,                    -- etcd's cluster id in hex; NULL after a rebase
    node      text        NOT NULL,
    raised_at timestamptz NOT NULL
);

CREATE TABLE cron_leader_term (
    election     text        NOT NULL,
    fence        bigint      NOT NULL,
    nonce        text        NOT NULL,
    node         text        NOT NULL,
    lease        bigint      NOT NULL,
    elected_at   timestamptz NOT NULL,
    heartbeat_at timestamptz NOT NULL,
    planned_to   timestamptz NOT NULL,
    ended_at     timestamptz,
    reason       text,
    PRIMARY KEY (election, fence)
);

CREATE TABLE cron_leader_job (
    job            text        PRIMARY KEY,
    election       text        NOT NULL,
    first_seen     timestamptz NOT NULL,
    effective_from timestamptz NOT NULL,
    retired_at     timestamptz,
    paused_until   timestamptz,
    paused_why     text,
    digest         text        NOT NULL
);

CREATE TABLE cron_leader_slot (
    job           text        NOT NULL,
    scheduled_for timestamptz NOT NULL,
    command_id    text        NOT NULL,
    election      text        NOT NULL,
    fence         bigint      NOT NULL,
    node          text        NOT NULL,
    state         text        NOT NULL CHECK (state IN ('due', 'running', 'retrying', 'succeeded',
        'failed', 'timed_out', 'cancelled', 'abandoned', 'skipped', 'missed')),
    reason        text,
    origin        text        NOT NULL,
    attempt       integer     NOT NULL,
    run_id        text,
    next_at       timestamptz,
    started_at    timestamptz,
    finished_at   timestamptz,
    PRIMARY KEY (job, scheduled_for, command_id)
);
CREATE INDEX cron_leader_slot_unfinished ON cron_leader_slot (election, fence)
    WHERE state IN ('due', 'running', 'retrying');

CREATE TABLE cron_leader_gap (
    job     text        NOT NULL,
    "first" timestamptz NOT NULL,
    "last"  timestamptz NOT NULL,
    slots   bigint      NOT NULL,
    state   text        NOT NULL,
    reason  text        NOT NULL,
    fence   bigint      NOT NULL,
    PRIMARY KEY (job, "first")
);

CREATE TABLE cron_leader_attempt (
    job           text        NOT NULL,
    scheduled_for timestamptz NOT NULL,
    command_id    text        NOT NULL,
    attempt       integer     NOT NULL,
    run_id        text        NOT NULL,
    fence         bigint      NOT NULL,
    node          text        NOT NULL,
    state         text        NOT NULL,
    started_at    timestamptz NOT NULL,
    heartbeat_at  timestamptz,
    finished_at   timestamptz,
    exit_code     integer,
    error         text,
    output        text,
    PRIMARY KEY (scheduled_for, job, command_id, attempt)  -- by time: claims write side by side
);

CREATE TABLE cron_leader_command (
    id            text        PRIMARY KEY,
    kind          text        NOT NULL,
    target        text        NOT NULL,
    args          text        NOT NULL,
    who           text        NOT NULL,
    why           text,
    at            timestamptz NOT NULL,
    done_by_fence bigint,
    result        text
);
CREATE INDEX cron_leader_command_unanswered ON cron_leader_command (target)
    WHERE done_by_fence IS NULL;

CREATE TABLE cron_leader_refusal (
    at       timestamptz NOT NULL,
    election text        NOT NULL,
    fence    bigint      NOT NULL,
    high     bigint,
    node     text        NOT NULL,
    what     text        NOT NULL,
    outcome  text
);

CREATE TABLE cron_leader_notice (
    key     text        PRIMARY KEY,
    sent_at timestamptz NOT NULL,
    fence   bigint      NOT NULL
);

-- The guard: the last statement before COMMIT of every write of a term. The advisory lock keeps
-- overlapping short shares from starving the raise; the row lock is what refuses and is re-read
-- after any wait (each statement of a VOLATILE function has a snapshot of its own).
CREATE FUNCTION cron_leader_guard(p_election text, p_fence bigint, p_nonce text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('cron_leader:' || p_election, 0));
    PERFORM 1 FROM cron_leader_fence f
        WHERE f.election = p_election AND f.fence = p_fence AND f.nonce = p_nonce
        FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'cron_leader: election % refuses fence %', p_election, p_fence
            USING ERRCODE = 'CL001', DETAIL = coalesce(
                (SELECT f.fence::text FROM cron_leader_fence f WHERE f.election = p_election), '');
    END IF;
END
$$;

INSERT INTO cron_leader_meta (ledger_id, fleet, shards, schema_version)
    VALUES (gen_random_uuid()::text, '', 0, 1);
