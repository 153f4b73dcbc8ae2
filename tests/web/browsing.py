"""A real browser with wallets in it, whose keys and whose owner's moods a test holds."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from eth_account import Account
from eth_account.messages import encode_defunct, encode_typed_data
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.core.solana import ed25519
from tollkeeper.sandbox.wallets import SolanaWallet, TestWallet

_EVM_WALLET: Final = Path(__file__).with_name("wallets.js").read_text()
_SOLANA_WALLET: Final = Path(__file__).with_name("solana_wallet.js").read_text()
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
REJECTED: Final = (4001, "User rejected the request.")


class WalletError(Exception):
    """What a wallet refuses a page with."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


async def at_once(_method: str) -> None:
    """Its owner agrees to everything."""


@dataclass(slots=True)
class EvmWallet:
    """What answers the page's requests. `before` may refuse one, or wait; `asked` are the methods so far."""

    wallet: TestWallet
    chain_id: int = 84532
    known_chains: set[int] = field(default_factory=lambda: {1, 84532, 8453})
    before: Callable[[str], Awaitable[None]] = at_once
    asked: list[str] = field(default_factory=list)
    is_stubborn: bool = False  # says that it switched, and did not

    async def answer(self, request: str) -> str:
        """The JSON answer to a JSON request."""
        call = json.loads(request)
        self.asked.append(call["method"])
        try:
            await self.before(call["method"])
            return json.dumps({"result": self._answer(call["method"], call["params"])})
        except WalletError as error:
            return json.dumps({"error": {"code": error.code, "message": str(error)}})

    def _answer(self, method: str, params: list[Any]) -> Any:
        if method == "eth_requestAccounts":
            return [checksum_address(self.wallet.address)]
        if method == "eth_chainId":
            return hex(self.chain_id)
        if method == "wallet_switchEthereumChain":
            wanted = int(params[0]["chainId"], 16)
            if wanted not in self.known_chains:
                raise WalletError(4902, "Unrecognized chain ID")
            self.chain_id = self.chain_id if self.is_stubborn else wanted
            return None
        if method == "wallet_addEthereumChain":
            self.chain_id = int(params[0]["chainId"], 16)
            self.known_chains.add(self.chain_id)
            return None
        if method == "eth_signTypedData_v4":
            assert json.loads(params[1])["domain"]["chainId"] == self.chain_id
            signable = encode_typed_data(full_message=json.loads(params[1]))
        elif method == "personal_sign":
            signable = encode_defunct(hexstr=params[0])
        else:
            raise WalletError(4200, "not supported")
        return "0x" + Account.sign_message(signable, self.wallet.private_key).signature.hex().removeprefix("0x")


@dataclass(slots=True)
class SolanaSigner:
    """The same on Solana: a wallet of the Wallet Standard."""

    wallet: SolanaWallet
    chains: tuple[str, ...] = ("solana:devnet",)
    before: Callable[[str], Awaitable[None]] = at_once
    asked: list[str] = field(default_factory=list)

    async def answer(self, request: str) -> str:
        """The JSON answer to a JSON request."""
        call = json.loads(request)
        self.asked.append(call["method"])
        try:
            await self.before(call["method"])
        except WalletError as error:
            return json.dumps({"error": {"code": error.code, "message": str(error)}})
        return json.dumps({"result": self._answer(call["method"], base64.b64decode(call["given"]))})

    def _answer(self, method: str, given: bytes) -> str:
        if method == "connect":
            return self.wallet.address
        if method == "signMessage":
            return base64.b64encode(ed25519.sign(self.wallet.seed, given)).decode()
        signatures, message = given[1:129], given[129:]
        assert (given[0], signatures) == (2, bytes(128))
        return base64.b64encode(given[:65] + ed25519.sign(self.wallet.seed, message) + message).decode()


def chromium() -> str:
    """The machine's browser. Raises: AssertionError without one, because these tests are then not made."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    assert found, "there is no Chromium: apt-get install chromium"
    return found


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """A browser of its own process, which is ended with the block."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@dataclass(slots=True)
class Window:
    """One profile of the browser, what went wrong in its pages, and the bytes that came over its wire."""

    context: BrowserContext
    faults: list[str] = field(default_factory=list)

    async def page(self) -> Page:
        """A new page, every fault of which is noted."""
        page = await self.context.new_page()
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda said: self.faults.append(said.text) if said.type == "error" else None)
        return page


@asynccontextmanager
async def window(
    browser: Browser,
    wallet: EvmWallet | None = None,
    solana: SolanaSigner | None = None,
    *,
    announces: bool = True,
    **options: Any,
) -> AsyncIterator[Window]:
    """A profile of the browser with these wallets in it; that on EVM announces itself or is `window.ethereum`."""
    context = await browser.new_context(**options)
    if wallet is not None:
        await context.expose_function("__evm", lambda request: wallet.answer(request))  # noqa: PLW0108 - it is marked
        await context.add_init_script(_EVM_WALLET.replace("ANNOUNCES", json.dumps(announces)))
    if solana is not None:
        await context.expose_function("__solana", lambda request: solana.answer(request))  # noqa: PLW0108 - the same
        await context.add_init_script(_SOLANA_WALLET.replace("CHAINS", json.dumps(solana.chains)))
    try:
        yield Window(context)
    finally:
        await context.close()
