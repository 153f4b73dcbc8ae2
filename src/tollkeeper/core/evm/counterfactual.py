"""Signatures of wallets that are not deployed yet (ERC-6492): reading them, and the one call that settles them.

Such a signature says which factory deploys the wallet, by which call, and what the wallet will accept then. The factory
is called through Multicall3 and the token right after it, in one transaction: the factory sees a caller that owns
nothing, and either the transfer is made or nothing is. Which factories are called at all is `verification`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tollkeeper.core.evm.batches import (
    MULTICALL_ADDRESS,
    InnerCall,
    decode_aggregate,
    decode_results,
    encode_aggregate,
)
from tollkeeper.core.evm.encoding import (
    COUNTERFACTUAL_MARK,
    Authorization,
    address_word,
    bytes_at,
    bytes_tail,
    is_counterfactual_signature,
    number_at,
    transfer_calldata,
    wallet_signature_calldata,
    word,
)

_WORD: Final = 32


@dataclass(frozen=True, slots=True)
class WalletDeployment:
    """Deployment of a wallet: its factory (lower-case hex), the call to it, and the wallet's own signature."""

    factory: str
    call: bytes
    signature: bytes


def wrap(deployment: WalletDeployment) -> bytes:
    """The signature as ERC-6492 writes it."""
    call, signature = bytes_tail(deployment.call), bytes_tail(deployment.signature)
    head = address_word(deployment.factory) + word(3 * _WORD) + word(3 * _WORD + len(call))
    return head + call + signature + COUNTERFACTUAL_MARK


def unwrap(signature: bytes) -> WalletDeployment:
    """Read a signature with ERC-6492's mark. Raises: ValueError for bytes that are not in its one spelling.

    A signature that is wrapped twice is refused too: nothing would check which factory the inner one names.
    """
    offset = number_at(signature, 2 * _WORD)
    found = WalletDeployment(
        "0x" + signature[12:_WORD].hex(),
        bytes_at(signature, 3 * _WORD),
        bytes_at(signature, offset),
    )
    if wrap(found) != signature or is_counterfactual_signature(found.signature):
        raise ValueError("not an ERC-6492 signature, though it ends as one")
    return found


def is_wrapped(signature: bytes) -> bool:
    """Tell a signature that ERC-6492 wraps, and that `unwrap` reads."""
    if not is_counterfactual_signature(signature):
        return False
    try:
        unwrap(signature)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class SettlingCall:
    """Call that carries an authorization out. `deploys`: it deploys the payer's wallet first."""

    to: str
    data: bytes
    deploys: bool


def settling_call(asset: str, authorization: Authorization, signature: bytes) -> SettlingCall:
    """The token's own transfer; for a wallet that is not deployed, its deployment and then that.

    That the factory fails does no harm where the wallet is there all the same, as after somebody else deployed it.
    Raises: ValueError for a signature that ends as ERC-6492's does and is none.
    """
    if not is_counterfactual_signature(signature):
        return SettlingCall(asset, transfer_calldata(authorization, signature), deploys=False)
    deployment = unwrap(signature)
    calls = [
        InnerCall(deployment.factory, deployment.call, may_fail=True),
        InnerCall(asset, transfer_calldata(authorization, deployment.signature), may_fail=False),
    ]
    return SettlingCall(MULTICALL_ADDRESS, encode_aggregate(calls), deploys=True)


def read_settling_call(data: bytes) -> tuple[str, str, bytes]:
    """Factory, asset, and what is called of the asset, in calldata that `settling_call` made for a wallet.

    Raises: ValueError for any other calls.
    """
    calls = decode_aggregate(data)
    if [call.may_fail for call in calls] != [True, False]:
        raise ValueError("these calls are no deployment and a transfer")
    deployment, transfer = calls
    return deployment.to, transfer.to, transfer.data


def acceptance_question(payer: str, digest: bytes, signature: bytes) -> bytes:
    """Calldata for Multicall3: deploys the wallet and asks it about the signature. Raises: ValueError, as `unwrap`."""
    deployment = unwrap(signature)
    return encode_aggregate(
        [
            InnerCall(deployment.factory, deployment.call, may_fail=True),
            InnerCall(payer, wallet_signature_calldata(digest, deployment.signature), may_fail=True),
        ]
    )


def acceptance_answer(returned: bytes) -> bytes:
    """Return the wallet's answer to `acceptance_question`; b"" if the wallet's call failed.

    Raises: ValueError for no answer.
    """
    _, (passed, word) = decode_results(returned, 2)
    return word if passed else b""
