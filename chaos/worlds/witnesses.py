"""Two witnesses that do not trust the nodes: a watch on etcd, and triggers in the ledger.

EtcdWitness sees when the server really lets an election key go. LedgerWitness notes, inside the
writing transaction, every statement on the ledger's tables with the address it came from: a note
is there exactly if the transaction committed, and the server says when it did. So a write of a
deposed leader shows even where it changed no row.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import etcd3.etcdrpc as rpc
import grpc
import psycopg
from psycopg.rows import dict_row

from chaos.op import History, OneClock, Op, Source, Type
from chaos.worlds.services import UP_S, NotHere

TABLES = ("slot", "gap", "attempt", "term", "refusal", "fence", "job")
GUARDED = ("slot", "gap", "attempt", "term", "job")

_EAGER = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]
_TERM = re.compile(r"cron_leader:[^:]+:(\d+)")
"""What a term's transactions call themselves, with its fence."""

_WITNESS = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.accepted (
  n bigserial PRIMARY KEY, relation text NOT NULL, operation text NOT NULL,
  client text, application text, fence bigint
);
CREATE FUNCTION chaos.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO chaos.accepted (relation, operation, client, application, fence)
  VALUES (TG_TABLE_NAME, TG_OP, host(inet_client_addr()), current_setting('application_name'),
          CASE WHEN TG_LEVEL = 'ROW' THEN (to_jsonb(NEW) ->> 'fence')::bigint END);
  RETURN NULL;
END $$;
CREATE TRIGGER chaos_note AFTER INSERT OR UPDATE OF fence ON cron_leader_fence
  FOR EACH ROW EXECUTE FUNCTION chaos.note();
"""
_GUARDED = """
CREATE TRIGGER chaos_note AFTER INSERT OR UPDATE OR DELETE ON cron_leader_{table}
  FOR EACH STATEMENT EXECUTE FUNCTION chaos.note();
"""
_ACCEPTED = """
SELECT *, pg_xact_commit_timestamp(xmin) AS committed_at FROM chaos.accepted
ORDER BY committed_at, n
"""

_TERMS = "SELECT fence, node FROM cron_leader_term UNION SELECT fence, node FROM cron_leader_fence"
_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'cron_leader%'"
_SQLITE_WITNESS = """
CREATE TABLE chaos_accepted (
  n INTEGER PRIMARY KEY AUTOINCREMENT, relation TEXT, operation TEXT, fence INTEGER, term INTEGER,
  committed_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ'))
);
CREATE TRIGGER chaos_raised AFTER UPDATE OF fence ON cron_leader_fence BEGIN
  INSERT INTO chaos_accepted (relation, operation, fence, term)
  VALUES ('cron_leader_fence', 'UPDATE', NEW.fence, NEW.fence);
END;
CREATE TRIGGER chaos_first_raised AFTER INSERT ON cron_leader_fence BEGIN
  INSERT INTO chaos_accepted (relation, operation, fence, term)
  VALUES ('cron_leader_fence', 'INSERT', NEW.fence, NEW.fence);
END;
"""
_SQLITE_GUARDED = """
CREATE TRIGGER chaos_{table}_{what} AFTER {what} ON cron_leader_{table}
WHEN NEW.state <> 'abandoned' BEGIN
  INSERT INTO chaos_accepted (relation, operation, term)
  VALUES ('cron_leader_{table}', '{what}', NEW.fence);
