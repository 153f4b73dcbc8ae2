"""What tests of batches need on a chain: the contracts that carry them, payers, and a payer who burns gas."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from tests.chains.anvil import anvil_binary, wait_for_receipt
from tollkeeper.chains.evm.batcher import batcher_address, batcher_artifact
from tollkeeper.core.evm.batches import MULTICALL_ADDRESS, MULTICALL_CODE_HASH, SignedTransfer, Via
from tollkeeper.core.evm.encoding import keccak256, rlp_encode, sign_digest
from tollkeeper.sandbox.evm.chain import BASE_SEPOLIA_CHAIN_ID
from tollkeeper.sandbox.wallets import TestWallet, derive_wallet

if TYPE_CHECKING:
    from tests.chains.chain_under_test import ChainUnderTest
    from tollkeeper.core.evm.encoding import RlpItem

ADDRESSES: Final = {Via.BATCHER: batcher_address(), Via.MULTICALL: MULTICALL_ADDRESS}
BURNER: Final = "0x" + "b0" * 20
_BURNER_CODE: Final = "0x5b600056"  # a loop without end
_MULTICALL_CODE_START: Final = bytes.fromhex("6080604052600436106100f3")
_MULTICALL_SIZE_BYTES: Final = 3808


def plant(chain: ChainUnderTest, via: Via) -> None:
    """Puts the contract where it belongs. Any node with anvil's methods takes it."""
    code = batcher_artifact().runtime if via is Via.BATCHER else multicall_code()
    chain.rpc.call("anvil_setCode", ADDRESSES[via], "0x" + code.hex())
    chain.rpc.call("anvil_setCode", BURNER, _BURNER_CODE)


@cache
def multicall_code() -> bytes:
    """Multicall3 as it stands on the real networks: anvil brings it along, and its hash says that it is that."""
    binary = anvil_binary().read_bytes()
    start = binary.find(_MULTICALL_CODE_START)
    code = binary[start : start + _MULTICALL_SIZE_BYTES]
    assert "0x" + keccak256(code).hex() == MULTICALL_CODE_HASH
    return code


def payers(chain: ChainUnderTest, count: int, *, seed: str = "batch") -> list[TestWallet]:
    """Wallets with a USDC each."""
    wallets = [derive_wallet(f"payer {index}", seed=seed) for index in range(count)]
    for wallet in wallets:
        chain.mint(wallet.address, 1_000_000)
    return wallets


def signed(chain: ChainUnderTest, payer: TestWallet, **changes: object) -> SignedTransfer:
    """A good payment of that payer; `changes` are fields of the authorization."""
    authorization = chain.authorization(payer=payer.address, **changes)
    return SignedTransfer(authorization, chain.sign(authorization, signer=payer))


def delegate(chain: ChainUnderTest, payer: TestWallet, to: str = BURNER) -> None:
    """The payer sets an EIP-7702 delegation, as anybody may at any moment; the faucet sends it."""
    wait_for_receipt(chain.rpc, chain.rpc.call("eth_sendRawTransaction", delegate_raw(chain, payer, to)))
    assert chain.rpc.call("eth_getCode", payer.address, "latest") == "0xef0100" + to[2:]


def delegate_raw(chain: ChainUnderTest, payer: TestWallet, to: str, *, tip_wei: int = 1_000_000) -> str:
    """The transaction that does so."""
    chain_id = BASE_SEPOLIA_CHAIN_ID
    grant: list[RlpItem] = [chain_id, bytes.fromhex(to[2:]), chain.nonce(payer)]
    fields: list[RlpItem] = [
        *(chain_id, chain.nonce(chain.wallets.faucet), tip_wei, 10_000_000_000, 200_000),
        *(bytes.fromhex(payer.address[2:]), 0, b"", []),
        [grant + _signature(sign_digest(keccak256(b"\x05" + rlp_encode(grant)), payer.private_key))],
    ]
    signature = sign_digest(keccak256(b"\x04" + rlp_encode(fields)), chain.wallets.faucet.private_key)
    raw = b"\x04" + rlp_encode(fields + _signature(signature))
    return "0x" + raw.hex()


def _signature(signature: bytes) -> list[RlpItem]:
    return [signature[64] - 27, int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")]
