from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.http.signatures import (
    CREATED_AHEAD_MAX_SECONDS,
    Algorithm,
    Parameters,
    SignatureRefused,
    SigningKey,
    content_digest,
    has_expired,
    read_signature,
    require_content_digest,
    require_signature,
    require_times,
    sign,
    signature_base,
)

NOW = 1_750_000_000
ED25519 = SigningKey("gateway-1", Algorithm.ED25519, bytes(range(32)))
HMAC = SigningKey("gate-7", Algorithm.HMAC_SHA256, b"secret")
MESSAGE = {"@method": "POST", "@path": "/settle", "content-digest": content_digest(b"{}"), "idempotency-key": "c.1"}
COVERED = tuple(MESSAGE)

# RFC 9421, appendix B.2: the request, and the examples with a shared secret and with Ed25519.
RFC_MESSAGE = {
    "date": "Tue, 20 Apr 2021 02:07:55 GMT",
    "@method": "POST",
    "@path": "/foo",
    "@authority": "example.com",
    "content-type": "application/json",
    "content-length": "18",
}
RFC_HMAC = SigningKey(
    "test-shared-secret",
    Algorithm.HMAC_SHA256,
    base64.b64decode("uzvJfB4u3N0Jy4T7NZ75MDVcr8zSTInedJtkgcu46YW4XByzNJjxBdtjUkdJPBtbmHhIDi6pcl8jsasjlTMtDQ=="),
)
RFC_ED25519 = SigningKey(
    "test-key-ed25519",
    Algorithm.ED25519,
    base64.b64decode("n4Ni+HpISpVObnQMW0wOhCKROaIKqKtW/2ZYb2p9KcU="),
)


def parameters(key: SigningKey = ED25519, **changes: object) -> Parameters:
    fields: dict[str, object] = {
        "covered": COVERED,
        "created": NOW,
        "expires": NOW + 60,
        "nonce": "n-1",
        "key_id": key.key_id,
        "algorithm": key.algorithm.value,
    }
    return Parameters(**(fields | changes))  # type: ignore[arg-type]  # of the fields' types


def headers(key: SigningKey = ED25519, **changes: object) -> dict[str, str]:
    return sign(MESSAGE, key, label="tollkeeper", parameters=parameters(key, **changes))


@pytest.mark.parametrize(
    ("key", "covered", "signature"),
    [
        (RFC_HMAC, ("date", "@authority", "content-type"), "pxcQw6G3AjtMBQjwo8XzkZf/bws5LelbaMk5rGIGtE8="),
        (
            RFC_ED25519,
            ("date", "@method", "@path", "@authority", "content-type", "content-length"),
            "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==",
        ),
    ],
)
def test_the_examples_of_the_rfc_are_reproduced(key: SigningKey, covered: tuple[str, ...], signature: str) -> None:
    made = sign(RFC_MESSAGE, key, label="sig", parameters=Parameters(covered, created=1_618_884_473, key_id=key.key_id))
    assert made["Signature"] == f"sig=:{signature}:"
    read = read_signature(made["Signature-Input"], made["Signature"], label="sig")
    require_signature(read, RFC_MESSAGE, key.verifying_key(), required=covered)


@pytest.mark.parametrize("key", [ED25519, HMAC])
def test_what_was_signed_is_read_back_and_verifies(key: SigningKey) -> None:
    made = headers(key)
    read = read_signature(made["Signature-Input"], made["Signature"], label="tollkeeper")
    assert read.parameters == parameters(key)
    require_signature(read, MESSAGE, key.verifying_key(), required=COVERED)


@pytest.mark.parametrize("key", [ED25519, HMAC])
@pytest.mark.parametrize("name", COVERED)
def test_a_changed_component_does_not_verify(key: SigningKey, name: str) -> None:
    made = headers(key)
    read = read_signature(made["Signature-Input"], made["Signature"], label="tollkeeper")
    with pytest.raises(SignatureRefused, match="does not fit"):
        require_signature(read, {**MESSAGE, name: "x"}, key.verifying_key(), required=COVERED)


@pytest.mark.parametrize("parameter", ["created", "expires", "nonce", "keyid"])
def test_a_changed_parameter_does_not_verify(parameter: str) -> None:
    made = headers()
    text = made["Signature-Input"]
    changed = text.replace("1750000000", "1750000001") if parameter == "created" else text
    changed = changed.replace("1750000060", "1750009999") if parameter == "expires" else changed
    changed = changed.replace("n-1", "n-2") if parameter == "nonce" else changed
    changed = changed.replace("gateway-1", "gateway-2") if parameter == "keyid" else changed
    assert changed != text
    read = read_signature(changed, made["Signature"], label="tollkeeper")
    with pytest.raises(SignatureRefused, match="does not fit"):
        require_signature(read, MESSAGE, ED25519.verifying_key(), required=COVERED)


def test_another_key_does_not_verify() -> None:
    made = headers()
    read = read_signature(made["Signature-Input"], made["Signature"], label="tollkeeper")
    other = SigningKey("gateway-1", Algorithm.ED25519, bytes(32)).verifying_key()
    with pytest.raises(SignatureRefused, match="does not fit"):
        require_signature(read, MESSAGE, other, required=COVERED)


def test_a_key_is_used_with_its_own_algorithm_only() -> None:
    made = headers()
    read = read_signature(made["Signature-Input"], made["Signature"], label="tollkeeper")
    with pytest.raises(SignatureRefused, match="algorithm"):
        require_signature(read, MESSAGE, HMAC.verifying_key(), required=COVERED)


