"""A paid route behind the official FastAPI middleware (PyPI x402 2.25.0): what our gateway is measured against.

Run by the interpreter of .cache/interop/x402-2.25.0, with the environment
  FACILITATOR_URL   any facilitator, ready before this starts (the middleware asks it once)
  PAY_TO            who is paid
  TOKEN_NAME        EIP-712 name of the USDC contract (default USDC, as on the real base-sepolia)
GET /data costs 0.01 USDC on base-sepolia in x402 v2 (the official v2 servers take no X-PAYMENT); GET /free costs
nothing. It listens on a free port of the loopback address and prints {"url": ...} as one line when it is ready.
"""

from __future__ import annotations

import os

from fastapi import FastAPI
from serving import serve
from x402.http import FacilitatorConfig, HTTPFacilitatorClient, PaymentOption
from x402.http.middleware.fastapi import PaymentMiddlewareASGI
from x402.http.types import RouteConfig
from x402.mechanisms.evm.exact import ExactEvmServerScheme
from x402.schemas import AssetAmount
from x402.server import x402ResourceServer

NETWORK = "eip155:84532"
USDC = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"
PRICE_MICRO = 10_000


def create_app() -> FastAPI:
    """One route that is sold and one that is not."""
    server = x402ResourceServer(HTTPFacilitatorClient(FacilitatorConfig(url=os.environ["FACILITATOR_URL"])))
    server.register(NETWORK, ExactEvmServerScheme())
    domain = {"name": os.environ.get("TOKEN_NAME", "USDC"), "version": "2"}
    price = AssetAmount(amount=str(PRICE_MICRO), asset=USDC, extra=domain)
    option = PaymentOption(scheme="exact", pay_to=os.environ["PAY_TO"], price=price, network=NETWORK)
    routes = {"GET /data": RouteConfig(accepts=[option], mime_type="application/json", description="data")}

    async def serve_data() -> dict[str, str]:
        return {"said": "served"}

    app = FastAPI()
    app.add_middleware(PaymentMiddlewareASGI, routes=routes, server=server)
    app.add_api_route("/data", serve_data, methods=["GET"])
    app.add_api_route("/free", serve_data, methods=["GET"])
    return app


if __name__ == "__main__":
    serve(create_app())
