"""One chain as the tests use it, whichever node and token stand behind it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tests.chains.abi import encode_call
from tests.chains.anvil import wait_for_receipt
from tollkeeper.chains.evm.batcher import load_artifact
from tollkeeper.core.evm.encoding import (
    Authorization,
    Transaction,
    authorization_digest,
    domain_separator,
    keccak256,
    sign_digest,
    sign_transaction,
)
from tollkeeper.sandbox.evm.chain import BASE_SEPOLIA_CHAIN_ID
from tollkeeper.sandbox.evm.node import USDC_ADDRESS

if TYPE_CHECKING:
    from tests.chains.rpc_client import RpcClient
    from tollkeeper.sandbox.wallets import TestWallet, TestWallets

GAS: Final = 300_000
SMART_WALLET: Final = "0x5afe000000000000000000000000000000005afe"
_CANCEL_TYPEHASH: Final = keccak256(b"CancelAuthorization(address authorizer,bytes32 nonce)")


@dataclass(frozen=True, slots=True)
class ChainUnderTest:
    """`name` says which; `token_name` is the token's EIP-712 name."""

    name: str
    rpc: RpcClient
    wallets: TestWallets
    token_name: str

    @property
    def url(self) -> str:
        """The node's."""
        return self.rpc.url

    @property
    def separator(self) -> bytes:
        """The token's EIP-712 domain."""
        return domain_separator(self.token_name, "2", BASE_SEPOLIA_CHAIN_ID, USDC_ADDRESS)

    def now(self) -> int:
        """The newest block's time in seconds."""
        return int(self.rpc.call("eth_getBlockByNumber", "latest", False)["timestamp"], 16)

    def nonce(self, wallet: TestWallet) -> int:
        """The wallet's next transaction nonce, waiting ones included."""
        return int(self.rpc.call("eth_getTransactionCount", wallet.address, "pending"), 16)

    def transaction(self, wallet: TestWallet, to: str, data: bytes, **changes: int) -> tuple[str, str]:
        """A signed transaction and its hash; `changes` are fields of `Transaction`."""
        fields = {"chain_id": BASE_SEPOLIA_CHAIN_ID, "gas": GAS, "value": 0} | changes
        if "nonce" not in fields:
            fields["nonce"] = self.nonce(wallet)
        fields.setdefault("max_fee_per_gas", 5_000_000_000)
        fields.setdefault("max_priority_fee_per_gas", 1_000_000)
        raw, transaction_hash = sign_transaction(Transaction(to=to, data=data, **fields), wallet.private_key)
        return "0x" + raw.hex(), transaction_hash

    def send(self, wallet: TestWallet, to: str, data: bytes, **changes: int) -> str:
        """Send it. Returns the hash. Raises: RpcFailure."""
        raw, _ = self.transaction(wallet, to, data, **changes)
        transaction_hash: str = self.rpc.call("eth_sendRawTransaction", raw)
        return transaction_hash

    def send_and_wait(self, wallet: TestWallet, to: str, data: bytes, **changes: int) -> dict[str, Any]:
        """Send it, and wait for the receipt."""
        return wait_for_receipt(self.rpc, self.send(wallet, to, data, **changes))

    def relay(self, data: bytes) -> dict[str, Any]:
        """A call of the token, sent and paid for by the relayer; its receipt."""
        return self.send_and_wait(self.wallets.relayer, USDC_ADDRESS, data)

    def simulate(self, data: bytes, *, to: str = USDC_ADDRESS) -> bytes:
        """eth_call from the relayer. Raises: RpcFailure."""
        request = {"from": self.wallets.relayer.address, "to": to, "data": "0x" + data.hex()}
        return bytes.fromhex(self.rpc.call("eth_call", request, "latest")[2:])

    def balance(self, holder: str) -> int:
        """USDC in base units."""
        return int.from_bytes(self.simulate(encode_call("balanceOf(address)", holder)), "big")

    def is_used(self, authorizer: str, nonce: str) -> bool:
        """Whether the authorization is used or cancelled: authorizationState."""
        data = encode_call("authorizationState(address,bytes32)", authorizer, bytes.fromhex(nonce[2:]))
        return int.from_bytes(self.simulate(data), "big") == 1

    def mint(self, holder: str, amount_micro: int) -> None:
        """Give a holder USDC, from the faucet."""
        data = encode_call("mint(address,uint256)", holder, amount_micro)
        receipt = self.send_and_wait(self.wallets.faucet, USDC_ADDRESS, data)
        if receipt["status"] != "0x1":
            msg = "minting reverted"
            raise RuntimeError(msg)

    def plant_smart_wallet(self, owner: str) -> str:
        """An EIP-1271 wallet of that owner's; its address."""
        self.rpc.call("anvil_setCode", SMART_WALLET, "0x" + load_artifact("SmartTestWallet").runtime.hex())
        self.rpc.call("anvil_setStorageAt", SMART_WALLET, f"0x{0:064x}", f"0x{int(owner, 16):064x}")  # its owner
        return SMART_WALLET

    def authorization(self, **changes: Any) -> Authorization:
        """The buyer pays the owner 0.01 USDC, valid now for an hour, with a fresh nonce."""
        now = self.now()
        plain = Authorization(
            payer=self.wallets.buyer.address,
            pay_to=self.wallets.owner.address,
            value=10_000,
            valid_after=now - 600,
            valid_before=now + 3600,
            nonce="0x" + secrets.token_hex(32),
        )
        return replace(plain, **changes)

    def sign(self, authorization: Authorization, *, signer: TestWallet | None = None) -> bytes:
        """The signature, by default the buyer's."""
        digest = authorization_digest(self.separator, authorization)
        return sign_digest(digest, (signer or self.wallets.buyer).private_key)

    def sign_cancellation(self, signer: TestWallet, nonce: str) -> bytes:
        """The signature under CancelAuthorization."""
        words = bytes(12) + bytes.fromhex(signer.address[2:]) + bytes.fromhex(nonce[2:])
        digest = keccak256(b"\x19\x01" + self.separator + keccak256(_CANCEL_TYPEHASH + words))
        return sign_digest(digest, signer.private_key)
