"""Two witnesses that do not trust the nodes: a watch on etcd, and triggers in the ledger.

EtcdWitness sees when the server really lets an election key go. LedgerWitness notes, inside the
writing transaction, every statement on the ledger's tables with the address it came from: a note
is there exactly if the transaction committed, and the server says when it did. So a write of a
deposed leader shows even where it changed no row.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import etcd3.etcdrpc as rpc
import grpc
import psycopg
from psycopg.rows import dict_row

from chaos.op import History, OneClock, Op, Source, Type
from chaos.worlds.services import UP_S, NotHere

TABLES = ("slot", "gap", "attempt", "term", "refusal", "fence")
GUARDED = ("slot", "gap", "attempt", "term", "job")

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
CREATE TRIGGER chaos_note AFTER INSERT OR UPDATE ON cron_leader_fence
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


class LedgerWitness:
    """Installed on a ledger whose tables exist; read when the nodes are gone."""

    def __init__(self, url: str, hosts: Mapping[str, str], clock: OneClock) -> None:
        """hosts: address -> node."""
        self._url, self._hosts, self._clock = url, hosts, clock

    def install(self) -> None:
        with psycopg.connect(self._url) as ledger:
            ledger.execute(_WITNESS)
            for table in GUARDED:
                ledger.execute(_GUARDED.format(table=table).encode())

    def testimony(self) -> Iterator[Op]:
        """Every accepted write in the order of commit, then all rows of the tables."""
        with psycopg.connect(self._url, row_factory=dict_row) as ledger:
            for row in ledger.execute(_ACCEPTED):
                yield self._accepted(row)
            for table in TABLES:
                for row in ledger.execute(f"SELECT * FROM cron_leader_{table}".encode()):
                    yield Op(self._clock.now_ns(), Source.LEDGER, "ledger", table, Type.OK, row)

    def _accepted(self, row: dict[str, Any]) -> Op:
        at_ns = self._clock.from_wall(row["committed_at"])
        node = self._hosts.get(row["client"], row["client"] or "local")
        term = _TERM.fullmatch(row["application"])
        value = row | {"term": int(term[1]) if term else None}
        return Op(at_ns, Source.LEDGER, node, "accepted", Type.OK, value)


class EtcdWitness:
    """Watches a prefix on one member that no fault touches."""

    def __init__(self, endpoints: Sequence[str], prefix: str, place: tuple[History, OneClock]):
        self._endpoints, self._prefix = endpoints, prefix.encode()
        self._history, self._clock = place
        self._nodes: dict[bytes, str] = {}
        self._channel = grpc.insecure_channel(endpoints[0])
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="etcd-witness", daemon=True)

    def start(self) -> None:
        """Once the cluster serves on every member; raises NotHere if it does not."""
        for endpoint in self._endpoints:
            _wait_until_serving(endpoint)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._channel.close()
        self._thread.join(UP_S)

    def _watch(self) -> None:
        end = self._prefix[:-1] + bytes([self._prefix[-1] + 1])
        wanted = rpc.WatchCreateRequest(key=self._prefix, range_end=end, start_revision=1)
        try:
            stub = rpc.WatchStub(self._channel)
            for answer in stub.Watch(self._requests(rpc.WatchRequest(create_request=wanted))):
                for event in answer.events:
                    self._note(event)
        except (grpc.RpcError, ValueError):
            if not self._closing.is_set():
                raise

    def _requests(self, first: object) -> Iterator[object]:
        yield first
        self._closing.wait()

    def _note(self, event: Any) -> None:
        key, deleted = event.kv.key, event.type == 1
        if not deleted:
            self._nodes[key] = str(json.loads(event.kv.value)["node"])
        value = {"key": key.decode(), "revision": event.kv.mod_revision, "lease": event.kv.lease}
        node, what = self._nodes.get(key, "?"), "delete" if deleted else "put"
        self._history.add(Op(self._clock.now_ns(), Source.ETCD, node, what, Type.OK, value))


def _wait_until_serving(endpoint: str) -> None:
    """Until the member answers a linearizable read."""
    until = time.monotonic() + UP_S
    options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]
    with grpc.insecure_channel(endpoint, options) as channel:
        while True:
            try:
                rpc.KVStub(channel).Range(rpc.RangeRequest(key=b"ready"), timeout=1)
                return
            except grpc.RpcError as error:
                if time.monotonic() > until:
                    raise NotHere(f"etcd at {endpoint} does not serve: {error}") from None
                time.sleep(0.05)
