"""Buys one call with PyPI x402 2.25.0, which pays v1 and v2 servers, through httpx.

Request: {url, privateKey, method (default "GET"), headers, body, rpcUrl}; with `rpcUrl` on Solana, in the environment
that has its part of the package, by that node.
Answer: {status, body, headers, receipt: the decoded receipt header or null, error: {type, message} or null}.
"""

from __future__ import annotations

import asyncio
from typing import Any

from driver_io import paid, read_request, unpaid, write_answer
from families import client_of
from x402.http import x402HTTPClient
from x402.http.clients import x402HttpxClient

TIMEOUT_SECONDS = 60


async def buy(request: dict[str, Any]) -> dict[str, Any]:
    """As the package's documentation does: every network of a family in v1 and v2, spend controls as they come."""
    client = client_of(request)
    async with x402HttpxClient(client, timeout=TIMEOUT_SECONDS) as http:
        response = await http.request(
            request.get("method", "GET"),
            request["url"],
            headers=request.get("headers", {}),
            content=request.get("body"),
        )
        text = (await response.aread()).decode()
        receipt = None
        if "payment-response" in response.headers or "x-payment-response" in response.headers:
            settled = x402HTTPClient(client).get_payment_settle_response(response.headers.get)
            receipt = settled.model_dump(by_alias=True, exclude_none=True)
        answer: dict[str, Any] = paid(response.status_code, text, dict(response.headers), receipt)
        return answer


def main() -> None:
    """Pay as asked; whatever the client raises becomes the answer's error."""
    request = read_request()
    try:
        answer = asyncio.run(buy(request))
    except Exception as error:  # noqa: BLE001  what the client raises is what the caller asked to see
        answer = unpaid(error)
    write_answer(answer)


if __name__ == "__main__":
    main()
