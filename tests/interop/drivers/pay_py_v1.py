"""Buys one call with PyPI x402 1.0.0, the v1 line's last release, through httpx or requests.

Request: {url, privateKey, mode: "httpx" (default) | "requests", method (default "GET"), headers, body}, and `calls` as
`driver_io.pay` takes them.
Answer: {status, body, headers, receipt: the decoded X-Payment-Response or null, error: {type, message} or null}.
The httpx flavour gives the paid retry its own client with httpx's default timeout of 5 seconds.
"""

from __future__ import annotations

import asyncio
from typing import Any

from driver_io import paid, pay
from eth_account import Account
from x402.clients.base import decode_x_payment_response
from x402.clients.httpx import x402HttpxClient
from x402.clients.requests import x402_requests

TIMEOUT_SECONDS = 60


def main() -> None:
    """Pay as asked, by httpx or by requests."""
    pay(lambda request: buy_with_requests(request) if request.get("mode") == "requests" else buy_with_httpx(request))


def buy_with_httpx(request: dict[str, Any]) -> dict[str, Any]:
    """As the package's documentation does with its async client."""

    async def buy() -> dict[str, Any]:
        account = Account.from_key(request["privateKey"])
        async with x402HttpxClient(account=account, timeout=TIMEOUT_SECONDS) as client:
            response = await client.request(
                request.get("method", "GET"),
                request["url"],
                headers=request.get("headers", {}),
                content=request.get("body"),
            )
            text = (await response.aread()).decode()
            headers = dict(response.headers)
            answer: dict[str, Any] = paid(response.status_code, text, headers, receipt_of(headers))
            return answer

    return asyncio.run(buy())


def buy_with_requests(request: dict[str, Any]) -> dict[str, Any]:
    """As the package's documentation does with its requests session."""
    session = x402_requests(Account.from_key(request["privateKey"]))
    response = session.request(
        request.get("method", "GET"),
        request["url"],
        headers=request.get("headers", {}),
        data=request.get("body"),
        timeout=TIMEOUT_SECONDS,
    )
    headers = {name.lower(): value for name, value in response.headers.items()}
    answer: dict[str, Any] = paid(response.status_code, response.content.decode(), headers, receipt_of(headers))
    return answer


def receipt_of(headers: dict[str, str]) -> dict[str, Any] | None:
    """The receipt header as the package's own decoder reads it."""
    header = headers.get("x-payment-response")
    return decode_x_payment_response(header) if header else None


if __name__ == "__main__":
    main()
