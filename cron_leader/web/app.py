"""The addresses of a node. Each handler answers from memory, or waits without blocking the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from cron_leader.config import HttpConfig
from cron_leader.web.access import refusal
from cron_leader.web.aside import Single, aside
from cron_leader.web.board import Board
from cron_leader.web.metrics import CONTENT_TYPE, render
from cron_leader.web.ready import unready

RENDER_S = 10.0
NOT_KEPT = {"Cache-Control": "no-store"}


def make_app(
    http: HttpConfig,
    board: Board,
    *,
    about: Mapping[str, str],
    status: Callable[[], Awaitable[bytes]],
) -> Starlette:
    """about: names of this node, for the metrics. status: the page of /api/v1/status."""
    site = _Site(http, board, about, status)
    app = Starlette(
        routes=[
            Route("/healthz", site.healthz),
            Route("/readyz", site.readyz),
            Route("/metrics", site.metrics),
            Route("/api/v1/status", site.status),
        ]
    )
    app.router.redirect_slashes = False  # what is not there is 404, not somewhere else
    return app


class _Site:
    def __init__(
        self,
        http: HttpConfig,
        board: Board,
        about: Mapping[str, str],
        status: Callable[[], Awaitable[bytes]],
    ) -> None:
        self._http, self._board, self._status = http, board, status
        self._page = Single(lambda: _rendered(board, about))

    async def healthz(self, request: Request) -> Response:
        """The process lives, and its loop comes round."""
        return PlainTextResponse("ok\n", headers=NOT_KEPT)

    async def readyz(self, request: Request) -> Response:
        seen = self._board.snapshot
        reasons = unready(
            seen, etcd_up=self._board.etcd_up(seen), ledger_up=self._board.ledger_up(seen)
        )
        said: dict[str, Any] = {
            "ready": not reasons,
            "reasons": reasons,
            "phase": seen.phase,
            "gate": seen.closed or "open",
        }
        return JSONResponse(said, status_code=503 if reasons else 200, headers=NOT_KEPT)

    async def metrics(self, request: Request) -> Response:
        page = await self._page.get(within_s=RENDER_S)
        return Response(page, headers=NOT_KEPT | {"Content-Type": CONTENT_TYPE})

    async def status(self, request: Request) -> Response:
        headers = request.headers
        why_not = refusal(
            self._http,
            host=headers.get("host", ""),
            authorization=headers.get("authorization", ""),
        )
        if why_not is not None:
            challenge = NOT_KEPT | {"WWW-Authenticate": "Bearer"}
            return JSONResponse({"error": why_not}, status_code=401, headers=challenge)
        return Response(await self._status(), headers=NOT_KEPT, media_type="application/json")


async def _rendered(board: Board, about: Mapping[str, str]) -> bytes:
    """Counts are copied here, and written out aside: thousands of series take milliseconds."""
    facts = board.facts()
    return await aside(lambda: render(facts, about))
