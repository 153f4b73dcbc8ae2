"""A gate as a buyer and its owner see it, for `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp

from tollkeeper.client.payments import offers_of
from tollkeeper.client.requests import RefusedError, open_session, why

if TYPE_CHECKING:
    from tollkeeper.client.gateway_account import GatewayAccount
    from tollkeeper.core.json_types import JsonObject


async def offered_price(link: str) -> str:
    """Return what the gate asks for, in words. Raises: RefusedError unless it answers with a 402 that can be paid."""
    async with open_session() as session:
        try:
            async with session.get(link, allow_redirects=False) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise RefusedError(f"no answer: {why(error)}") from error
    if answer.status in {401, 405}:  # a login or another method comes first
        return f"answers {answer.status}, and no 402 before that"
    if answer.status != 402:
        raise RefusedError(f"it answers {answer.status}, and not 402")
    offers = offers_of({name.lower(): value for name, value in answer.headers.items()}, body)
    if not offers:
        raise RefusedError("its 402 offers nothing that could be paid")
    networks = ", ".join(dict.fromkeys(str(offer.requirements.get("network")) for offer in offers))
    return f"a 402 that can be paid on {networks}"


async def target_answer(account: GatewayAccount, link: str) -> JsonObject:
    """Let the gateway ask the gate's target once, which charges nobody. Raises: RefusedError."""
    return await account.of(await account.find(link), "POST", "/test", has="status")