END;
"""


class Witness(Protocol):
    """Of the ledger: whether a server's or a file's."""

    def install(self) -> None: ...

    def testimony(self) -> Iterator[Op]: ...

    def sessions(self) -> int: ...


class LedgerWitness:
    """Installed on a ledger whose tables exist; read when the nodes are gone."""

    def __init__(self, url: str, hosts: Mapping[str, str], clock: OneClock) -> None:
        """hosts: address -> node; what comes from another one is told by its term."""
        self._url, self._hosts, self._clock = url, hosts, clock

    def install(self) -> None:
        with psycopg.connect(self._url) as ledger:
            ledger.execute(_WITNESS)
            for table in GUARDED:
                ledger.execute(_GUARDED.format(table=table).encode())

    def testimony(self) -> Iterator[Op]:
        """Every accepted write in the order of commit, then all rows of the tables."""
        with psycopg.connect(self._url, row_factory=dict_row) as ledger:
            terms = {row["fence"]: row["node"] for row in ledger.execute(_TERMS)}
            for row in ledger.execute(_ACCEPTED):
                yield self._accepted(row, terms)
            for table in TABLES:
                for row in ledger.execute(f"SELECT * FROM cron_leader_{table}".encode()):
                    yield Op(self._clock.now_ns(), Source.LEDGER, "ledger", table, Type.OK, row)

    def _accepted(self, row: dict[str, Any], terms: Mapping[int, str]) -> Op:
        at_ns = self._clock.from_wall(row["committed_at"])
        term = _TERM.fullmatch(row["application"])
        value = row | {"term": int(term[1]) if term else None}
        told = terms.get(value["term"] or row["fence"], row["client"] or "local")
        node = self._hosts.get(row["client"], told)
        return Op(at_ns, Source.LEDGER, node, "accepted", Type.OK, value)

    def sessions(self) -> int:
        """How many connections of nodes and their runs the server still has."""
        with psycopg.connect(self._url) as ledger:
            counted = ledger.execute(_SESSIONS).fetchone()
            return int(counted[0]) if counted else 0


class SqliteWitness:
    """As LedgerWitness, on a file: it cannot tell who writes, only what fence the row has then. A
    newer term leaves an older one's fence in rows that it abandons: these are not noted, nor are
    tables other than slots and gaps."""

    def __init__(self, path: Path, clock: OneClock) -> None:
        self._path, self._clock = path, clock

    def install(self) -> None:
        with closing(sqlite3.connect(self._path)) as ledger:
            ledger.executescript(_SQLITE_WITNESS)
            for table, what in product(("slot", "gap"), ("INSERT", "UPDATE")):
                ledger.executescript(_SQLITE_GUARDED.format(table=table, what=what))

    def testimony(self) -> Iterator[Op]:
        with closing(sqlite3.connect(self._path)) as ledger:
            ledger.row_factory = sqlite3.Row
            terms = {row["fence"]: row["node"] for row in ledger.execute(_TERMS)}
            for row in ledger.execute("SELECT * FROM chaos_accepted ORDER BY n"):
                at_ns = self._clock.from_text(row["committed_at"])
                node = terms.get(row["term"], "?")
                yield Op(at_ns, Source.LEDGER, node, "accepted", Type.OK, dict(row))
            for table in TABLES:
                for row in ledger.execute(f"SELECT * FROM cron_leader_{table}"):
                    now_ns = self._clock.now_ns()
                    yield Op(now_ns, Source.LEDGER, "ledger", table, Type.OK, dict(row))

    def sessions(self) -> int:
        """None: a file has no server."""
        return 0


class EtcdWitness:
    """Watches a prefix on every member: what any of them tells is noted, once, whatever befalls the
    others. Of a key it knows the node, and so who stands in line."""

    def __init__(self, endpoints: Sequence[str], prefix: str, place: tuple[History, OneClock]):
        self._endpoints, self._prefix = endpoints, prefix.encode()
        self._history, self._clock = place
        self._lock = threading.Lock()
        self._seen: set[tuple[int, bytes]] = set()
        self._nodes: dict[bytes, str] = {}
        self._line: dict[bytes, int] = {}
        self._closing = threading.Event()
        self._channels = [grpc.insecure_channel(endpoint, _EAGER) for endpoint in endpoints]
        self._threads = [
            threading.Thread(target=self._keep_watching, args=(channel,), daemon=True)
            for channel in self._channels
        ]

    def start(self) -> None:
        """Once the cluster serves on every member; raises NotHere if it does not."""
        for endpoint in self._endpoints:
            wait_until_serving(endpoint)
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closing.set()
        for channel, thread in zip(self._channels, self._threads, strict=True):
            channel.close()
            thread.join(UP_S)

    def line(self) -> list[tuple[bytes, str]]:
        """Key and node of each candidate, the leader's first."""
        with self._lock:
            keys = sorted(self._line, key=self._line.__getitem__)
            return [(key, self._nodes.get(key, "?")) for key in keys]

    def forget(self) -> None:
        """The store was put back to an older state: revisions come again."""
        with self._lock:
            self._seen.clear()
            self._line.clear()

    def _keep_watching(self, channel: grpc.Channel) -> None:
        """From the revision after the last one that this member told."""
        revision = 1
        while not self._closing.is_set():
            try:
                for answer in self._answers(channel, revision):
                    if answer.canceled:
                        revision = max(answer.compact_revision, 1)
                        break
                    for event in answer.events:
                        self._note(event)
                    if answer.events:
                        revision = answer.header.revision + 1
            except (grpc.RpcError, ValueError):
                pass
            self._closing.wait(0.1)

    def _answers(self, channel: grpc.Channel, revision: int) -> Iterator[Any]:
        end = self._prefix[:-1] + bytes([self._prefix[-1] + 1])
        wanted = rpc.WatchCreateRequest(key=self._prefix, range_end=end, start_revision=revision)
        first = rpc.WatchRequest(create_request=wanted)
        yield from rpc.WatchStub(channel).Watch(self._requests(first))

    def _requests(self, first: object) -> Iterator[object]:
        yield first
        self._closing.wait()

    def _note(self, event: Any) -> None:
        key, deleted = event.kv.key, event.type == 1
        with self._lock:
            if (event.kv.mod_revision, key) in self._seen:
                return
            self._seen.add((event.kv.mod_revision, key))
            if deleted:
                self._line.pop(key, None)
            else:
                self._line[key] = event.kv.create_revision
                self._nodes.setdefault(key, _node(event.kv.value))
            node, what = self._nodes.get(key, "?"), "delete" if deleted else "put"
        value = {"key": key.decode(), "revision": event.kv.mod_revision, "lease": event.kv.lease}
        self._history.add(Op(self._clock.now_ns(), Source.ETCD, node, what, Type.OK, value))


def _node(value: bytes) -> str:
    """Who put a key; "?" for a hand that put something else there."""
    try:
        return str(json.loads(value)["node"])
    except (ValueError, KeyError, TypeError):
        return "?"


def wait_until_serving(endpoint: str) -> None:
    """Until the member answers a linearizable read."""
    until = time.monotonic() + UP_S
    with grpc.insecure_channel(endpoint, _EAGER) as channel:
        while True:
            try:
                rpc.KVStub(channel).Range(rpc.RangeRequest(key=b"ready"), timeout=1)
                return
            except grpc.RpcError as error:
                if time.monotonic() > until:
                    raise NotHere(f"etcd at {endpoint} does not serve: {error}") from None
                time.sleep(0.05)
