"""Forwards a paid call and sends the answer back with its receipt (specification 1.5, 7; contract 4.5 to 4.7).

The credit is spent when this begins. A target that fails is a 502 with the receipt and consumes it; a client that goes
away cancels the exchange with the target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import structlog

from tollkeeper.api import error_envelope, header_pairs, send_answer
from tollkeeper.core.errors import ApiError
from tollkeeper.core.evm import checksum_address
from tollkeeper.core.forwarding import gateway_headers
from tollkeeper.edge.forwarding import ForwardRequest, ForwardResponse
from tollkeeper.gateway.calls import cors

if TYPE_CHECKING:
    from litestar.types import Send

    from tollkeeper.edge.forwarding import Forwarder
    from tollkeeper.gateway.calls import Call, Headers
    from tollkeeper.gateway.gates import OpenGate
    from tollkeeper.gateway.inbox import Inbox
    from tollkeeper.gateway.traffic import Traffic
    from tollkeeper.storage.purchases import Purchase

_LOG = structlog.get_logger("tollkeeper.gateway.delivery")
CLIENT_GONE_STATUS: Final = 499  # recorded for a call whose client went away; nobody is sent it


class Delivery:
    """The last step of a paid call."""

    def __init__(self, forwarder: Forwarder, traffic: Traffic, public_url: str) -> None:
        self._forwarder = forwarder
        self._traffic = traffic
        parts = urlsplit(public_url)
        self._scheme, self._host = parts.scheme, parts.netloc

    async def deliver(
        self, send: Send, opened: OpenGate, call: Call, inbox: Inbox, purchase: Purchase, receipts: Headers
    ) -> None:
        """Forwards the call, answers it and records how it ended."""
        status, failed = CLIENT_GONE_STATUS, False
        try:
            response = await inbox.unless_gone(self._forward(opened, call, inbox, purchase))
            status = response.status
            await self._send(send, response, receipts)
        except ApiError as error:
            status, failed = error.status, True
            _LOG.info("target_failed", code=error.code.value, slug=opened.gate.slug, request_id=call.request_id)
            await send_answer(
                send, status, error_envelope(error, call.request_id), [*receipts, *header_pairs(error.headers), *cors()]
            )
        finally:
            self._traffic.ended(opened.gate.id, call.request_id, status, failed=failed)

    async def _forward(self, opened: OpenGate, call: Call, inbox: Inbox, purchase: Purchase) -> ForwardResponse:
        request = ForwardRequest(
            target=opened.target,
            method=call.method,
            headers=call.headers,
            added=gateway_headers(
                slug=opened.gate.slug,
                payer=checksum_address(purchase.payer),
                purchase_id=purchase.id,
                request_id=call.request_id,
                client=call.client,
                scheme=self._scheme,
                host=self._host,
            ),
            query=call.query,
            content_length=call.content_length,
        )
        body = b"" if call.content_length == 0 else inbox.body()
        return await self._forwarder.forward(request, body)

    async def _send(self, send: Send, response: ForwardResponse, receipts: Headers) -> None:
        own = [pair for pair in cors() if pair[0] != b"cache-control"]  # the answer has `private, no-store` already
        start: Any = {
            "type": "http.response.start",
            "status": response.status,
            "headers": [*response.headers, *receipts, *own],
        }
        await send(start)
        if isinstance(response.body, bytes):
            await send({"type": "http.response.body", "body": response.body, "more_body": False})
            return
        try:
            async for chunk in response.body:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            response.close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
