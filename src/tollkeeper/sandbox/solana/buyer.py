"""A buyer on the sandbox's Solana chain: signs what a 402 asks, and asks the chain what everybody may ask.

By changing the terms before they are signed it also makes the wrong payments that a gate must refuse.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.client.offers import offers_of
from tollkeeper.client.payments import solana_payload_for, solana_payment_for, solana_terms
from tollkeeper.core.solana.programs import associated_token_account

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.json_types import JsonMapping
    from tollkeeper.core.solana.paying import TransferTerms
    from tollkeeper.sandbox.buyer import Answer, Buyer
    from tollkeeper.sandbox.wallets import SolanaWallet

_MEMO_SIZE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class SolanaBuyer:
    """A wallet, the client that it asks with, and a node."""

    wallet: SolanaWallet
    client: Buyer
    rpc_url: str

    async def node(self, method: str, *params: object) -> Any:  # noqa: ANN401 - JSON
        """Return the node's answer. Raises: ValueError if it refuses."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        answer = (await self.client.ask("POST", self.rpc_url, body=request)).json()
        if "result" not in answer:
            raise ValueError(f"the node refused {method}: {answer.get('error')}")
        return answer["result"]

    async def sign(self, challenge: JsonMapping, change: Callable[[TransferTerms], TransferTerms] | None = None) -> str:
        """The `X-Payment` value that pays the first of a 402's requirements; `change` alters what is signed."""
        requirements = challenge["accepts"][0]
        asked = solana_terms(requirements)
        terms = asked if change is None else change(asked)
        blockhash = (await self.node("getLatestBlockhash"))["value"]["blockhash"]
        return solana_payment_for(requirements, terms, self.wallet.seed, blockhash, os.urandom(_MEMO_SIZE_BYTES))

    async def take(self, unpaid: Answer) -> dict[str, str]:
        """The header of a fresh payment that takes a 402's first offer: version 2's where there is one."""
        offer = offers_of(unpaid.headers, unpaid.body)[0]
        blockhash = (await self.node("getLatestBlockhash"))["value"]["blockhash"]
        terms, nonce = solana_terms(offer.requirements), os.urandom(_MEMO_SIZE_BYTES)
        return offer.shown(solana_payload_for(offer.requirements, terms, self.wallet.seed, blockhash, nonce))

    async def balance_micro(self, owner: str, mint: str) -> int:
        """Return the wallet's balance of the token, in micro-units."""
        found = await self.node("getTokenAccountBalance", associated_token_account(owner, mint))
        return int(found["value"]["amount"])

    async def lamports(self, owners: list[str]) -> int:
        """Return the sum of these accounts' lamports."""
        return sum([int((await self.node("getBalance", owner))["value"]) for owner in owners])
