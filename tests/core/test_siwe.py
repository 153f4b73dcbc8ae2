from __future__ import annotations

import base64
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.base58 import encode
from tollkeeper.core.ed25519 import public_key
from tollkeeper.core.ed25519 import sign as sign_ed25519
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.evm import (
    SECP256K1_ORDER,
    address_of_key,
    checksum_address,
    parse_address,
    personal_message_digest,
    sign_digest,
)
from tollkeeper.core.networks import NETWORKS, Family
from tollkeeper.core.siwe import (
    MESSAGE_LENGTH_MAX,
    NONCE_SIZE_BYTES,
    LoginMessage,
    login_chains,
    message_digest,
    new_message,
    signer_of,
)

KEY = bytes(range(1, 33))
WALLET = address_of_key(KEY)
NONCE = bytes.fromhex("00112233445566778899aabbccddeeff")
CHAINS = {Family.EVM: "84532", Family.SOLANA: "devnet"}
MESSAGE = new_message("http://127.0.0.1:8402", WALLET, CHAINS, NONCE, 1_750_000_000_007)
TEXT = MESSAGE.text()

# ABNF of EIP-4361, the parts that we send.
EIP_4361 = re.compile(
    r"(?P<domain>[^/?#\s]+) wants you to sign in with your Ethereum account:\n"
    r"(?P<address>0x[0-9a-fA-F]{40})\n\n"
    r"(?P<statement>[^\n]+)\n\n"
    r"URI: (?P<uri>[a-z]+://[^\s]+)\n"
    r"Version: 1\n"
    r"Chain ID: (?P<chain_id>[0-9]+)\n"
    r"Nonce: (?P<nonce>[a-zA-Z0-9]{8,})\n"
    r"Issued At: (?P<issued>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)\n"
    r"Expiration Time: (?P<expires>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)"
)


def sign(text: str) -> str:
    return "0x" + sign_digest(personal_message_digest(text.encode()), KEY).hex()


def assert_refused(call: object, *arguments: str) -> None:
    assert callable(call)
    with pytest.raises(ApiError) as refusal:
        call(*arguments)
    assert (refusal.value.code, refusal.value.status) == (Code.INVALID_SIGNATURE, 401)


def test_the_text_is_eip_4361_to_the_byte() -> None:
    assert (
        "127.0.0.1:8402 wants you to sign in with your Ethereum account:\n"
        f"{checksum_address(WALLET)}\n"
        "\n"
        "Sign in to Tollkeeper. This costs nothing and sends no transaction.\n"
        "\n"
        "URI: http://127.0.0.1:8402\n"
        "Version: 1\n"
        "Chain ID: 84532\n"
        "Nonce: 00112233445566778899aabbccddeeff\n"
        "Issued At: 2025-06-15T15:06:40.007Z\n"
        "Expiration Time: 2025-06-15T15:11:40.007Z"
    ) == TEXT


@given(
    st.sampled_from(["https://gate.example", "http://localhost:1", "https://[::1]:8402", "https://a.example/sub"]),
    st.binary(min_size=20, max_size=20),
    st.integers(1, 2**53),
    st.binary(min_size=NONCE_SIZE_BYTES, max_size=NONCE_SIZE_BYTES),
    st.integers(0, 4_102_444_800_000),
)
def test_every_message_binds_what_it_was_made_of(
    url: str, address: bytes, chain_id: int, nonce: bytes, now_ms: int
) -> None:
    message = new_message(url, f"0x{address.hex()}", {Family.EVM: str(chain_id)}, nonce, now_ms)
    match = EIP_4361.fullmatch(message.text())
    assert match is not None
    assert match["domain"] == url.split("/")[2]
    assert match["uri"] == url
    assert parse_address(match["address"]) == f"0x{address.hex()}"
    assert match["address"] == checksum_address(match["address"])
    assert int(match["chain_id"]) == chain_id
    assert bytes.fromhex(match["nonce"]) == nonce
    assert message.expires_ms - message.issued_ms == 5 * 60 * 1000


def test_the_signer_of_a_message_is_recovered() -> None:
    assert signer_of(TEXT, sign(TEXT)) == WALLET
    assert signer_of(TEXT, "0x" + sign(TEXT)[2:].upper()) == WALLET


def test_a_message_has_one_digest_and_no_other_text_has_it() -> None:
    digest = message_digest(TEXT)
    assert (
        message_digest(LoginMessage("http://127.0.0.1:8402", WALLET, "84532", NONCE.hex(), 1_750_000_000_007).text())
        == digest
    )
    data = TEXT.encode()
    for position in range(len(data)):
        for other in (data[position] ^ 1, data[position] ^ 0x20):
            mutated = data[:position] + bytes([other]) + data[position + 1 :]
            assert message_digest(mutated.decode("utf-8", "replace")) != digest
    for changed in (
        TEXT + "\n",
        " " + TEXT,
        TEXT.replace("\n", "\r\n"),
        TEXT.replace(checksum_address(WALLET), WALLET),
    ):
        assert message_digest(changed) != digest


def test_a_changed_message_recovers_another_signer() -> None:
    signature = sign(TEXT)
    for line in range(len(TEXT.split("\n"))):
        lines = TEXT.split("\n")
        lines[line] += "x"
        with suppress(ApiError):  # where no key at all fits
            assert signer_of("\n".join(lines), signature) != WALLET


