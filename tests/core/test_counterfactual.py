"""ERC-6492 signatures and the calls that settle them: what is written reads back, and nothing else reads as one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.payments import AUTHORIZATION, BASE_SEPOLIA, PAYER_KEY
from tollkeeper.core.evm.batches import (
    MULTICALL_ADDRESS,
    InnerCall,
    decode_aggregate,
    decode_results,
    encode_aggregate,
)
from tollkeeper.core.evm.counterfactual import (
    WalletDeployment,
    acceptance_answer,
    acceptance_question,
    is_wrapped,
    read_settling_call,
    settling_call,
    unwrap,
    wrap,
)
from tollkeeper.core.evm.encoding import (
    is_counterfactual_signature,
    keccak256,
    sign_digest,
    transfer_calldata,
    wallet_signature_calldata,
)

ASSET = BASE_SEPOLIA.address
FACTORY = "0x" + "fa" * 20
SIGNATURE = sign_digest(keccak256(b"anything"), PAYER_KEY)
WRAPPED = wrap(WalletDeployment(FACTORY, b"deploy it", SIGNATURE))
CALLS = [InnerCall(FACTORY, b"deploy it", may_fail=True), InnerCall(ASSET, b"", may_fail=False)]

addresses = st.binary(min_size=20, max_size=20).map(lambda raw: "0x" + raw.hex())


@given(
    addresses, st.binary(max_size=200), st.binary(max_size=200).filter(lambda one: not one.endswith(b"\x64\x92" * 16))
)
def test_a_wrapped_signature_reads_back_as_it_was(factory: str, call: bytes, signature: bytes) -> None:
    deployment = WalletDeployment(factory, call, signature)
    assert is_counterfactual_signature(wrap(deployment))
    assert unwrap(wrap(deployment)) == deployment


def test_a_signature_is_wrapped_as_the_standard_says() -> None:
    """The ABI's words for (address, bytes, bytes), and the mark."""
    words = [WRAPPED[start : start + 32] for start in range(0, len(WRAPPED), 32)]
    assert words[0] == bytes(12) + bytes.fromhex(FACTORY[2:])
    assert [int.from_bytes(word, "big") for word in words[1:4]] == [96, 160, 9]
    assert words[4] == b"deploy it" + bytes(23)
    assert int.from_bytes(words[5], "big") == 65
    assert WRAPPED[192:257] == SIGNATURE
    assert words[-1] == bytes.fromhex("6492" * 16)


MALFORMED = {
    "the mark alone": WRAPPED[-32:],
    "a byte more": WRAPPED[:-32] + b"\0" + WRAPPED[-32:],
    "a byte less": WRAPPED[:-33] + WRAPPED[-32:],
    "an address with more bytes": b"\1" + WRAPPED[1:],
    "offsets in another order": WRAPPED[:32] + WRAPPED[64:96] + WRAPPED[32:64] + WRAPPED[96:],
    "an endless length": WRAPPED[:96] + b"\xff" * 32 + WRAPPED[128:],
    "padding that is not zero": WRAPPED[:159] + b"\1" + WRAPPED[160:],
    "wrapped twice": wrap(WalletDeployment(FACTORY, b"", WRAPPED)),
}


def test_a_wrapped_signature_is_told_from_every_other() -> None:
    assert is_wrapped(WRAPPED)
    assert not any(map(is_wrapped, [SIGNATURE, b"", *MALFORMED.values()]))


@pytest.mark.parametrize("case", MALFORMED)
def test_other_bytes_are_no_wrapped_signature(case: str) -> None:
    assert is_counterfactual_signature(MALFORMED[case])
    with pytest.raises(ValueError, match="ERC-6492"):
        unwrap(MALFORMED[case])
    with pytest.raises(ValueError, match="ERC-6492"):
        settling_call(ASSET, AUTHORIZATION, MALFORMED[case])


def test_a_deployed_payer_is_settled_by_the_tokens_own_call() -> None:
    call = settling_call(ASSET, AUTHORIZATION, SIGNATURE)
    assert (call.to, call.data, call.deploys) == (ASSET, transfer_calldata(AUTHORIZATION, SIGNATURE), False)


