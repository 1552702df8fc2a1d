"""LeaseRevoke as hand-written unary gRPC calls: HTTP/2 on the standard library.

etcd's JSON gateway would be simpler, but cannot be used under client-certificate auth. What is
left out of HTTP/2 is what one small call on a fresh connection never meets: padding,
continuation frames, flow control, the dynamic header table.
"""

from __future__ import annotations

import os
import socket
import time

from .groups import boot_ns
from .signals import default_signals

TYPE_CHECKING = False  # typing itself would cost a megabyte
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .groups import Lease

CALL_TIMEOUT_S = 1.0
RETRY_S = 0.1

OK, INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, UNAUTHENTICATED = 0, 3, 5, 7, 16
DEFINITE = frozenset({INVALID_ARGUMENT, PERMISSION_DENIED, UNAUTHENTICATED})
"""gRPC statuses that asking again does not change."""

DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1

GRPC_STATUS = (b"grpc-status", bytes.fromhex("9acac8b21234da8f"))
"""The header's name as it may stand in a header block: plain, and in HPACK's Huffman code."""


def start_revoker(endpoint: str, lease: Lease, until_ns: int) -> int:
    """A child that revokes through one endpoint and exits 0 once the lease is gone."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        default_signals()
        code = 0 if revoke(endpoint, lease, until_ns, for_pid=parent) else 1
    finally:
        os._exit(code)


def revoke(endpoint: str, lease: Lease, until_ns: int, *, for_pid: int) -> bool:
    """Ask until there is an answer, or nobody who waits for it; whether the lease is gone."""
    while boot_ns() < until_ns and os.getppid() == for_pid:
        status = try_revoke(endpoint, lease)
        if status in (OK, NOT_FOUND):
            return True
        if status in DEFINITE:
            return False
        time.sleep(RETRY_S)
    return False


def try_revoke(endpoint: str, lease: Lease) -> int | None:
    """The gRPC status of one try; None if it broke off."""
    try:
        token = ""
        if lease.user:
            who = field(1, lease.user) + field(2, secret(lease))
            status, reply = call(endpoint, lease, "Auth/Authenticate", who)
            if status != OK:
                return status
            token = text_field(2, reply)
        request = b"\x08" + varint(lease.id)
        return call(endpoint, lease, "Lease/LeaseRevoke", request, token)[0]
    except OSError:
        return None
    except ValueError:
        return INVALID_ARGUMENT  # an endpoint, or a reply, that makes no sense


def secret(lease: Lease) -> str:
    """The password as its file has it now: it may have been replaced since we were told of it."""
    told = lease.password or ""
    if lease.password_file is None:
        return told
    try:
        with open(lease.password_file, encoding="utf-8") as file:
            return file.readline().rstrip("\r\n") or told
    except (OSError, UnicodeDecodeError):
        return told


def call(
    endpoint: str, lease: Lease, method: str, message: bytes, token: str = ""
) -> tuple[int, bytes]:
    """One unary gRPC call over HTTP/2, on a connection of its own: status and reply.

    OSError if no answer came; it may have been carried out all the same.
    """
    host, port, tls = parse(endpoint, lease)
    headers = {
        ":method": "POST",
        ":scheme": "https" if tls else "http",
        ":path": f"/etcdserverpb.{method}",
        ":authority": f"{lease.server_name or host}:{port}" if port else "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    headers |= {"token": token} if token else {}
    block = b"".join(b"\0" + literal(name) + literal(value) for name, value in headers.items())
    request = (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + frame(SETTINGS, 0, 0, b"")
        + frame(HEADERS, END_HEADERS, 1, block)
        + frame(DATA, END_STREAM, 1, b"\0" + len(message).to_bytes(4, "big") + message)
    )
    with connect(host, port, lease if tls else None) as link:
        link.sendall(request)
        return answer(link)


def parse(endpoint: str, lease: Lease) -> tuple[str, int, bool]:
    """Host, port, and whether to speak TLS: for https, or if a CA or certificate is configured.

    Of a unix socket: its path, and port 0.
    """
    scheme, _, rest = endpoint.rpartition("://")
    tls = scheme in ("https", "unixs") or bool(lease.ca or lease.cert)
    if scheme.startswith("unix"):
        return rest, 0, tls
    host, _, port = rest.rstrip("/").rpartition(":")
    return host.strip("[]"), int(port), tls


def connect(host: str, port: int, tls: Lease | None) -> socket.socket:
    link = dial(host, port)
    if tls is None:
        return link
    try:
        import ssl

        context = ssl.create_default_context(cafile=tls.ca)
        # Python 3.13 asks more of a certificate than gRPC, by which the daemon has found it good.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.set_alpn_protocols(["h2"])
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key)
        name = tls.server_name or (host if port else "localhost")
        return context.wrap_socket(link, server_hostname=name)
    except BaseException:
        link.close()
        raise


def dial(host: str, port: int) -> socket.socket:
    if port:
        return socket.create_connection((host, port), CALL_TIMEOUT_S)
    link = socket.socket(socket.AF_UNIX)
    try:
        link.settimeout(CALL_TIMEOUT_S)
        link.connect(host)
    except BaseException:
        link.close()
        raise
    return link


def answer(link: socket.socket) -> tuple[int, bytes]:
    body = b""
    for kind, flags, payload in frames(link):
        if kind == DATA:
            body += payload
            if len(body) >= 5 and len(body) >= 5 + int.from_bytes(body[1:5], "big"):
                return OK, body[5:]  # a reply is sent on success only
        elif kind == HEADERS and (status := grpc_status(payload)) is not None:
            return status, b""
        elif kind == SETTINGS and not flags & ACK:
            link.sendall(frame(SETTINGS, ACK, 0, b""))
        elif kind in (RST_STREAM, GOAWAY):
            break
    raise ConnectionError("broken off")


def frames(link: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    """Type, flags and payload of each frame received, until the peer closes."""
    got = b""
    while chunk := link.recv(4096):
        got += chunk
        while len(got) >= 9 and len(got) >= 9 + (size := int.from_bytes(got[:3], "big")):
            yield got[3], got[4], got[9 : 9 + size]
            got = got[9 + size :]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


def grpc_status(block: bytes) -> int | None:
    """The status in a header block. Its digits are sent plain, for Huffman's code would not be
    shorter; any other spelling reads as None."""
    for name in GRPC_STATUS:
        rest = block.partition(name)[2]
        if rest and rest[0] < 3:
            digits = rest[1 : 1 + rest[0]]
            return int(digits) if digits.isdigit() else None
    return None


def literal(text: str) -> bytes:
    """An HPACK string, not Huffman-coded: its length in a 7-bit prefix, then its bytes."""
    raw = text.encode()
    if len(raw) < 127:
        return bytes([len(raw)]) + raw
    return b"\x7f" + varint(len(raw) - 127) + raw


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first: protobuf's and HPACK's."""
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number: int, text: str) -> bytes:
    """A protobuf string field."""
    raw = text.encode()
    return bytes([number << 3 | 2]) + varint(len(raw)) + raw


def text_field(number: int, message: bytes) -> str:
    """A string field of a protobuf message made of length-delimited fields only."""
    while message:
        tag, message = message[0], message[1:]
        size, shift = 0, 0
        while message[0] > 127:
            size, shift, message = size | (message[0] & 127) << shift, shift + 7, message[1:]
        size, message = size | message[0] << shift, message[1:]
        if tag == number << 3 | 2:
            return message[:size].decode()
        message = message[size:]
    raise ValueError("the field is not there")
