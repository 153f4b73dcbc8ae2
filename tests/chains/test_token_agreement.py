"""The sandbox's token on the sandbox's chain does what Circle's FiatTokenV2_2 does on anvil."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from tests.chains.abi import encode_call
from tests.chains.rpc_client import RpcFailure
from tollkeeper.core.evm.encoding import (
    AUTHORIZATION_CANCELED_TOPIC,
    AUTHORIZATION_USED_TOPIC,
    SECP256K1_ORDER,
    TRANSFER_TOPIC,
    ZERO_ADDRESS,
    decode_string,
    selector,
    transfer_calldata,
)
from tollkeeper.sandbox.evm.node import BUYER_BALANCE_MICRO, USDC_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chains.chain_under_test import ChainUnderTest
    from tollkeeper.core.evm.encoding import Authorization

_TRANSFER_BYTES: Final = "transferWithAuthorization(address,address,uint256,uint256,uint256,bytes32,bytes)"
_RECEIVE_BYTES: Final = "receiveWithAuthorization(address,address,uint256,uint256,uint256,bytes32,bytes)"
_USED: Final = "FiatTokenV2: authorization is used or canceled"
_INVALID: Final = "FiatTokenV2: invalid signature"


def _bytes_calldata(authorization: Authorization, signature: bytes) -> bytes:
    """The overload that takes the signature as bytes, whatever its length."""
    nonce = bytes.fromhex(authorization.nonce[2:])
    return encode_call(
        _TRANSFER_BYTES,
        authorization.payer,
        authorization.pay_to,
        authorization.value,
        authorization.valid_after,
        authorization.valid_before,
        nonce,
        signature,
    )


def _topic(address: str) -> str:
    return "0x" + "0" * 24 + address[2:]


def _assert_refused(chain: ChainUnderTest, data: bytes, reason: str) -> None:
    """Simulated: the revert with its reason, as nodes shape it. Mined: status 0, no event, and the gas is paid."""
    with pytest.raises(RpcFailure) as refusal:
        chain.simulate(data)
    assert refusal.value.code == 3
    assert refusal.value.message == f"execution reverted: {reason}"
    data_of_refusal = refusal.value.data or ""
    assert data_of_refusal.startswith("0x08c379a0")
    assert decode_string(bytes.fromhex(data_of_refusal[10:])) == reason
    receipt = chain.relay(data)
    assert receipt["status"] == "0x0"
    assert receipt["logs"] == []
    assert 21_000 < int(receipt["gasUsed"], 16) < 300_000


def test_token_tells_the_domain_it_checks(chain: ChainUnderTest) -> None:
    assert decode_string(chain.simulate(encode_call("name()"))) == chain.token_name
    assert decode_string(chain.simulate(encode_call("version()"))) == "2"
    assert decode_string(chain.simulate(encode_call("symbol()"))) == "USDC"
    assert int.from_bytes(chain.simulate(encode_call("decimals()")), "big") == 6
    assert chain.simulate(encode_call("DOMAIN_SEPARATOR()")) == chain.separator


@pytest.mark.parametrize("encode", [transfer_calldata, _bytes_calldata], ids=["vrs", "bytes"])
def test_authorization_moves_the_value_once(
    chain: ChainUnderTest, encode: Callable[[Authorization, bytes], bytes]
) -> None:
    authorization = chain.authorization()
    data = encode(authorization, chain.sign(authorization))
    assert chain.simulate(data) == b""
    receipt = chain.relay(data)

    assert receipt["status"] == "0x1"
    payer, pay_to = chain.wallets.buyer.address, chain.wallets.owner.address
    assert chain.balance(payer) == BUYER_BALANCE_MICRO - 10_000
    assert chain.balance(pay_to) == 10_000
    assert chain.is_used(payer, authorization.nonce)
    _assert_refused(chain, data, _USED)
    assert chain.balance(pay_to) == 10_000


def test_authorization_emits_used_then_transfer(chain: ChainUnderTest) -> None:
    authorization = chain.authorization()
    receipt = chain.relay(transfer_calldata(authorization, chain.sign(authorization)))

    used, transfer = receipt["logs"]
    payer, pay_to = chain.wallets.buyer.address, chain.wallets.owner.address
    assert used["address"].lower() == transfer["address"].lower() == USDC_ADDRESS
    assert used["topics"] == [AUTHORIZATION_USED_TOPIC, _topic(payer), authorization.nonce]
    assert used["data"] == "0x"
    assert transfer["topics"] == [TRANSFER_TOPIC, _topic(payer), _topic(pay_to)]
    assert int(transfer["data"], 16) == 10_000
    assert len(transfer["data"]) == 66
    for position, log in enumerate((used, transfer)):
        assert log["logIndex"] == hex(position)
        assert log["transactionHash"] == receipt["transactionHash"]
        assert log["blockHash"] == receipt["blockHash"]
        assert log["blockNumber"] == receipt["blockNumber"]
        assert log["removed"] is False


def test_expired_authorization_is_refused(chain: ChainUnderTest) -> None:
    authorization = chain.authorization(valid_before=chain.now() - 10)
    data = transfer_calldata(authorization, chain.sign(authorization))
    _assert_refused(chain, data, "FiatTokenV2: authorization is expired")


def test_authorization_before_its_time_is_refused(chain: ChainUnderTest) -> None:
    authorization = chain.authorization(valid_after=chain.now() + 3000)
    data = transfer_calldata(authorization, chain.sign(authorization))
    _assert_refused(chain, data, "FiatTokenV2: authorization is not yet valid")


def test_bounds_of_the_validity_are_outside_it(chain: ChainUnderTest) -> None:
    at = chain.now() + 1000
    for fields, reason in (
        ({"valid_after": at}, "FiatTokenV2: authorization is not yet valid"),
        ({"valid_before": at}, "FiatTokenV2: authorization is expired"),
    ):
        authorization = chain.authorization(**fields)
        data = transfer_calldata(authorization, chain.sign(authorization))
        snapshot = chain.rpc.call("evm_snapshot")
        chain.rpc.call("evm_setNextBlockTimestamp", at)
        receipt = chain.relay(data)
        assert receipt["status"] == "0x0", reason
        chain.rpc.call("evm_revert", snapshot)


def test_signature_of_another_is_refused(chain: ChainUnderTest) -> None:
    authorization = chain.authorization()
    signature = chain.sign(authorization, signer=chain.wallets.second_buyer)
    _assert_refused(chain, transfer_calldata(authorization, signature), _INVALID)


def test_signature_under_another_name_is_refused(chain: ChainUnderTest) -> None:
    authorization = chain.authorization()
    elsewhere = replace(chain, token_name=chain.token_name + "!")
    _assert_refused(chain, transfer_calldata(authorization, elsewhere.sign(authorization)), _INVALID)


def test_changed_value_is_refused(chain: ChainUnderTest) -> None:
    authorization = chain.authorization()
    signature = chain.sign(authorization)
    _assert_refused(chain, transfer_calldata(replace(authorization, value=10_001), signature), _INVALID)


def test_malleated_signature_is_refused(chain: ChainUnderTest) -> None:
    authorization = chain.authorization()
    signature = chain.sign(authorization)
    high_s = SECP256K1_ORDER - int.from_bytes(signature[32:64], "big")
    malleated = signature[:32] + high_s.to_bytes(32, "big") + bytes([55 - signature[64]])
    _assert_refused(chain, transfer_calldata(authorization, malleated), "ECRecover: invalid signature 's' value")


def test_parity_in_place_of_v_is_refused(chain: ChainUnderTest) -> None:
    authorization = chain.authorization()
    signature = chain.sign(authorization)
    zero_based = signature[:64] + bytes([signature[64] - 27])
    _assert_refused(chain, transfer_calldata(authorization, zero_based), "ECRecover: invalid signature 'v' value")


def test_signature_that_is_no_point_is_refused(chain: ChainUnderTest) -> None:
    authorization = chain.authorization()
    nonsense = bytes(31) + b"\x05" + bytes(31) + b"\x01" + b"\x1b"  # r = 5 is no x coordinate of the curve
    _assert_refused(chain, transfer_calldata(authorization, nonsense), "ECRecover: invalid signature")


@pytest.mark.parametrize("length", [0, 64, 66, 96])
def test_signature_of_another_length_is_refused(chain: ChainUnderTest, length: int) -> None:
    authorization = chain.authorization()
    signature = chain.sign(authorization).ljust(96, b"\0")[:length]
    _assert_refused(chain, _bytes_calldata(authorization, signature), "ECRecover: invalid signature length")


def test_more_than_the_balance_is_refused_and_leaves_the_nonce_unused(chain: ChainUnderTest) -> None:
    authorization = chain.authorization(value=BUYER_BALANCE_MICRO + 1)
    data = transfer_calldata(authorization, chain.sign(authorization))
    _assert_refused(chain, data, "ERC20: transfer amount exceeds balance")
    assert not chain.is_used(authorization.payer, authorization.nonce)


def test_whole_balance_and_nothing_can_be_paid(chain: ChainUnderTest) -> None:
    for value in (0, BUYER_BALANCE_MICRO):
        authorization = chain.authorization(value=value)
        assert chain.relay(transfer_calldata(authorization, chain.sign(authorization)))["status"] == "0x1"
    assert chain.balance(chain.wallets.buyer.address) == 0


def test_payment_to_nobody_is_refused(chain: ChainUnderTest) -> None:
    authorization = chain.authorization(pay_to=ZERO_ADDRESS)
    data = transfer_calldata(authorization, chain.sign(authorization))
    _assert_refused(chain, data, "ERC20: transfer to the zero address")


def test_payment_to_the_token_itself_is_refused(chain: ChainUnderTest) -> None:
    authorization = chain.authorization(pay_to=USDC_ADDRESS)
    data = transfer_calldata(authorization, chain.sign(authorization))
    _assert_refused(chain, data, "Blacklistable: account is blacklisted")


def test_cancelled_authorization_is_refused(chain: ChainUnderTest) -> None:
    authorization = chain.authorization()
    buyer = chain.wallets.buyer
    nonce = bytes.fromhex(authorization.nonce[2:])
    signature = chain.sign_cancellation(buyer, authorization.nonce)
    cancel = encode_call("cancelAuthorization(address,bytes32,bytes)", buyer.address, nonce, signature)
    receipt = chain.relay(cancel)

    assert receipt["status"] == "0x1"
    (canceled,) = receipt["logs"]
    assert canceled["topics"] == [AUTHORIZATION_CANCELED_TOPIC, _topic(buyer.address), authorization.nonce]
    assert chain.is_used(buyer.address, authorization.nonce)
    _assert_refused(chain, transfer_calldata(authorization, chain.sign(authorization)), _USED)
    _assert_refused(chain, cancel, _USED)


def test_both_cancellations_need_the_payers_signature(chain: ChainUnderTest) -> None:
    buyer = chain.wallets.buyer
    nonce = chain.authorization().nonce
    word = bytes.fromhex(nonce[2:])
    stranger = chain.sign_cancellation(chain.wallets.second_buyer, nonce)
    by_bytes = encode_call("cancelAuthorization(address,bytes32,bytes)", buyer.address, word, stranger)
    _assert_refused(chain, by_bytes, _INVALID)

    own = chain.sign_cancellation(buyer, nonce)
    signature = "cancelAuthorization(address,bytes32,uint8,bytes32,bytes32)"
    by_parts = encode_call(signature, buyer.address, word, own[64], own[:32], own[32:64])
    assert chain.relay(by_parts)["status"] == "0x1"
    assert chain.is_used(buyer.address, nonce)


def test_contract_wallet_pays_by_its_owners_signature(chain: ChainUnderTest) -> None:
    smart_wallet = chain.plant_smart_wallet(chain.wallets.buyer.address)
    chain.mint(smart_wallet, 50_000)
    authorization = chain.authorization(payer=smart_wallet)
    stranger = chain.sign(authorization, signer=chain.wallets.second_buyer)
    _assert_refused(chain, transfer_calldata(authorization, stranger), _INVALID)

    signature = chain.sign(authorization)
    for longer in (signature, signature + bytes(31)):  # the wallet says how long its signatures are
        authorization = chain.authorization(payer=smart_wallet)
        signed = chain.sign(authorization) + longer[65:]
        assert chain.relay(transfer_calldata(authorization, signed))["status"] == "0x1"
    assert chain.balance(smart_wallet) == 30_000


def test_account_with_code_is_not_recovered(chain: ChainUnderTest) -> None:
    buyer = chain.wallets.buyer.address
    authorization = chain.authorization()
    data = transfer_calldata(authorization, chain.sign(authorization))
    assert chain.simulate(data) == b""
    chain.rpc.call("anvil_setCode", buyer, "0x00")
    with pytest.raises(RpcFailure, match=_INVALID):
        chain.simulate(data)


def test_only_the_payee_receives(chain: ChainUnderTest) -> None:
    authorization = chain.authorization()
    data = _bytes_calldata(authorization, chain.sign(authorization))
    receive = selector(_RECEIVE_BYTES.encode()) + data[4:]
    _assert_refused(chain, receive, "FiatTokenV2: caller must be the payee")


def test_plain_transfers_and_allowances(chain: ChainUnderTest) -> None:
    relayer, owner, second = chain.wallets.relayer, chain.wallets.owner.address, chain.wallets.second_buyer.address
    chain.mint(relayer.address, 1_000)
    assert chain.relay(encode_call("transfer(address,uint256)", owner, 400))["status"] == "0x1"
    _assert_refused(
        chain, encode_call("transfer(address,uint256)", owner, 601), "ERC20: transfer amount exceeds balance"
    )
    pull = encode_call("transferFrom(address,address,uint256)", second, owner, 10)
    _assert_refused(chain, pull, "ERC20: transfer amount exceeds allowance")
    assert chain.relay(encode_call("approve(address,uint256)", relayer.address, 600))["status"] == "0x1"
    pull = encode_call("transferFrom(address,address,uint256)", relayer.address, owner, 600)
    assert chain.relay(pull)["status"] == "0x1"
    assert chain.balance(owner) == 1_000
    _assert_refused(
        chain, encode_call("approve(address,uint256)", ZERO_ADDRESS, 1), "ERC20: approve to the zero address"
    )


def test_mint_refuses_what_fiat_token_refuses(chain: ChainUnderTest) -> None:
    faucet = chain.wallets.faucet
    for holder, amount, reason in (
        (ZERO_ADDRESS, 1, "FiatToken: mint to the zero address"),
        (faucet.address, 0, "FiatToken: mint amount not greater than 0"),
    ):
        data = "0x" + encode_call("mint(address,uint256)", holder, amount).hex()
        with pytest.raises(RpcFailure, match=reason):
            chain.rpc.call("eth_call", {"from": faucet.address, "to": USDC_ADDRESS, "data": data}, "latest")


def test_a_token_is_named_once(chain: ChainUnderTest) -> None:
    if chain.token_name == "USDC":
        data = encode_call("initializeV2(string)", "Other")
        with pytest.raises(RpcFailure):
            chain.simulate(data)
        return
    _assert_refused(chain, encode_call("initialize(string)", "Other"), "FiatToken: contract is already initialized")
