"""The official Python facilitator (PyPI x402 2.25.0) as its documentation serves it: what our hub is measured against.

Run by the interpreter of .cache/interop/x402-2.25.0, with the environment
  FACILITATOR_RPC_URL       the chain's node
  FACILITATOR_PRIVATE_KEY   a key with gas on that chain
  FACILITATOR_NETWORK       CAIP-2 name (default eip155:84532); the v1 names are always registered as well
It listens on a free port of the loopback address and prints {"url": ...} as one line when it is ready.
Nothing is tuned for or against it: default signer, default checks, uvicorn with its fast parts, no access log.
"""

from __future__ import annotations

import os
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from serving import serve
from x402 import x402Facilitator
from x402.mechanisms.evm import FacilitatorWeb3Signer
from x402.mechanisms.evm.exact import register_exact_evm_facilitator
from x402.schemas.helpers import parse_payment_payload, parse_payment_requirements


class Asked(BaseModel):
    """What verify and settle take, v1 and v2 alike."""

    paymentPayload: dict[str, Any]  # noqa: N815  the wire's own name
    paymentRequirements: dict[str, Any]  # noqa: N815  the wire's own name


def create_app() -> FastAPI:
    """The three calls of a facilitator."""
    facilitator = x402Facilitator()
    signer = FacilitatorWeb3Signer(
        private_key=os.environ["FACILITATOR_PRIVATE_KEY"],
        rpc_url=os.environ["FACILITATOR_RPC_URL"],
    )
    network = os.environ.get("FACILITATOR_NETWORK", "eip155:84532")
    register_exact_evm_facilitator(facilitator, signer, networks=network)

    async def supported() -> dict[str, Any]:
        answer: dict[str, Any] = facilitator.get_supported().model_dump(by_alias=True, exclude_none=True)
        return answer

    async def verify(asked: Asked) -> dict[str, Any]:
        payload = parse_payment_payload(asked.paymentPayload)
        requirements = parse_payment_requirements(payload.x402_version, asked.paymentRequirements)
        answer: dict[str, Any] = (await facilitator.verify(payload, requirements)).model_dump(by_alias=True)
        return answer

    async def settle(asked: Asked) -> dict[str, Any]:
        payload = parse_payment_payload(asked.paymentPayload)
        requirements = parse_payment_requirements(payload.x402_version, asked.paymentRequirements)
        answer: dict[str, Any] = (await facilitator.settle(payload, requirements)).model_dump(by_alias=True)
        return answer

    app = FastAPI()
    app.add_api_route("/supported", supported, methods=["GET"])
    app.add_api_route("/verify", verify, methods=["POST"])
    app.add_api_route("/settle", settle, methods=["POST"])
    return app


if __name__ == "__main__":
    serve(create_app())
