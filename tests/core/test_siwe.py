from __future__ import annotations

import base64
import re
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.api.errors import Code
from tollkeeper.core.evm.encoding import (
    SECP256K1_ORDER,
    address_of_key,
    checksum_address,
    parse_address,
    personal_message_digest,
    sign_digest,
)
from tollkeeper.core.keys.siwe import (
    NONCE_SIZE_BYTES,
    is_issued,
    is_signed,
    login_chains,
    new_message,
    read_message,
    refused_login,
)
from tollkeeper.core.networks import NETWORKS, Family
from tollkeeper.core.solana.base58 import encode
from tollkeeper.core.solana.ed25519 import public_key
from tollkeeper.core.solana.ed25519 import sign as sign_ed25519

KEY = bytes(range(1, 33))
WALLET = address_of_key(KEY)
PUBLIC_URL = "http://127.0.0.1:8402"
RING_KEY = bytes(range(2, 34))
RANDOM = bytes.fromhex("00112233445566778899aabbccddeeff")
CHAINS = {Family.EVM: "84532", Family.SOLANA: "devnet"}
MESSAGE = new_message(PUBLIC_URL, WALLET, CHAINS, RANDOM, 1_750_000_000_007, RING_KEY)
TEXT = MESSAGE.text()
SOLANA_SEED = bytes(range(32))
SOLANA_WALLET = encode(public_key(SOLANA_SEED))
SOLANA_MESSAGE = new_message(PUBLIC_URL, SOLANA_WALLET, CHAINS, RANDOM, 1_750_000_000_007, RING_KEY)
SOLANA_TEXT = SOLANA_MESSAGE.text()

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


def sign(text: str, key: bytes = KEY) -> str:
    return "0x" + sign_digest(personal_message_digest(text.encode()), key).hex()


def sign_on_solana(data: bytes) -> bytes:
    return sign_ed25519(SOLANA_SEED, data)


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
        f"Nonce: 00112233445566778899aabbccddeeff{MESSAGE.nonce[32:]}\n"
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
    message = new_message(url, f"0x{address.hex()}", {Family.EVM: str(chain_id)}, nonce, now_ms, RING_KEY)
    match = EIP_4361.fullmatch(message.text())
    assert match is not None
    assert match["domain"] == url.split("/")[2]
    assert match["uri"] == url
    assert parse_address(match["address"]) == f"0x{address.hex()}"
    assert match["address"] == checksum_address(match["address"])
    assert int(match["chain_id"]) == chain_id
    assert bytes.fromhex(match["nonce"])[:NONCE_SIZE_BYTES] == nonce
    assert read_message(message.text()) == message
    assert message.expires_ms - message.issued_ms == 5 * 60 * 1000


def test_a_message_is_read_as_it_was_made() -> None:
    assert read_message(TEXT) == MESSAGE
    assert read_message(SOLANA_TEXT) == SOLANA_MESSAGE


def test_no_text_but_a_login_message_is_read_as_one() -> None:
    data = TEXT.encode()
    for position in range(len(data)):
        for other in (data[position] ^ 1, data[position] ^ 0x20):
            mutated = data[:position] + bytes([other]) + data[position + 1 :]
            with suppress(ValueError):  # where another one is as good a message, it is not taken for this one
                assert read_message(mutated.decode("utf-8", "replace")) != MESSAGE
    lines = TEXT.split("\n")
    for changed in (
        TEXT + "\n",
        " " + TEXT,
        TEXT.replace("\n", "\r\n"),
        TEXT.replace(checksum_address(WALLET), WALLET),
        TEXT + "\nResources:\n- https://gate.example",
        TEXT.replace("127.0.0.1:8402 wants", "gate.example wants"),
        TEXT.replace("This costs nothing", "I give all that I have"),
        TEXT.replace("URI: http://127.0.0.1:8402", "URI: http://127.0.0.1:8402/\nx"),
        TEXT.replace("URI: http://127.0.0.1:8402", "URI: http://127.0.0.1:8402/ and I agree"),
        TEXT.replace("Nonce: 00", "Nonce: 0\x1b"),
        TEXT.replace("15:11:40", "15:12:40"),
        TEXT.replace(".007Z", ".007+00:00"),
        *("\n".join([*lines[:n], lines[n] + " ", *lines[n + 1 :]]) for n in range(len(lines))),
        *("\n".join([*lines[:n], *lines[n + 1 :]]) for n in range(len(lines))),
        "",
        "\ud800" * 10,
        "\n" * 10,
    ):
        with pytest.raises(ValueError, match="it"):
            read_message(changed)


def test_only_the_issuer_s_keys_know_its_messages() -> None:
    assert is_issued(MESSAGE, [bytes(32), RING_KEY])
    assert not is_issued(MESSAGE, [bytes(32)])
    for changed in (
        replace(MESSAGE, public_url="http://127.0.0.1:8403"),
        replace(MESSAGE, wallet="0x" + 40 * "1"),
        replace(MESSAGE, chain="1"),
        replace(MESSAGE, issued_ms=MESSAGE.issued_ms + 1),
        replace(MESSAGE, nonce="1" + MESSAGE.nonce[1:]),
        replace(MESSAGE, nonce=MESSAGE.nonce[:-1]),
        replace(MESSAGE, nonce=MESSAGE.nonce[:32]),
        replace(MESSAGE, nonce=MESSAGE.nonce[:31]),
    ):
        assert not is_issued(changed, [RING_KEY])


