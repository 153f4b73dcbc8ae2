"""Actions of the sandbox's pages with its test wallets (`web.play.Play`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import aiohttp

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.web.play import Played

if TYPE_CHECKING:
    from tollkeeper.sandbox.wallets import TestWallets

_TEXT_LENGTH: Final = 2_000
_PAYMENT_REQUIRED: Final = 402


@dataclass(frozen=True, slots=True)
class TestWalletPlay:
    """The test owner logs in, and the test buyer pays."""

    wallets: TestWallets

    @property
    def owner(self) -> str:
        """The test owner's wallet."""
        return checksum_address(self.wallets.owner.address)

    def sign(self, message: str) -> str:
        """Return the test owner's signature of a login."""
        return self.wallets.owner.key.sign_text(message)

    async def pay(self, url: str, method: str) -> Played:
        """Let the test buyer pay for one call of a PayGate. Raises: ApiError."""
        try:
            async with Buyer(self.wallets.buyer) as buyer:
                unpaid = await buyer.ask(method, url)
                if unpaid.status != _PAYMENT_REQUIRED:
                    return Played(unpaid.status, _shown(unpaid.body), "")
                paid = await buyer.ask(method, url, headers=buyer.take(unpaid))
        except (aiohttp.ClientError, TimeoutError, ValueError, IndexError) as error:
            message = "the test buyer got no answer; look at the payments before you try again"
            raise ApiError(Code.UNAVAILABLE, message) from error
        return Played(paid.status, _shown(paid.body), (paid.receipt or {}).get("transaction", ""))


def _shown(body: bytes) -> str:
    return body.decode("utf-8", "replace")[:_TEXT_LENGTH]
