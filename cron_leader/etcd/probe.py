"""Does a port speak the other protocol than the one configured?

gRPC reports TLS asked of a plain port, and plain HTTP/2 to a TLS port, as "Socket closed": just
what a dying server gives. One raw connection tells them apart. Only positive evidence counts.
"""

from __future__ import annotations

import asyncio
import ssl

PROBE_S = 1.0
UNIX = "unix://"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_TLS_HANDSHAKE, _TLS_ALERT, _HTTP2_SETTINGS = 0x16, 0x15, 0x04


async def mismatch(endpoint: str, *, tls: bool) -> str | None:
    """Cause and cure if `endpoint` speaks plain although tls is configured, or the reverse."""
    if tls:
        frame = await _ask(endpoint, _PREFACE)
        if len(frame) > 3 and frame[3] == _HTTP2_SETTINGS:
            return "TLS asked of a plain port; drop [etcd] ca, cert and key, or use its TLS port"
    else:
        record = await _ask(endpoint, _client_hello())
        if record[:1] and record[0] in (_TLS_HANDSHAKE, _TLS_ALERT):
            return "a plain connection to a TLS port; set [etcd] ca (and cert and key if it asks)"
    return None


async def _ask(endpoint: str, words: bytes) -> bytes:
    """The first bytes answered to `words`; empty if none came."""
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await _connect(endpoint)
            try:
                writer.write(words)
                return await reader.read(16)
            finally:
                writer.close()
    except (OSError, ValueError, TimeoutError):
        return b""


async def _connect(endpoint: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if endpoint.startswith(UNIX):
        return await asyncio.open_unix_connection(endpoint.removeprefix(UNIX))
    host, _, port = endpoint.rpartition(":")
    return await asyncio.open_connection(host.strip("[]"), int(port))


def _client_hello() -> bytes:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        session.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()
