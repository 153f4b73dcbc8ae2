"""Two paid routes behind the official FastAPI or Flask middleware (PyPI x402 2.25.0).

Run by the interpreter of x402-2.25.0, on Solana of x402-2.25.0-svm, with the JSON object SERVER in the environment:
{framework: "fastapi" or "flask", facilitatorUrl, payTo, network (CAIP-2), price ("$0.01", or {amount, asset, extra} of
an asset that is in no table of the package)}. GET /data is settled once it was served (the package's default),
GET /upfront before. It listens on a free port of the loopback address and prints {"url": ...} as one line when it is
ready.
"""
# ruff: noqa: PLC0415 - what is imported is there for one framework, or one family, alone

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

from x402.http import FacilitatorConfig, HTTPFacilitatorClient, HTTPFacilitatorClientSync, PaymentOption
from x402.http.types import RouteConfig
from x402.schemas import AssetAmount
from x402.server import x402ResourceServer, x402ResourceServerSync

GOODS = {"said": "served"}
ASKED: dict[str, Any] = json.loads(os.environ["SERVER"])


def routes() -> dict[str, RouteConfig]:
    """The same goods, by both flows."""
    price = ASKED["price"] if isinstance(ASKED["price"], str) else AssetAmount(**ASKED["price"])
    terms = {"scheme": "exact", "pay_to": ASKED["payTo"], "price": price, "network": ASKED["network"]}
    told = {"mime_type": "application/json", "description": "data"}
    return {
        "GET /data": RouteConfig(accepts=[PaymentOption(**terms)], **told),
        "GET /upfront": RouteConfig(accepts=[PaymentOption(**terms, extra={"paymentFlow": "upfront"})], **told),
    }


def registered(server: Any) -> Any:
    """The server with the scheme of its network."""
    if ASKED["network"].startswith("solana:"):
        from x402.mechanisms.svm.exact import ExactSvmServerScheme

        server.register(ASKED["network"], ExactSvmServerScheme())
    else:
        from x402.mechanisms.evm.exact import ExactEvmServerScheme

        server.register(ASKED["network"], ExactEvmServerScheme())
    return server


def listening() -> socket.socket:
    """A free port, told to who started this."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen(128)
    sys.stdout.write(json.dumps({"url": f"http://127.0.0.1:{made.getsockname()[1]}"}) + "\n")
    sys.stdout.flush()
    return made


def serve_fastapi() -> None:
    """Until told to stop."""
    import uvicorn
    from fastapi import FastAPI
    from x402.http.middleware.fastapi import PaymentMiddlewareASGI

    facilitator = HTTPFacilitatorClient(FacilitatorConfig(url=ASKED["facilitatorUrl"]))
    app = FastAPI()
    app.add_middleware(PaymentMiddlewareASGI, routes=routes(), server=registered(x402ResourceServer(facilitator)))

    async def sell() -> dict[str, str]:
        return GOODS

    for path in ("/data", "/upfront"):
        app.add_api_route(path, sell, methods=["GET"])
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listening()])


def serve_flask() -> None:
    """The same, with the server that Flask brings."""
    from flask import Flask
    from werkzeug.serving import make_server
    from x402.http.middleware.flask import payment_middleware

    facilitator = HTTPFacilitatorClientSync(FacilitatorConfig(url=ASKED["facilitatorUrl"]))
    app = Flask(__name__)
    for path in ("/data", "/upfront"):
        app.add_url_rule(path, path, lambda: GOODS)
    payment_middleware(app, routes(), registered(x402ResourceServerSync(facilitator)))
    made = listening()
    make_server("127.0.0.1", 0, app, threaded=True, fd=made.fileno()).serve_forever()


if __name__ == "__main__":
    serve_fastapi() if ASKED["framework"] == "fastapi" else serve_flask()
