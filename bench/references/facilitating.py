"""The three calls of an official Python facilitator (PyPI x402 2.25.0), as its documentation serves them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from x402 import x402Facilitator
from x402.schemas.helpers import parse_payment_payload, parse_payment_requirements


class Asked(BaseModel):
    """What verify and settle take, v1 and v2 alike."""

    paymentPayload: dict[str, Any]  # noqa: N815  the wire's own name
    paymentRequirements: dict[str, Any]  # noqa: N815  the wire's own name


def create_app(facilitator: x402Facilitator) -> FastAPI:
    """The three calls of a facilitator."""

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
