"""Buys one call with PyPI x402 2.25.0, which pays v1 and v2 servers, through httpx or requests.

Request: {mode: "httpx" (default) or "requests", url, privateKey, method (default "GET"), headers, body, rpcUrl,
versions: "2" for version 2 alone}; with `rpcUrl` on Solana, in the environment that has its part of the package, by
that node. `calls` are as `driver_io.pay` takes them.
Answer: {status, body, headers, receipt: the decoded receipt header or null, error: {type, message} or null}.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from driver_io import paid, pay
from families import client_of
from x402 import x402ClientSync
from x402.http import x402HTTPClient, x402HTTPClientSync
from x402.http.clients import x402HttpxClient

TIMEOUT_SECONDS = 240


async def buy(request: dict[str, Any]) -> dict[str, Any]:
    """As the package's documentation does: every network of a family, spend controls as they come."""
    client = client_of(request)
    async with x402HttpxClient(client, timeout=TIMEOUT_SECONDS) as http:
        response = await http.request(
            request.get("method", "GET"),
            request["url"],
            headers=request.get("headers", {}),
            content=request.get("body"),
        )
        text = (await response.aread()).decode()
        receipt = receipt_in(response.headers, x402HTTPClient(client))
        answer: dict[str, Any] = paid(response.status_code, text, dict(response.headers), receipt)
        return answer


def buy_with_requests(request: dict[str, Any]) -> dict[str, Any]:
    """The same with requests."""
    from x402.http.clients import x402_requests  # noqa: PLC0415 - requests is not in each of the environments

    client = client_of(request, x402ClientSync)
    with x402_requests(client) as http:
        response = http.request(
            request.get("method", "GET"),
            request["url"],
            headers=request.get("headers", {}),
            data=request.get("body"),
            timeout=TIMEOUT_SECONDS,
        )
        receipt = receipt_in(response.headers, x402HTTPClientSync(client))
        answer: dict[str, Any] = paid(response.status_code, response.text, dict(response.headers), receipt)
        return answer


def receipt_in(headers: Mapping[str, str], reader: Any) -> dict[str, Any] | None:
    """The receipt, as the package reads it; None where there is none."""
    if "payment-response" not in headers and "x-payment-response" not in headers:
        return None
    receipt: dict[str, Any] = reader.get_payment_settle_response(headers.get).model_dump(
        by_alias=True, exclude_none=True
    )
    return receipt


def main() -> None:
    """Pay as asked, by httpx or by requests."""
    pay(lambda request: buy_with_requests(request) if request.get("mode") == "requests" else asyncio.run(buy(request)))


if __name__ == "__main__":
    main()
