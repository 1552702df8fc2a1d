"""What a table needs to be fenced, as SQL to read and run: column, key, and optionally a trigger;
and what another database needs to be a fence target.

The trigger is for applications that forget the WHERE, and for new keys, which no per-row guard can
protect: it refuses every written row whose fence is not the one raised in cron_leader_fence. On
Postgres it is deferred to COMMIT, so that its lock on the fence is taken last; it fires once a row.

Not covered: DELETE and TRUNCATE. Changes by hand need the raised fence too.
"""

from __future__ import annotations

from collections.abc import Sequence

from cron_leader.fencing.names import quoted, table

TRIGGER = "cron_leader_fenced"

_FUNCTION = f"""CREATE OR REPLACE FUNCTION {TRIGGER}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('cron_leader:' || TG_ARGV[0], 0));
    PERFORM 1 FROM cron_leader_fence f
        WHERE f.election = TG_ARGV[0] AND f.fence = NEW.fence FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'cron_leader: % refuses fence % of election %',
            TG_RELID::regclass, NEW.fence, TG_ARGV[0] USING ERRCODE = 'CL001';
    END IF;
    RETURN NULL;
END
$$"""

_GUARD = """CREATE OR REPLACE FUNCTION
    cron_leader_guard(p_election text, p_fence bigint, p_nonce text) RETURNS void
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
$$"""
"""As the ledger's migrations make it."""


def ddl(
    name: str, *, lite: bool, key: Sequence[str] = (), trigger: str | None = None
) -> tuple[str, ...]:
    """The statements, in order. key: columns to make unique. trigger: the election to compare with.

    Raises FenceMisuse for a name that is none.
    """
    target = table(name, folded=not lite)
    statements = [f"ALTER TABLE {target} ADD COLUMN fence {_type(lite)} NOT NULL DEFAULT 0"]
    if key:
        statements.append(_unique(target, key, lite))
    if trigger is not None:
        statements += _lite_triggers(target, trigger) if lite else _triggers(target, trigger)
    return tuple(statements)


def target_ddl(*, lite: bool) -> tuple[str, ...]:
    """What another database needs to be a fence target; once a database, for any number of fleets.

    The table and the guard are called there as in the ledger, so all that uses them works there.
    """
    columns = [
        "election text NOT NULL PRIMARY KEY",
        f"fence {_type(lite)} NOT NULL",
        "nonce text NOT NULL",
        "node text NOT NULL",
        f"raised_at {'text' if lite else 'timestamptz'} NOT NULL",
    ]
    made = ",\n    ".join(columns)
    table_of = f"CREATE TABLE IF NOT EXISTS cron_leader_fence (\n    {made}\n)"
    return (table_of,) if lite else (table_of, _GUARD)


def _type(lite: bool) -> str:
    return "integer" if lite else "bigint"


def _unique(target: str, key: Sequence[str], lite: bool) -> str:
    columns = ", ".join(quoted(column) for column in key)
    if not lite:
        return f"CREATE UNIQUE INDEX ON {target} ({columns})"
    schema, _, bare = target.rpartition(".") if target.count(".") else ("", "", target)
    name = _derived(bare, "fence_key")
    return f"CREATE UNIQUE INDEX {schema + '.' if schema else ''}{name} ON {bare} ({columns})"


def _triggers(target: str, election: str) -> list[str]:
    return [
        _FUNCTION,
        f"CREATE CONSTRAINT TRIGGER {TRIGGER} AFTER INSERT OR UPDATE ON {target}\n"
        "    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW\n"
        f"    EXECUTE FUNCTION {TRIGGER}({_text(election)})",
    ]


def _lite_triggers(target: str, election: str) -> list[str]:
    bare = target.rpartition(".")[2]
    return [
        f"CREATE TRIGGER {_derived(bare, f'{TRIGGER}_{event.lower()}')} BEFORE {event} ON {bare}\n"
        "    WHEN NEW.fence IS NOT\n"
        f"        (SELECT fence FROM cron_leader_fence WHERE election = {_text(election)})\n"
        "BEGIN\n    SELECT RAISE(ABORT, 'cron_leader: stale fence');\nEND"
        for event in ("INSERT", "UPDATE")
    ]


def _derived(quoted_name: str, suffix: str) -> str:
    return f'{quoted_name[:-1]}_{suffix}"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