def _high_s(signature: str) -> str:
    data = bytes.fromhex(signature[2:])
    s = SECP256K1_ORDER - int.from_bytes(data[32:64], "big")
    return "0x" + (data[:32] + s.to_bytes(32, "big") + bytes([55 - data[64]])).hex()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: "",
        lambda signature: signature[2:],
        lambda signature: base64.b64encode(bytes.fromhex(signature[2:130])).decode(),
        lambda signature: signature[:-2],
        lambda signature: signature + "00",
        lambda signature: signature[:-2] + "00",
        lambda signature: signature[:-2] + "1d",
        lambda signature: "0X" + signature[2:],
        lambda signature: signature[:-1] + "g",
        lambda signature: signature + "\n",
        lambda signature: signature[:-1] + "\N{FULLWIDTH DIGIT ONE}",
        lambda _: "0x" + 64 * "00" + "1b",
        lambda _: "0x" + 64 * "ff" + "1b",
        lambda signature: signature + 32 * "64" + "92" * 32,  # the mark of a counterfactual contract wallet
        _high_s,
    ],
)
def test_a_signature_that_no_wallet_makes_is_refused(spoil: object) -> None:
    assert callable(spoil)
    assert_refused(signer_of, TEXT, spoil(sign(TEXT)))


def test_a_text_that_cannot_be_ours_is_refused() -> None:
    assert_refused(signer_of, "\ud800", sign(TEXT))
    assert_refused(message_digest, "\ud800")
    assert_refused(message_digest, "x" * (MESSAGE_LENGTH_MAX + 1))
    message_digest("x" * MESSAGE_LENGTH_MAX)


SOLANA_SEED = bytes(range(32))
SOLANA_WALLET = encode(public_key(SOLANA_SEED))
SOLANA_TEXT = new_message("http://127.0.0.1:8402", SOLANA_WALLET, CHAINS, NONCE, 1_750_000_000_007).text()


def sign_on_solana(text: str) -> bytes:
    return sign_ed25519(SOLANA_SEED, text.encode())


@pytest.mark.parametrize(
    ("names", "evm", "solana"),
    [
        ("", "8453", "mainnet"),
        ("base-sepolia", "84532", "devnet"),
        ("base", "8453", "mainnet"),
        ("solana-devnet", "84532", "devnet"),
        ("solana-mainnet base-sepolia", "84532", "mainnet"),
        ("base-sepolia solana-mainnet solana-devnet base", "84532", "mainnet"),
    ],
)
def test_a_login_names_a_chain_that_the_program_is_on_or_one_of_its_kind(names: str, evm: str, solana: str) -> None:
    chains = login_chains([NETWORKS[name] for name in names.split()])
    assert chains == {Family.EVM: evm, Family.SOLANA: solana}


def test_a_solana_wallet_gets_the_same_text_with_its_own_words() -> None:
    expected = TEXT.replace("Ethereum account", "Solana account").replace("Chain ID: 84532", "Chain ID: devnet")
    assert expected.replace(checksum_address(WALLET), SOLANA_WALLET) == SOLANA_TEXT


def test_a_solana_wallet_signs_in_base58_or_base64() -> None:
    signature = sign_on_solana(SOLANA_TEXT)
    assert signer_of(SOLANA_TEXT, encode(signature)) == SOLANA_WALLET
    assert signer_of(SOLANA_TEXT, base64.b64encode(signature).decode()) == SOLANA_WALLET


def test_a_changed_message_is_not_what_a_solana_wallet_signed() -> None:
    signature = encode(sign_on_solana(SOLANA_TEXT))
    for position in range(len(SOLANA_TEXT)):
        changed = SOLANA_TEXT[:position] + chr(ord(SOLANA_TEXT[position]) ^ 1) + SOLANA_TEXT[position + 1 :]
        assert_refused(signer_of, changed, signature)


@pytest.mark.parametrize(
    "spell",
    [
        lambda _: "",
        lambda signature: encode(signature)[:-1],
        lambda signature: encode(signature) + "1",
        lambda signature: "1" + encode(signature),
        lambda signature: encode(signature + b"\x00"),
        lambda signature: "0x" + signature.hex(),
        lambda signature: base64.b64encode(signature).decode().rstrip("="),
        lambda signature: base64.b64encode(signature).decode() + "=",
        lambda signature: base64.b64encode(signature + b"\x00").decode(),
        lambda signature: base64.b64encode(signature[:-1]).decode(),
        lambda signature: base64.b64encode(signature).decode()[:-3] + "z==",
        lambda signature: base64.b64encode(signature).decode().replace("=", " "),
        lambda _: "\u00e9" * 86 + "==",
        lambda signature: encode(bytes([signature[0] ^ 1]) + signature[1:]),
        lambda _: encode(bytes(64)),
    ],
)
def test_another_spelling_of_a_solana_signature_is_refused(spell: object) -> None:
    assert callable(spell)
    assert_refused(signer_of, SOLANA_TEXT, spell(sign_on_solana(SOLANA_TEXT)))


def test_nobody_signs_for_a_wallet_that_the_message_does_not_name() -> None:
    for text in (TEXT, "", "no line", "\n", "\n\n", SOLANA_TEXT.replace(SOLANA_WALLET, ""), "\ud800\n" + SOLANA_WALLET):
        signed = sign_ed25519(SOLANA_SEED, text.encode("utf-8", "replace"))
        assert_refused(signer_of, text, encode(signed))