def test_an_algorithm_need_not_be_named() -> None:
    made = headers(algorithm=None)
    read = read_signature(made["Signature-Input"], made["Signature"], label="tollkeeper")
    require_signature(read, MESSAGE, ED25519.verifying_key(), required=COVERED)


def test_what_is_required_must_be_covered() -> None:
    made = headers(covered=COVERED[:-1])
    read = read_signature(made["Signature-Input"], made["Signature"], label="tollkeeper")
    with pytest.raises(SignatureRefused, match="does not cover idempotency-key"):
        require_signature(read, MESSAGE, ED25519.verifying_key(), required=COVERED)


def test_a_component_is_covered_once() -> None:
    made = headers(covered=(*COVERED, "@path"))
    read = read_signature(made["Signature-Input"], made["Signature"], label="tollkeeper")
    with pytest.raises(SignatureRefused, match="twice"):
        require_signature(read, MESSAGE, ED25519.verifying_key(), required=COVERED)


def test_a_component_that_the_message_lacks_cannot_be_signed() -> None:
    with pytest.raises(SignatureRefused, match="no x-payer"):
        signature_base(MESSAGE, ["x-payer"], "()")


def test_the_base_is_the_rfc_s() -> None:
    text = '("@method" "date");created=1'
    base = signature_base({"@method": "GET", "date": "  today "}, ["@method", "date"], text)
    assert base == b'"@method": GET\n"date": today\n"@signature-params": ("@method" "date");created=1'


def test_other_labels_are_somebody_else_s() -> None:
    made = headers()
    both = {name: f'other=("@method");created=1, {value}' for name, value in made.items() if name == "Signature-Input"}
    signature = f"other=:AAAA:,\t{made['Signature']}"
    read = read_signature(both["Signature-Input"], signature, label="tollkeeper")
    require_signature(read, MESSAGE, ED25519.verifying_key(), required=COVERED)


@pytest.mark.parametrize(
    ("signature_input", "signature"),
    [
        ("", ""),
        ("sig=()", ""),
        ("", "sig=:AAAA:"),
        ("other=()", "other=:AAAA:"),
        ("sig=(), sig=()", "sig=:AAAA:"),
        ("sig=()", "sig=:AAAA:, sig=:AAAA:"),
        ("sig=() x", "sig=:AAAA:"),
        ("sig=(),", "sig=:AAAA:"),
        ("sig=();created=x", "sig=:AAAA:"),
        ("sig=();created=-1", "sig=:AAAA:"),
        ("sig=();created=1;created=2", "sig=:AAAA:"),
        ('sig=();keyid="a";keyid="b"', "sig=:AAAA:"),
        ('sig=();keyid="a\\""', "sig=:AAAA:"),
        ("sig=();created=" + "1" * 16, "sig=:AAAA:"),
        ("sig=(@method)", "sig=:AAAA:"),
        ('sig=("@method";req)', "sig=:AAAA:"),
        ("sig=()", "sig=AAAA"),
        ("sig=()", "sig=:AAA:"),
        ("sig=()", "sig=:A===:"),
        ("sig=()", "sig=:ä:"),
    ],
)
def test_headers_that_are_not_one_readable_signature_are_refused(signature_input: str, signature: str) -> None:
    with pytest.raises(SignatureRefused):
        read_signature(signature_input, signature, label="sig")


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_is_read_or_refused(signature_input: str, signature: str) -> None:
    with pytest.raises(SignatureRefused):
        read_signature(signature_input, signature, label="tollkeeper")


@pytest.mark.parametrize("text", ['a"b', "a\\b", "ä", "a\n"])
def test_a_parameter_that_cannot_be_quoted_is_not_signed(text: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        headers(key_id=text)


def test_times_hold_from_creation_to_just_before_expiry() -> None:
    for now in (NOW - CREATED_AHEAD_MAX_SECONDS, NOW, NOW + 59):
        require_times(parameters(), now, lifetime_max_seconds=60)
        assert not has_expired(parameters(), now)
    assert has_expired(parameters(), NOW + 60)
    assert not has_expired(parameters(expires=None), NOW + 60)


@pytest.mark.parametrize(
    ("changes", "now", "rule"),
    [
        ({"created": None}, NOW, "does not say"),
        ({"expires": None}, NOW, "does not say"),
        ({"expires": NOW + 61}, NOW, "at most 60 seconds"),
        ({"expires": NOW - 1}, NOW, "at most 60 seconds"),
        ({}, NOW - CREATED_AHEAD_MAX_SECONDS - 1, "future"),
        ({}, NOW + 60, "expired"),
    ],
)
def test_times_outside_are_refused(changes: dict[str, object], now: int, rule: str) -> None:
    with pytest.raises(SignatureRefused, match=rule):
        require_times(parameters(**changes), now, lifetime_max_seconds=60)  # type: ignore[arg-type]  # of the fields' types


def test_the_digest_of_a_body_is_the_rfc_s() -> None:
    body = b'{"hello": "world"}'  # RFC 9421, appendix B.2
    assert content_digest(body) == "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"
    require_content_digest(content_digest(body), body)
    require_content_digest(f"sha-512=:AAAA:, {content_digest(body)}", body)


@pytest.mark.parametrize("header", ["", "sha-256=:AAAA:", "sha-512=:AAAA:"])
def test_a_digest_of_something_else_is_refused(header: str) -> None:
    with pytest.raises(SignatureRefused, match="content digest"):
        require_content_digest(header, b"{}")


def test_no_text_of_a_key_shows_it() -> None:
    for shown in (repr(ED25519), repr(HMAC), repr(ED25519.verifying_key()), repr(HMAC.verifying_key())):
        assert "secret" not in shown
        assert "\\x" not in shown
    assert repr(HMAC) == "SigningKey('gate-7', hmac-sha256)"