@pytest.mark.parametrize(
    "spell",
    [
        lambda signature: signature,
        lambda signature: signature[2:],
        lambda signature: "0x" + signature[2:].upper(),
        lambda signature: signature[:-2] + f"{int(signature[-2:], 16) - 27:02x}",
        lambda signature: signature[2:-2] + f"{int(signature[-2:], 16) - 27:02x}",
    ],
)
@pytest.mark.parametrize("key", [bytes(range(1 + n, 33 + n)) for n in range(8)])  # of either parity
def test_an_ethereum_wallet_signs_as_the_wallets_of_the_field_spell_it(key: bytes, spell: object) -> None:
    assert callable(spell)
    message = new_message(PUBLIC_URL, address_of_key(key), CHAINS, RANDOM, 1_750_000_000_007, RING_KEY)
    assert is_signed(message, spell(sign(message.text(), key)))


def test_a_changed_message_is_not_what_a_wallet_signed() -> None:
    signature = sign(TEXT)
    for changed in (
        replace(MESSAGE, public_url="http://127.0.0.1:8403"),
        replace(MESSAGE, wallet="0x" + 40 * "1"),
        replace(MESSAGE, chain="1"),
        replace(MESSAGE, issued_ms=MESSAGE.issued_ms + 1),
        replace(MESSAGE, nonce="1" + MESSAGE.nonce[1:]),
    ):
        assert not is_signed(changed, signature)


def _high_s(signature: str) -> str:
    data = bytes.fromhex(signature[2:])
    s = SECP256K1_ORDER - int.from_bytes(data[32:64], "big")
    return "0x" + (data[:32] + s.to_bytes(32, "big") + bytes([55 - data[64]])).hex()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: "",
        lambda signature: signature[1:],
        lambda signature: "0x" + signature,
        lambda signature: base64.b64encode(bytes.fromhex(signature[2:130])).decode(),
        lambda signature: signature[:-2],
        lambda signature: signature + "00",
        lambda signature: signature[:-2] + "02",
        lambda signature: signature[:-2] + "1a",
        lambda signature: signature[:-2] + "1d",
        lambda signature: signature[:-2] + f"{55 - int(signature[-2:], 16):02x}",
        lambda signature: signature[:-2] + f"{28 - int(signature[-2:], 16):02x}",
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
    assert not is_signed(MESSAGE, spoil(sign(TEXT)))


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
    expected = expected.replace(checksum_address(WALLET), SOLANA_WALLET).replace(MESSAGE.nonce, SOLANA_MESSAGE.nonce)
    assert expected == SOLANA_TEXT


def test_a_solana_wallet_signs_in_base58_or_base64() -> None:
    signature = sign_on_solana(SOLANA_TEXT.encode())
    assert is_signed(SOLANA_MESSAGE, encode(signature))
    assert is_signed(SOLANA_MESSAGE, base64.b64encode(signature).decode())


def off_chain(text: bytes, form: int, *, signer: bytes | None, application: bytes = bytes(32)) -> bytes:
    """The envelope of Solana's proposal for off-chain messages; without a signer as Ledgers had it until 1.8."""
    fields = bytes([form]) if signer is None else application + bytes([form, 1]) + signer
    return b"\xffsolana offchain\x00" + fields + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize("signer", [None, public_key(SOLANA_SEED)])
def test_a_ledger_signs_within_the_off_chain_envelope(form: int, signer: bytes | None) -> None:
    signature = sign_on_solana(off_chain(SOLANA_TEXT.encode(), form, signer=signer))
    assert is_signed(SOLANA_MESSAGE, encode(signature))
    assert is_signed(SOLANA_MESSAGE, base64.b64encode(signature).decode())


@pytest.mark.parametrize(
    "data",
    [
        off_chain(SOLANA_TEXT.encode() + b" ", 0, signer=None),
        off_chain(SOLANA_TEXT.encode(), 2, signer=None),
        off_chain(SOLANA_TEXT.encode(), 0, signer=public_key(bytes(32))),
        off_chain(SOLANA_TEXT.encode(), 0, signer=public_key(SOLANA_SEED), application=b"x" * 32),
        off_chain(TEXT.encode(), 0, signer=public_key(SOLANA_SEED)),
        b"\xffsolana offchain\x01" + off_chain(SOLANA_TEXT.encode(), 0, signer=None)[17:],
        b"\xffsolana offchain" + SOLANA_TEXT.encode(),
    ],
)
def test_another_envelope_is_no_signature_of_the_message(data: bytes) -> None:
    assert not is_signed(SOLANA_MESSAGE, encode(sign_on_solana(data)))


def test_a_changed_message_is_not_what_a_solana_wallet_signed() -> None:
    signature = encode(sign_on_solana(SOLANA_TEXT.encode()))
    other = encode(public_key(bytes(32)))
    for changed in (
        replace(SOLANA_MESSAGE, public_url="http://127.0.0.1:8403"),
        replace(SOLANA_MESSAGE, wallet=other),
        replace(SOLANA_MESSAGE, chain="mainnet"),
        replace(SOLANA_MESSAGE, issued_ms=SOLANA_MESSAGE.issued_ms + 1),
        replace(SOLANA_MESSAGE, nonce="1" + SOLANA_MESSAGE.nonce[1:]),
    ):
        assert not is_signed(changed, signature)


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
    assert not is_signed(SOLANA_MESSAGE, spell(sign_on_solana(SOLANA_TEXT.encode())))


def test_a_login_that_fails_is_a_401_that_tells_nothing() -> None:
    assert (refused_login().code, refused_login().status, refused_login().details) == (
        Code.INVALID_SIGNATURE,
        401,
        None,
    )