def test_a_wallet_is_deployed_and_its_transfer_made_in_one_call_or_neither() -> None:
    call = settling_call(ASSET, AUTHORIZATION, WRAPPED)
    assert (call.to, call.deploys) == (MULTICALL_ADDRESS, True)
    transfer = transfer_calldata(AUTHORIZATION, SIGNATURE)
    deploy, settle = decode_aggregate(call.data)
    assert deploy == InnerCall(FACTORY, b"deploy it", may_fail=True)
    assert settle == InnerCall(ASSET, transfer, may_fail=False)
    assert read_settling_call(call.data) == (FACTORY, ASSET, transfer)


@pytest.mark.parametrize(
    "calls",
    [
        [],
        CALLS[:1],
        CALLS[1:],
        CALLS[::-1],
        [*CALLS, CALLS[0]],
        [*CALLS, CALLS[1]],
        [replace(CALLS[0], may_fail=False), CALLS[1]],
        [CALLS[0], replace(CALLS[1], may_fail=True)],
    ],
)
def test_other_calls_are_no_deployment_and_a_transfer(calls: list[InnerCall]) -> None:
    with pytest.raises(ValueError, match="no deployment"):
        read_settling_call(encode_aggregate(calls))


@given(st.lists(st.builds(InnerCall, addresses, st.binary(max_size=100), st.booleans()), max_size=5), st.data())
def test_calls_read_back_as_they_were_and_no_other_bytes_do(calls: list[InnerCall], data: st.DataObject) -> None:
    written = encode_aggregate(calls)
    assert decode_aggregate(written) == calls
    place = data.draw(st.integers(0, len(written) - 1))
    changed = written[:place] + bytes([written[place] ^ data.draw(st.integers(1, 255))]) + written[place + 1 :]
    for wrong in (changed, written + b"\0", written[:-1]):
        try:
            assert encode_aggregate(decode_aggregate(wrong)) == wrong
        except ValueError:
            continue


def answer(*results: tuple[int, bytes]) -> bytes:
    """What Multicall3 returns."""
    bodies = []
    for passed, returned in results:
        padded = returned + bytes(-len(returned) % 32)
        bodies.append(passed.to_bytes(32, "big") + word(64) + word(len(returned)) + padded)
    offsets, offset = [], 32 * len(results)
    for body in bodies:
        offsets.append(word(offset))
        offset += len(body)
    return word(32) + word(len(results)) + b"".join((*offsets, *bodies))


def word(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_the_wallet_is_asked_once_it_is_deployed() -> None:
    digest, payer = bytes(range(32)), AUTHORIZATION.payer
    deploy, ask = decode_aggregate(acceptance_question(payer, digest, WRAPPED))
    assert (deploy.to, deploy.data) == (FACTORY, b"deploy it")
    assert (ask.to, ask.data) == (payer, wallet_signature_calldata(digest, SIGNATURE))
    assert acceptance_answer(answer((1, b"wallet"), (1, b"yes"))) == b"yes"
    assert acceptance_answer(answer((0, b""), (1, b"yes"))) == b"yes"
    assert acceptance_answer(answer((1, b""), (0, b"yes"))) == b""


@pytest.mark.parametrize(
    "returned",
    [
        b"",
        bytes(64),
        answer((1, b"yes")),
        answer((1, b""), (1, b"yes"), (1, b"")),
        answer((1, b""), (2, b"yes")),
        answer((1, b""), (1, b"yes"))[:-32],
        word(32) + word(2),
        word(32) + word(2) + b"\xff" * 64,
    ],
)
def test_other_bytes_are_no_answer(returned: bytes) -> None:
    with pytest.raises(ValueError, match="no results"):
        acceptance_answer(returned)


def test_an_answer_names_no_more_results_than_it_has_room_for() -> None:
    with pytest.raises(ValueError, match="no results"):
        decode_results(word(32) + word(10**9), 10**9)
    with pytest.raises(ValueError, match="no calls"):
        decode_aggregate(encode_aggregate([])[:36] + word(2**255))
