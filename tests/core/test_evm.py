"""EVM bytes agree with known vectors and with eth-account, and what a chain would refuse is refused (spec 2.3)."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import Any

import coincurve
import pytest
import rlp
from eth_abi.abi import encode as abi_encode
from eth_account import Account
from eth_account.messages import encode_defunct, encode_typed_data
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.payments import AUTHORIZATION, BASE, BASE_SEPOLIA, PAYER, PAYER_KEY, signed_payload
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.evm import encoding as evm
from tollkeeper.core.evm.encoding import SECP256K1_ORDER, Authorization, RlpItem, Transaction
from tollkeeper.core.x402.verification import EvmAsset

ADDRESS = st.binary(min_size=20, max_size=20).map(lambda data: "0x" + data.hex())
WORD = st.binary(min_size=32, max_size=32)
UINT256 = st.integers(0, 2**256 - 1)
KEYS = st.integers(1, SECP256K1_ORDER - 1).map(lambda number: number.to_bytes(32, "big"))
AUTHORIZATIONS = st.builds(
    Authorization, ADDRESS, ADDRESS, UINT256, UINT256, UINT256, WORD.map(lambda data: "0x" + data.hex())
)
DIGEST = evm.keccak256(b"a digest")

CHECKSUMS = [  # EIP-55
    "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
    "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
    "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
    "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
    "0x52908400098527886E0F7030069857D2E4169EE7",
    "0x8617E340B3D01FA5F11F306F4090FD50E238070D",
    "0xde709f2102306220921060314715629080e2fb77",
    "0x27b1fdb04752bbc536007a920d24acb045561c26",
]


def typed_data(authorization: Authorization, asset: EvmAsset) -> dict[str, Any]:
    """The typed data of specification 2.3, written out."""
    fields = [("from", "address"), ("to", "address"), ("value", "uint256"), ("validAfter", "uint256")]
    fields += [("validBefore", "uint256"), ("nonce", "bytes32")]
    domain = [("name", "string"), ("version", "string"), ("chainId", "uint256"), ("verifyingContract", "address")]
    return {
        "types": {
            "EIP712Domain": [{"name": name, "type": kind} for name, kind in domain],
            "TransferWithAuthorization": [{"name": name, "type": kind} for name, kind in fields],
        },
        "primaryType": "TransferWithAuthorization",
        "domain": {
            "name": asset.name,
            "version": asset.version,
            "chainId": asset.network.chain_id,
            "verifyingContract": evm.checksum_address(asset.address),
        },
        "message": {
            "from": evm.checksum_address(authorization.payer),
            "to": evm.checksum_address(authorization.pay_to),
            "value": authorization.value,
            "validAfter": authorization.valid_after,
            "validBefore": authorization.valid_before,
            "nonce": bytes.fromhex(authorization.nonce[2:]),
        },
    }


def signature_over(digest: bytes = DIGEST, key: bytes = PAYER_KEY) -> bytes:
    return evm.sign_digest(digest, key)


# Known vectors


def test_keccak_is_ethereum_s_and_not_sha3() -> None:
    assert evm.keccak256(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
    assert evm.keccak256(b"abc").hex() == "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"


def test_the_domain_separators_are_the_deployed_tokens() -> None:
    assert BASE.separator.hex() == "02fa7265e7c5d81118673727957699e4d68f74cd74b7db77da710fe8a2c7834f"
    assert BASE_SEPOLIA.separator.hex() == "71f17a3b2ff373b803d70a5a07c046c1a2bc8e89c09ef722fcb047abe94c9818"


def test_type_hash_selectors_and_topics_are_the_tokens_own() -> None:
    assert evm.TRANSFER_TYPEHASH.hex() == "7c7c6cdb67a18743f49ec6fa9b35f50d52ed05cbed4cc592e13b44501c1a2267"
    assert evm.SELECTOR_TRANSFER.hex() == "e3ee160e"
    assert evm.SELECTOR_TRANSFER_BYTES.hex() == "cf092995"
    assert evm.SELECTOR_AUTHORIZATION_STATE.hex() == "e94a0102"
    assert evm.SELECTOR_BALANCE_OF.hex() == "70a08231"
    assert evm.SELECTOR_DOMAIN_SEPARATOR.hex() == "3644e515"
    assert evm.SELECTOR_NAME.hex() == "06fdde03"
    assert evm.SELECTOR_VERSION.hex() == "54fd4d50"
    assert evm.TRANSFER_TOPIC == "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
    assert evm.AUTHORIZATION_USED_TOPIC == "0x98de503528ee59b575ef0c0a2576a82497bfc029a5685b209e9ec333479b10a5"
    assert evm.AUTHORIZATION_CANCELED_TOPIC == "0x1cdd46ff242716cdaa72d159d339a485b3438398348d68f09d7c8c0a59353d81"


# Addresses


@pytest.mark.parametrize("address", CHECKSUMS)
def test_an_address_in_any_one_case_or_its_checksum_is_taken(address: str) -> None:
    lower = address.lower()
    assert evm.checksum_address(lower) == evm.checksum_address("0x" + lower[2:].upper()) == address
    for spelling in (address, lower, "0x" + lower[2:].upper()):
        assert evm.parse_address(spelling) == lower


@given(ADDRESS)
def test_the_checksum_is_read_back_and_one_wrong_case_is_refused(address: str) -> None:
    spelled = evm.checksum_address(address)
    assert evm.parse_address(spelled) == address
    letters = [at for at, digit in enumerate(spelled) if at > 1 and digit.isalpha()]
    for at in letters[:1]:
        wrong = spelled[:at] + spelled[at].swapcase() + spelled[at + 1 :]
        if wrong[2:] not in {wrong[2:].lower(), wrong[2:].upper()}:
            with pytest.raises(ApiError) as refused:
                evm.parse_address(wrong, field="payTo")
            assert (refused.value.code, refused.value.details) == (Code.INVALID_ADDRESS, {"field": "payTo"})
            assert "checksum" in refused.value.message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0x",
        "0x" + "1" * 39,
        "0x" + "1" * 41,
        "0X" + "1" * 40,
        "1" * 40,
        "0x" + "g" * 40,
        "0x" + "\u0661" * 40,
        "0x" + "\uff11" * 40,
        "0x" + "1" * 39 + "\n",
        "0x" + "1" * 40 + "\n",
        " 0x" + "1" * 40,
        "vitalik.eth",
        "0x" + "1" * 82,
        None,
        1,
        b"0x" + b"1" * 40,
    ],
)
def test_what_is_no_address_is_invalid_address(text: object) -> None:
    with pytest.raises(ApiError) as refused:
        evm.parse_address(text, field="walletAddress")
    assert (refused.value.code, refused.value.details) == (Code.INVALID_ADDRESS, {"field": "walletAddress"})


# Digests, signing, recovery


@given(AUTHORIZATIONS, st.sampled_from([BASE, BASE_SEPOLIA]))
@settings(max_examples=50)
def test_the_digest_is_the_typed_data_s(authorization: Authorization, asset: EvmAsset) -> None:
    message = encode_typed_data(full_message=typed_data(authorization, asset))
    expected = evm.keccak256(b"\x19" + message.version + message.header + message.body)
    assert evm.authorization_digest(asset.separator, authorization) == expected


@given(AUTHORIZATIONS, KEYS)
@settings(max_examples=30)
def test_what_an_official_wallet_signs_is_recovered_to_it(authorization: Authorization, key: bytes) -> None:
    signed = Account.sign_typed_data(key, full_message=typed_data(authorization, BASE_SEPOLIA))
    digest = evm.authorization_digest(BASE_SEPOLIA.separator, authorization)
    assert evm.recover_address(digest, bytes(signed.signature)).hex() == Account.from_key(key).address[2:].lower()


@given(WORD, KEYS)
def test_signing_is_deterministic_low_s_and_recovered_to_the_signer(digest: bytes, key: bytes) -> None:
    signature = evm.sign_digest(digest, key)
    assert signature == evm.sign_digest(digest, key)
    assert len(signature) == 65
    assert signature[64] in {27, 28}
    assert int.from_bytes(signature[32:64], "big") <= SECP256K1_ORDER // 2
    assert "0x" + evm.recover_address(digest, signature).hex() == evm.address_of_key(key)


@given(KEYS)
@settings(max_examples=30)
def test_the_address_of_a_key_is_the_wallet_s(key: bytes) -> None:
    address = evm.address_of_key(key)
    assert evm.checksum_address(address) == Account.from_key(key).address
    assert evm.address_of_public_key(coincurve.PrivateKey(key).public_key) == address


@given(st.binary(max_size=200), KEYS)
@settings(max_examples=30)
def test_a_personal_message_is_signed_as_wallets_sign_it(message: bytes, key: bytes) -> None:
    signed = Account.sign_message(encode_defunct(message), key)
    digest = evm.personal_message_digest(message)
    assert bytes(signed.message_hash) == digest
    assert evm.sign_digest(digest, key) == bytes(signed.signature)


@given(AUTHORIZATIONS, st.integers(0, 5), st.integers(0, 7))
@settings(max_examples=50)
def test_a_signature_holds_for_no_other_authorization(authorization: Authorization, field: int, bit: int) -> None:
    values = asdict(authorization)
    name = list(values)[field]
    old = values[name]
    if isinstance(old, int):
        values[name] = old ^ (1 << bit)
    else:
        values[name] = "0x" + bytes([bytes.fromhex(old[2:])[0] ^ (1 << bit), *bytes.fromhex(old[2:])[1:]]).hex()
    separator = BASE.separator
    signature = evm.sign_digest(evm.authorization_digest(separator, authorization), PAYER_KEY)
    other = evm.authorization_digest(separator, Authorization(**values))
    with contextlib.suppress(ValueError):  # or no key at all could have made it
        assert "0x" + evm.recover_address(other, signature).hex() != PAYER


@pytest.mark.parametrize("v", [0, 1, 2, 26, 29, 30, 31, 35, 255])
def test_v_other_than_27_or_28_is_refused(v: int) -> None:
    with pytest.raises(ValueError, match="v must be 27 or 28"):
        evm.recover_address(DIGEST, signature_over()[:64] + bytes([v]))


@pytest.mark.parametrize("length", [0, 1, 64, 66, 130])
def test_a_length_other_than_65_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="65 bytes"):
        evm.recover_address(DIGEST, (signature_over() * 2)[:length])


def test_the_other_signature_of_the_same_key_with_high_s_is_refused() -> None:
    signature = signature_over()
    high_s = SECP256K1_ORDER - int.from_bytes(signature[32:64], "big")
    twin = signature[:32] + high_s.to_bytes(32, "big") + bytes([55 - signature[64]])
    assert "0x" + evm.recover_unchecked(DIGEST, twin[:64], twin[64] - 27).hex() == PAYER
    with pytest.raises(ValueError, match="lower half"):
        evm.recover_address(DIGEST, twin)


def test_s_may_be_half_the_order_and_not_one_more() -> None:
    half = SECP256K1_ORDER // 2
    at_half = signature_over()[:32] + half.to_bytes(32, "big") + b"\x1b"
    assert len(evm.recover_address(DIGEST, at_half)) == 20
    with pytest.raises(ValueError, match="lower half"):
        evm.recover_address(DIGEST, at_half[:32] + (half + 1).to_bytes(32, "big") + b"\x1b")


@pytest.mark.parametrize(
    ("r", "s"),
    [
        (0, 1),
        (1, 0),
        (0, 0),
        (SECP256K1_ORDER, 1),
        (2**256 - 1, 1),
        (5, 1),  # 5 is the x of no point of the curve
    ],
)
def test_numbers_that_are_no_signature_are_refused(r: int, s: int) -> None:
    with pytest.raises(ValueError, match="no key could have made"):
        evm.recover_address(DIGEST, r.to_bytes(32, "big") + s.to_bytes(32, "big") + b"\x1b")


@given(st.binary(max_size=70), WORD)
def test_any_bytes_are_a_signer_or_a_value_error(signature: bytes, digest: bytes) -> None:
    for candidate in (signature, signature[:64].ljust(64, b"\x01") + b"\x1c"):
        try:
            assert len(evm.recover_address(digest, candidate)) == 20
        except ValueError:
            continue


# Calldata


@given(AUTHORIZATIONS, st.binary(min_size=65, max_size=65))
@settings(max_examples=50)
def test_a_65_byte_signature_makes_calldata_of_the_v_r_s_overload(authorization: Authorization, data: bytes) -> None:
    words = ["address", "address", "uint256", "uint256", "uint256", "bytes32", "uint8", "bytes32", "bytes32"]
    arguments = [*arguments_of(authorization), data[64], data[:32], data[32:64]]
    assert evm.transfer_calldata(authorization, data) == bytes.fromhex("e3ee160e") + abi_encode(words, arguments)


@given(AUTHORIZATIONS, st.binary(max_size=200).filter(lambda data: len(data) != 65))
@settings(max_examples=50)
def test_any_other_signature_makes_calldata_of_the_bytes_overload(authorization: Authorization, data: bytes) -> None:
    words = ["address", "address", "uint256", "uint256", "uint256", "bytes32", "bytes"]
    arguments = [*arguments_of(authorization), data]
    assert evm.transfer_calldata(authorization, data) == bytes.fromhex("cf092995") + abi_encode(words, arguments)


def arguments_of(authorization: Authorization) -> list[object]:
    return [
        authorization.payer,
        authorization.pay_to,
        authorization.value,
        authorization.valid_after,
        authorization.valid_before,
        bytes.fromhex(authorization.nonce[2:]),
    ]


@given(AUTHORIZATIONS, st.one_of(st.binary(min_size=65, max_size=65), st.binary(max_size=200)), st.data())
def test_calldata_of_a_transfer_reads_back_as_it_was_written_and_nothing_else_does(
    authorization: Authorization, signature: bytes, data: st.DataObject
) -> None:
    written = evm.transfer_calldata(authorization, signature)
    assert evm.read_transfer_calldata(written) == (authorization, signature)
    at = data.draw(st.integers(0, len(written) - 1))
    for wrong in (written[:at], written + b"\0", written[:4] + bytes(32) + written[4:]):
        with pytest.raises(ValueError, match="no call"):
            evm.read_transfer_calldata(wrong)
    flipped = written[:at] + bytes([written[at] ^ 0x01]) + written[at + 1 :]
    try:
        read = evm.read_transfer_calldata(flipped)
    except ValueError:
        return
    assert read != (authorization, signature)
    assert evm.transfer_calldata(*read) == flipped


@given(ADDRESS, WORD)
@settings(max_examples=30)
def test_questions_to_the_token_are_abi_encoded(holder: str, nonce: bytes) -> None:
    state = evm.authorization_state_calldata(holder, "0x" + nonce.hex())
    assert state == bytes.fromhex("e94a0102") + abi_encode(["address", "bytes32"], [holder, nonce])
    assert evm.balance_of_calldata(holder) == bytes.fromhex("70a08231") + abi_encode(["address"], [holder])


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
@settings(max_examples=50)
def test_a_string_that_a_token_returned_is_read(text: str) -> None:
    assert evm.decode_string(abi_encode(["string"], [text])) == text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 63,
        (32).to_bytes(32, "big"),
        (33).to_bytes(32, "big") + bytes(64),
        (32).to_bytes(32, "big") + (1).to_bytes(32, "big"),
        (32).to_bytes(32, "big") + (2**256 - 1).to_bytes(32, "big") + bytes(32),
        (32).to_bytes(32, "big") + (1).to_bytes(32, "big") + b"\xff" + bytes(31),
        b"USDC".ljust(32, b"\x00"),
    ],
)
def test_bytes_that_are_no_abi_string_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        evm.decode_string(data)


# RLP and transactions

RLP_ITEMS = st.recursive(st.binary(max_size=70), lambda inner: st.lists(inner, max_size=6), max_leaves=12)


@given(RLP_ITEMS)
def test_rlp_is_the_reference_s_both_ways(item: evm.RlpTree) -> None:
    encoded = evm.rlp_encode(item)
    assert encoded == rlp.encode(item)
    assert evm.rlp_decode(encoded) == item


@given(UINT256)
def test_an_integer_in_rlp_is_its_shortest_bytes(number: int) -> None:
    assert evm.rlp_encode(number) == rlp.encode(number)


@pytest.mark.parametrize("length", [0, 1, 55, 56, 255, 256, 65_535, 65_536])
def test_rlp_lengths_are_right_at_every_boundary(length: int) -> None:
    for item in (b"\x81" * length, [b"\x01"] * length):
        assert evm.rlp_encode(item) == rlp.encode(item)
        assert evm.rlp_decode(evm.rlp_encode(item)) == item


@pytest.mark.parametrize(
    ("item", "encoded"),
    [
        (b"dog", "83646f67"),
        ([b"cat", b"dog"], "c88363617483646f67"),
        (b"", "80"),
        ([], "c0"),
        (0, "80"),
        (15, "0f"),
        (1024, "820400"),
        ([[], [[]], [[], [[]]]], "c7c0c1c0c3c0c1c0"),
        (b"\x00", "00"),
        (b"\x7f", "7f"),
        (b"\x80", "8180"),
    ],
)
def test_rlp_vectors_of_the_yellow_paper(item: RlpItem, encoded: str) -> None:
    assert evm.rlp_encode(item).hex() == encoded


@pytest.mark.parametrize(
    "encoded",
    [
        "",  # nothing
        "81",  # a string that ends early
        "8100",  # a byte below 0x80 with a length
        "817f",
        "b800",  # a long form for a short string
        "b83700",
        "b837" + "00" * 55,
        "b8",  # a length that ends early
        "b9",
        "b90038" + "00" * 56,  # a length with a leading zero
        "b90100",
        "c1",  # a list that ends early
        "c180" + "00",  # bytes after the item
        "8080",
        "c28381",
        "c1828080",  # an element that reaches beyond its list
        "c18161",
        "c3c28080" + "80",
        "f80100",  # a long form for a short list
        "f8",
        "c18100",
        "bfffffffffffffffff",  # a length of 2^64-1
        "ffffffffffffffffff",
    ],
)
def test_rlp_that_is_not_one_whole_canonical_item_is_a_value_error(encoded: str) -> None:
    with pytest.raises(ValueError, match="RLP"):
        evm.rlp_decode(bytes.fromhex(encoded))


@given(st.binary(max_size=60))
def test_any_bytes_are_one_canonical_rlp_item_or_a_value_error(data: bytes) -> None:
    try:
        item = evm.rlp_decode(data)
    except ValueError:
        return
    assert evm.rlp_encode(item) == data


def test_rlp_may_be_64_deep_and_not_one_deeper() -> None:
    item: list[Any] = []
    for _ in range(63):
        item = [item]
    encoded = evm.rlp_encode(item)
    assert evm.rlp_decode(encoded) == item
    with pytest.raises(ValueError, match="nested too deeply"):
        evm.rlp_decode(evm.rlp_encode([item]))
    with pytest.raises(ValueError, match="RLP"):
        evm.rlp_decode(b"\xf8" * 100_000)


@given(
    st.builds(
        Transaction,
        chain_id=st.integers(1, 2**32),
        nonce=st.integers(0, 2**63),
        max_priority_fee_per_gas=st.integers(0, 2**64 - 1),
        max_fee_per_gas=st.integers(2**64, 2**100),
        gas=st.integers(21_000, 2**40),
        to=ADDRESS,
        value=st.integers(0, 2**128),
        data=st.binary(max_size=300),
    ),
    KEYS,
)
@settings(max_examples=50)
def test_a_transaction_is_signed_as_eth_account_signs_it(transaction: Transaction, key: bytes) -> None:
    fields = {
        "type": 2,
        "chainId": transaction.chain_id,
        "nonce": transaction.nonce,
        "maxPriorityFeePerGas": transaction.max_priority_fee_per_gas,
        "maxFeePerGas": transaction.max_fee_per_gas,
        "gas": transaction.gas,
        "to": evm.checksum_address(transaction.to),
        "value": transaction.value,
        "data": "0x" + transaction.data.hex(),
    }
    signed = Account.sign_transaction(fields, key)
    raw, transaction_hash = evm.sign_transaction(transaction, key)
    assert raw == bytes(signed.raw_transaction)
    assert transaction_hash == "0x" + bytes(signed.hash).hex()
    assert Account.recover_transaction(raw).lower() == evm.address_of_key(key)


def test_the_payment_of_these_tests_is_signed_by_its_payer() -> None:
    digest = evm.authorization_digest(BASE_SEPOLIA.separator, AUTHORIZATION)
    assert "0x" + evm.recover_address(digest, signed_payload().signature).hex() == PAYER


def test_a_wallet_is_asked_as_the_token_asks_it() -> None:
    calldata = evm.wallet_signature_calldata(b"\x11" * 32, b"\x22" * 96)
    assert calldata.hex() == "1626ba7e" + "11" * 32 + f"{64:064x}" + f"{96:064x}" + "22" * 96
    assert evm.wallet_signature_calldata(b"\x11" * 32, b"\x22").hex().endswith("22" + "00" * 31)


@pytest.mark.parametrize(
    ("answer", "is_yes"),
    [
        ("1626ba7e" + "00" * 28, True),
        ("1626ba7e" + "00" * 60, True),
        ("1626ba7e", False),
        ("1626ba7e" + "00" * 27, False),
        ("1626ba7e" + "00" * 27 + "01", False),
        ("00" * 28 + "1626ba7e", False),
        ("ffffffff" + "00" * 28, False),
        ("", False),
    ],
)
def test_only_the_magic_word_is_a_wallet_s_yes(answer: str, is_yes: bool) -> None:  # noqa: FBT001
    assert evm.is_wallet_acceptance(bytes.fromhex(answer)) is is_yes
