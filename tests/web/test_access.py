"""The token: who needs it, and who is let pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from cron_leader.config import HttpConfig
from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.web.access import refusal
from tests.kit import town
from tests.web.kit import served

TOKEN = "sesame-and-more"
BEARER = f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    ("listen", "host", "authorization", "passes"),
    [
        ("127.0.0.1", "127.0.0.1:8080", "", True),
        ("127.0.0.1", "localhost", "", True),
        ("::1", "[::1]:8080", "", True),
        ("localhost", "localhost:8080", "", True),
        ("127.0.0.1", "cron.example", "", False),  # a proxy, or a name rebound to loopback
        ("127.0.0.1", "", "", False),
        ("127.0.0.1", "cron.example", BEARER, True),
        ("0.0.0.0", "127.0.0.1:8080", "", False),
        ("0.0.0.0", "localhost", "", False),
        ("0.0.0.0", "10.0.0.7:8080", BEARER, True),
        ("0.0.0.0", "10.0.0.7:8080", f"bearer  {TOKEN} ", True),
        ("0.0.0.0", "10.0.0.7:8080", f"Bearer {TOKEN}x", False),
        ("0.0.0.0", "10.0.0.7:8080", "Bearer ", False),
        ("0.0.0.0", "10.0.0.7:8080", f"Basic {TOKEN}", False),
        ("0.0.0.0", "10.0.0.7:8080", TOKEN, False),
        ("0.0.0.0", "10.0.0.7:8080", "Bearer s\u00e9same\udcff", False),
        ("::", "[2001:db8::1]:8080", BEARER, True),
        ("node.example", "127.0.0.1", "", False),
    ],
)
def test_off_loopback_only_the_token_passes(
    listen: str, host: str, authorization: str, passes: bool
) -> None:
    http = HttpConfig(listen, 8080, TOKEN)
    assert (refusal(http, host=host, authorization=authorization) is None) is passes


def test_without_a_token_set_nobody_passes_off_loopback() -> None:
    http = HttpConfig("0.0.0.0", 8080)
    for authorization in ("", "Bearer ", "Bearer None", BEARER):
        why = refusal(http, host="127.0.0.1", authorization=authorization)
        assert why is not None
        assert "token_file" in why


async def test_a_node_that_others_can_reach_asks_for_the_token_and_only_for_the_status(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    http = '[http]\ntoken_file = "token"\n'
    async with (
        town(tmp_path, etcd.endpoint, more=http) as place,
        served(place, "a", host="0.0.0.0") as node,
    ):
        await node.start("gate.opened")
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await node.get(path)).status == 200
        refused = await node.get("/api/v1/status")
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert "token_file" in refused.json["error"]
        assert (await node.get("/api/v1/status", Authorization="Bearer x")).status == 401
        passed = await node.get("/api/v1/status", Authorization=BEARER)
        assert passed.json["leader"]["node"] == "a"
