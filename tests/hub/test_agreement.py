"""verify says of an authorization what the token would do with it, whoever signed it and however (A-21, A-22).

Keys, contract wallets, delegated accounts, and wallets that their signature would deploy (ERC-6492). The other opinion
is the chain's own, asked by calls that are written here and not by the program: `eth_call` of the token, or of
Multicall3 with a factory and the token. Beside it stands what the operator decided: which factories are called at all.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio
from eth_abi.abi import encode

from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.counterfactual import FACTORY, OTHER_FACTORY, FutureWallet, plant_factory
from tests.chains.rpc_client import RpcFailure
from tests.hub.hub_under_test import HubUnderTest, TestPayment, run_hub, settle_body
from tests.hub.test_contract_wallets import ALWAYS_YES, GAS_LIMIT, WALLET, in_thread, plant
from tollkeeper.core.evm.batches import MULTICALL_ADDRESS
from tollkeeper.core.evm.encoding import (
    COUNTERFACTUAL_MARK,
    SECP256K1_ORDER,
    Authorization,
    authorization_digest,
    selector,
    sign_digest,
    transfer_calldata,
)
from tollkeeper.sandbox.evm.node import USDC_ADDRESS

DEPLOY_GAS_LIMIT: Final = 500_000
AGGREGATE: Final = selector(b"aggregate3((address,bool,bytes)[])")


@dataclass(frozen=True)
class Asked:
    """A payment, and what the chain is asked about it; None where the operator's word decides: it is refused."""

    kind: str
    payment: TestPayment
    call: dict[str, str] | None


class Generated:
    """Random authorizations, most of them with something wrong."""

    def __init__(self, chain: ChainUnderTest, seed: int) -> None:
        self.chain = chain
        self.random = random.Random(seed)
        wallets = chain.wallets
        self.keys = {
            wallets.buyer.address: wallets.buyer.private_key,
            wallets.second_buyer.address: wallets.second_buyer.private_key,
        }
        self.smart_wallet = chain.plant_smart_wallet(wallets.buyer.address)
        plant(chain, ALWAYS_YES)
        chain.rpc.call("anvil_setCode", wallets.second_buyer.address, "0xef0100" + self.smart_wallet[2:])
        self.future = [FutureWallet(chain, salt=salt) for salt in range(5)]
        self.future[3].deploy()
        self.future_at = {wallet.address: wallet for wallet in self.future}
        funded = [wallets.second_buyer.address, self.smart_wallet, *list(self.future_at)[:4]]
        for payer in funded:
            chain.mint(payer, 1_000_000)
        self.payers = [wallets.buyer.address] * 5 + [
            wallets.second_buyer.address,
            self.smart_wallet,
            WALLET,
            wallets.relayer.address,
            "0x" + "00" * 20,
            "0x" + "00" * 19 + "04",
            *self.future_at,
        ]
        self.has_code = {payer: chain.rpc.call("eth_getCode", payer, "latest") != "0x" for payer in set(self.payers)}
        self.balances = {payer: max(1, chain.balance(payer)) for payer in set(self.payers)}  # a price is above zero
        used = chain.authorization()
        assert chain.relay(transfer_calldata(used, chain.sign(used)))["status"] == "0x1"
        self.used_nonce = used.nonce

    def signature(self, authorization: Authorization) -> bytes:
        """Mostly a good one, else one of the ways to be wrong."""
        draw = self.random
        key = self.keys.get(authorization.payer, self.chain.wallets.buyer.private_key)
        good = sign_digest(authorization_digest(self.chain.separator, authorization), key)
        s = SECP256K1_ORDER - int.from_bytes(good[32:64], "big")
        wrong = [
            good[:64] + bytes([good[64] - 27]),
            good[:64] + bytes([55 - good[64]]),
            good[:32] + s.to_bytes(32, "big") + bytes([55 - good[64]]),
            good[:64],
            good + b"\0",
            good + bytes(31),
            bytes(65),
            draw.randbytes(65),
            draw.randbytes(draw.randrange(1, 200)),
            sign_digest(authorization_digest(bytes(32), authorization), key),
            sign_digest(authorization_digest(self.chain.separator, replace(authorization, value=1)), key),
        ]
        return good if draw.random() < 0.7 else draw.choice(wrong)

    def authorization(self) -> Authorization:
        """Mostly good terms."""
        draw, chain = self.random, self.chain
        payer = draw.choice(self.payers)
        now = chain.now()
        authorization = chain.authorization(
            payer=payer,
            pay_to=draw.choice([chain.wallets.owner.address] * 12 + ["0x" + "00" * 20, USDC_ADDRESS]),
            value=draw.choice([1, 10_000, 10_000, self.balances[payer], self.balances[payer] + 1, 2**256 - 1]),
            valid_after=draw.choice([0, now - 600, now - 600, now - 600, now - 600, now + 600]),
            valid_before=draw.choice([now + 3600, now + 3600, now + 3600, now + 3600, 2**256 - 1, now - 1]),
        )
        return replace(authorization, nonce=self.used_nonce) if draw.random() < 0.1 else authorization

    def ask(self) -> Asked:
        """One payment."""
        authorization, draw = self.authorization(), self.random
        signature = self.signature(authorization)
        is_wrapped = draw.random() < (0.8 if authorization.payer in self.future_at else 0.1)
        if not is_wrapped:
            kind = "contract" if self.has_code[authorization.payer] else "key"
            return self.asked(kind, authorization, signature, self.of_token(authorization, self.sent(signature)))
        kind, factory, deployment, wrapped = self.wrapped(authorization.payer, signature)
        if self.has_code[authorization.payer]:  # what is there is asked, and nothing is deployed
            call = self.of_token(authorization, signature)
        else:
            call = self.of_multicall(factory, deployment, authorization, signature)
        # Only what an allowed factory would make a wallet of is asked: a key behind a wrapper signs nothing.
        has_code = self.has_code[authorization.payer]
        is_allowed = kind == "wrapped" and (has_code or authorization.payer in self.future_at)
        is_allowed = is_allowed or (kind == "factory that is not listed" and has_code)  # the wrapper is taken off
        return self.asked(kind, authorization, wrapped, call if is_allowed else None)

    def wrapped(self, payer: str, inner: bytes) -> tuple[str, str, bytes, bytes]:
        """How it came out, the factory, its call, and the signature as ERC-6492 has it, or nearly."""
        draw = self.random
        wallet = self.future_at.get(payer, self.future[0])
        calls = [wallet.deployment()] * 6 + [
            self.future[(self.future.index(wallet) + 1) % len(self.future)].deployment(),
            wallet.deployment(USDC_ADDRESS, b"\xde\xad\xbe\xef"),
            wallet.deployment()[: draw.randrange(100)],
            b"",
            draw.randbytes(draw.randrange(1, 100)),
        ]
        deployment = draw.choice(calls)
        written = encode(["address", "bytes", "bytes"], [FACTORY, deployment, inner]) + COUNTERFACTUAL_MARK
        if draw.random() < 0.75:
            return "wrapped", FACTORY, deployment, written
        other = draw.choice([OTHER_FACTORY, USDC_ADDRESS, MULTICALL_ADDRESS, "0x" + "00" * 20, payer])
        wrong = [
            ("factory that is not listed", encode(["address", "bytes", "bytes"], [other, deployment, inner])),
            ("wrapped twice", encode(["address", "bytes", "bytes"], [FACTORY, deployment, written])),
            ("another spelling", written[:-32] + bytes(32)),
            ("another spelling", written[:-33]),
            ("another spelling", inner),
            ("another spelling", b""),
        ]
        kind, content = draw.choice(wrong)
        return kind, FACTORY, deployment, content + COUNTERFACTUAL_MARK

    def sent(self, signature: bytes) -> bytes:
        """As the hub sends it: a key's with a `v` of 0 or 1 as 27 or 28."""
        is_short = len(signature) == 65 and signature[64] in {0, 1} and signature[:12] != bytes(12)
        return signature[:64] + bytes([signature[64] + 27]) if is_short else signature

    def asked(self, kind: str, authorization: Authorization, signature: bytes, call: dict[str, str] | None) -> Asked:
        body = settle_body(self.chain, authorization, signature)
        body["paymentRequirements"] |= {"maxAmountRequired": "1", "payTo": authorization.pay_to}
        return Asked(kind, TestPayment(authorization, body), call)

    def of_token(self, authorization: Authorization, signature: bytes) -> dict[str, str]:
        data = transfer_calldata(authorization, signature)
        return {"to": USDC_ADDRESS, "gas": hex(GAS_LIMIT), "data": "0x" + data.hex()}

    def of_multicall(
        self, factory: str, deployment: bytes, authorization: Authorization, signature: bytes
    ) -> dict[str, str]:
        calls = [(factory, True, deployment), (USDC_ADDRESS, False, transfer_calldata(authorization, signature))]
        data = AGGREGATE + encode(["(address,bool,bytes)[]"], [calls])
        return {"to": MULTICALL_ADDRESS, "gas": hex(GAS_LIMIT + DEPLOY_GAS_LIMIT), "data": "0x" + data.hex()}

    def settles(self, asked: Asked) -> bool:
        """The chain's own answer, where it may be asked."""
        if asked.call is None:
            return False
        try:
            self.chain.rpc.call("eth_call", {"from": self.chain.wallets.relayer.address, **asked.call}, "latest")
        except RpcFailure:
            return False
        return True


