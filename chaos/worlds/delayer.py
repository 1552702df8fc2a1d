"""Delays packets without sch_netem: holds them in an NFQUEUE and gives the verdict late.

    delayer.py --queue N --delay-ms MS [--jitter]       prints "ready", then runs until SIGTERM

Started as a script inside a network namespace; stdlib only. The packets stay in the kernel and in
order; when this program ends, those still waiting are dropped, and a rule with --queue-bypass lets
everything pass. Sources: linux/netfilter/nfnetlink_queue.h, linux/netlink.h.
"""

from __future__ import annotations

import argparse
import random
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator

NETLINK_NETFILTER = 12
SOL_NETLINK, NETLINK_NO_ENOBUFS = 270, 5
SO_RCVBUFFORCE = 33
NLM_F_REQUEST, NLM_F_ACK = 1, 4
QUEUE_SUBSYSTEM = 3 << 8
MSG_PACKET, MSG_VERDICT, MSG_CONFIG = 0, 1, 2
ATTR_PACKET_HEADER, ATTR_VERDICT = 1, 2
CFG_COMMAND, CFG_PARAMS, CFG_MAX_LENGTH = 1, 2, 3
CFG_BIND, COPY_META, ACCEPT = 1, 1, 1
MAX_WAITING = 20_000
BUFFER = 8 << 20


def attribute(kind: int, data: bytes) -> bytes:
    size = 4 + len(data)
    return struct.pack("=HH", size, kind) + data + b"\0" * (-size % 4)


def message(kind: int, queue: int, body: bytes, flags: int) -> bytes:
    payload = struct.pack(">BBH", socket.AF_UNSPEC, 0, queue) + body
    header = struct.pack("=IHHII", 16 + len(payload), QUEUE_SUBSYSTEM | kind, flags, 0, 0)
    return header + payload


def packet_ids(data: bytes) -> Iterator[int]:
    """The ids of the packets announced in one read of the netlink socket."""
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if kind == QUEUE_SUBSYSTEM | MSG_PACKET:
            yield from _header_ids(data, at + 20, at + length)
        at += (length + 3) & ~3


def _header_ids(data: bytes, at: int, end: int) -> Iterator[int]:
    while at + 4 <= end:
        size, kind = struct.unpack_from("=HH", data, at)
        if kind & 0x3FFF == ATTR_PACKET_HEADER:
            yield struct.unpack_from(">I", data, at + 4)[0]
        at += (size + 3) & ~3


class Queue:
    """One bound NFQUEUE."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self.socket.bind((0, 0))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
        self._configure(attribute(CFG_COMMAND, struct.pack(">BBH", CFG_BIND, 0, 0)))
        self._configure(attribute(CFG_PARAMS, struct.pack(">IB", 0, COPY_META)))
        self._configure(attribute(CFG_MAX_LENGTH, struct.pack(">I", MAX_WAITING)))
        self.socket.setsockopt(SOL_NETLINK, NETLINK_NO_ENOBUFS, 1)

    def _configure(self, body: bytes) -> None:
        self.socket.send(message(MSG_CONFIG, self.number, body, NLM_F_REQUEST | NLM_F_ACK))
        error = -struct.unpack_from("=i", self.socket.recv(4096), 16)[0]
        if error:
            raise OSError(error, "the kernel refused to bind the queue")

    def accept(self, packet: int) -> None:
        verdict = attribute(ATTR_VERDICT, struct.pack(">II", ACCEPT, packet))
        self.socket.send(message(MSG_VERDICT, self.number, verdict, NLM_F_REQUEST))


def serve(queue: Queue, delay_s: float, *, jitter: bool) -> None:
    """For ever. jitter: each waits for anything up to delay_s, or for the one before it: they stay
    in order, and a plain queue is enough."""
    waiting: deque[tuple[float, int]] = deque()
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        if select.select([queue.socket], [], [], timeout)[0]:
            due = time.monotonic() + delay_s * (random.random() if jitter else 1)
            due = max(due, waiting[-1][0] if waiting else due)
            waiting.extend((due, packet) for packet in packet_ids(queue.socket.recv(65536)))
        while waiting and waiting[0][0] <= time.monotonic():
            queue.accept(waiting.popleft()[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--queue", type=int, required=True)
    parser.add_argument("--delay-ms", type=int, required=True)
    parser.add_argument("--jitter", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    queue = Queue(args.queue)
    print("ready", flush=True)
    serve(queue, args.delay_ms / 1000, jitter=args.jitter)


if __name__ == "__main__":
    main()
