"""The sandbox's play: an owner and a buyer whose keys are public, at the press of a button or a call of the API."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from litestar import Response

from tollkeeper.api import HttpRequest, bearer_token, json_body, ok
from tollkeeper.core.api.errors import invalid
from tollkeeper.describing import route
from tollkeeper.gateway.management import operations

if TYPE_CHECKING:
    from litestar.handlers import HTTPRouteHandler

    from tollkeeper.core.json_types import JsonMapping
    from tollkeeper.gateway.management.paygates import Management


class Played(NamedTuple):
    """The answer that the test buyer got."""

    status: int
    text: str
    receipt: str


class Play(Protocol):
    """The test wallets' hands; only a sandbox has them."""

    @property
    def owner(self) -> str:
        """The test owner's wallet."""

    def sign(self, message: str) -> str:
        """Return the test owner's signature of a login."""

    async def pay(self, url: str, method: str) -> Played:
        """Let the test buyer pay for one call of a PayGate. Raises: ApiError."""


async def pay_gate(play: Play, gate: JsonMapping) -> Played:
    """Let the test buyer pay a PayGate for one call. Raises: UNAVAILABLE."""
    return await play.pay(gate["accessUrl"], gate["method"].partition(",")[0])


def play_routes(management: Management, play: Play | None) -> list[HTTPRouteHandler]:
    """Return the handler of the test buyer's payments; none outside a sandbox."""
    if play is None:
        return []

    @route(operations.PLAY_PAYMENT)
    async def pay(request: HttpRequest) -> Response[bytes]:
        """Contract 11."""
        gate_id = (await json_body(request)).get("paygateId")
        if not isinstance(gate_id, int) or isinstance(gate_id, bool) or not 0 < gate_id < 2**53:
            raise invalid("paygateId", "paygateId must be the number of a PayGate")
        played = await pay_gate(play, await management.read(bearer_token(request.headers), gate_id))
        return ok({"status": played.status, "body": played.text, "transaction": played.receipt or None})

    return [pay]