@pytest_asyncio.fixture
async def hub_of_factories(tmp_path: Path, anvil_fiat_token: ChainUnderTest) -> AsyncIterator[HubUnderTest]:
    """With a factory that is listed, and one that is not."""
    for factory in (FACTORY, OTHER_FACTORY):
        await in_thread(plant_factory, anvil_fiat_token, factory)
    async with run_hub(tmp_path, anvil_fiat_token, config={"wallet_factories": (FACTORY,)}) as running:
        yield running


async def assert_agreement(hub: HubUnderTest, chain: ChainUnderTest, count: int, seed: int) -> None:
    generated = await in_thread(Generated, chain, seed)
    said: Counter[tuple[str, bool]] = Counter()
    for number in range(count):
        asked = await in_thread(generated.ask)
        answer, settles = await asyncio.gather(
            hub.post("/verify", asked.payment.body), in_thread(generated.settles, asked)
        )
        assert answer.status == 200
        assert answer.body["isValid"] is settles, (seed, number, asked, answer.body)
        said[asked.kind, settles] += 1
    for kind in ("key", "contract", "wrapped"):  # both answers were really asked for
        assert min(said[kind, True], said[kind, False]) > count // 100, said


async def test_verify_says_of_generated_authorizations_what_the_token_says(
    hub_of_factories: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    await assert_agreement(hub_of_factories, anvil_fiat_token, 500, seed=1)


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_verify_says_of_fifty_thousand_authorizations_what_the_token_says(
    hub_of_factories: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    await assert_agreement(hub_of_factories, anvil_fiat_token, 50_000, seed=2)
