-- cron_leader ledger, schema 1. Other programs may read these tables; docs name every column.
-- Times are UTC text of one width, YYYY-MM-DDTHH:MM:SS.ffffffZ, so that they sort as they pass.

PRAGMA application_id = 1129466948;  -- 'CRLD': tells our files from those of other programs

CREATE TABLE cron_leader_meta (
    ledger_id      text    NOT NULL,
    fleet          text    NOT NULL,   -- '' until the first node opens the ledger
    shards         integer NOT NULL,
    schema_version integer NOT NULL
);
CREATE UNIQUE INDEX cron_leader_meta_one_row ON cron_leader_meta ((1));

CREATE TABLE cron_leader_fence (
    election  text    NOT NULL PRIMARY KEY,
    fence     integer NOT NULL,
    nonce     text    NOT NULL,
    "offset"  integer NOT NULL,
    cluster   text,                    -- etcd's cluster id in hex; NULL after a rebase
    node      text    NOT NULL,
    raised_at text    NOT NULL
);

CREATE TABLE cron_leader_term (
    election     text    NOT NULL,
    fence        integer NOT NULL,
    nonce        text    NOT NULL,
    node         text    NOT NULL,
    lease        integer NOT NULL,
    elected_at   text    NOT NULL,
    heartbeat_at text    NOT NULL,
    planned_to   text    NOT NULL,
    ended_at     text,
    reason       text,
    PRIMARY KEY (election, fence)
);

CREATE TABLE cron_leader_job (
    job            text    NOT NULL PRIMARY KEY,
    election       text    NOT NULL,
    first_seen     text    NOT NULL,
    effective_from text    NOT NULL,
    retired_at     text,
    paused_until   text,
    paused_why     text,
    digest         text    NOT NULL
);

CREATE TABLE cron_leader_slot (
    job           text    NOT NULL,
    scheduled_for text    NOT NULL,
    command_id    text    NOT NULL,
    election      text    NOT NULL,
    fence         integer NOT NULL,
    node          text    NOT NULL,
    state         text    NOT NULL CHECK (state IN ('due', 'running', 'retrying', 'succeeded',
        'failed', 'timed_out', 'cancelled', 'abandoned', 'skipped', 'missed')),
    reason        text,
    origin        text    NOT NULL,
    attempt       integer NOT NULL,
    run_id        text,
    next_at       text,
    started_at    text,
    finished_at   text,
    PRIMARY KEY (job, scheduled_for, command_id)
);
CREATE INDEX cron_leader_slot_unfinished ON cron_leader_slot (election, fence)
    WHERE state IN ('due', 'running', 'retrying');

CREATE TABLE cron_leader_gap (
    job     text    NOT NULL,
    "first" text    NOT NULL,
    "last"  text    NOT NULL,
    slots   integer NOT NULL,
    state   text    NOT NULL,
    reason  text    NOT NULL,
    fence   integer NOT NULL,
    PRIMARY KEY (job, "first")
);

CREATE TABLE cron_leader_attempt (
    job           text    NOT NULL,
    scheduled_for text    NOT NULL,
    command_id    text    NOT NULL,
    attempt       integer NOT NULL,
    run_id        text    NOT NULL,
    fence         integer NOT NULL,
    node          text    NOT NULL,
    state         text    NOT NULL,
    started_at    text    NOT NULL,
    heartbeat_at  text,
    finished_at   text,
    exit_code     integer,
    error         text,
    output        text,
    PRIMARY KEY (scheduled_for, job, command_id, attempt)  -- by time: claims write side by side
);

CREATE TABLE cron_leader_command (
    id            text    NOT NULL PRIMARY KEY,
    kind          text    NOT NULL,
    target        text    NOT NULL,
    args          text    NOT NULL,
    who           text    NOT NULL,
    why           text,
    at            text    NOT NULL,
    done_by_fence integer,
    result        text
);
CREATE INDEX cron_leader_command_unanswered ON cron_leader_command (target)
    WHERE done_by_fence IS NULL;

CREATE TABLE cron_leader_refusal (
    at       text    NOT NULL,
    election text    NOT NULL,
    fence    integer NOT NULL,
    high     integer,
    node     text    NOT NULL,
    what     text    NOT NULL,
    outcome  text
);

CREATE TABLE cron_leader_notice (
    key     text    NOT NULL PRIMARY KEY,
    sent_at text    NOT NULL,
    fence   integer NOT NULL
);

INSERT INTO cron_leader_meta (ledger_id, fleet, shards, schema_version)
    SELECT substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-4' || substr(h, 14, 3) || '-a'
        || substr(h, 18, 3) || '-' || substr(h, 21, 12), '', 0, 1
    FROM (SELECT lower(hex(randomblob(16))) AS h);
