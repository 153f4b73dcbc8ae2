"""What is signed of a forwarded request, and by which secrets (contract 4.7)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import replace

import pytest

from tests.core.gates import NOW_MS
from tollkeeper.core.http.signatures import Algorithm, VerifyingKey, content_digest, read_signature, require_signature
from tollkeeper.core.paygates.target_signing import (
    KEY_ID_SIZE_BYTES,
    SECRET_SIZE_BYTES,
    HmacSecret,
    SignedCall,
    new_secret,
    signature_lines,
)

CALL = SignedCall(
    method="POST",
    target_uri="https://api.example/v1?city=Athens",
    body=b"{}",
    payer="0x857b06519E91e3A54538791bDbb0E22373e36b66",
    purchase_id="pur_1",
    slug="abc12345",
)
SECRET = HmacSecret("pgk_1", "pgs_one")
NONCE = bytes(range(12))


def headers(call: SignedCall = CALL, *secrets: HmacSecret, now_ms: int = NOW_MS) -> dict[str, str]:
    lines = signature_lines(call, secrets or (SECRET,), now_ms, NONCE).decode()
    assert lines.endswith("\r\n")
    found = dict(line.split(": ", 1) for line in lines[:-2].split("\r\n"))
    assert len(found) == 3
    return found


def test_the_signature_is_the_hmac_of_the_documented_lines() -> None:
    made = headers()
    names = '("@method" "@target-uri" "content-digest" "x-payer" "x-purchase-id" "x-paygate-slug")'
    parameters = f'{names};created={NOW_MS // 1000};nonce="AAECAwQFBgcICQoL";keyid="pgk_1";alg="hmac-sha256"'
    base = (
        '"@method": POST\n'
        '"@target-uri": https://api.example/v1?city=Athens\n'
        f'"content-digest": {content_digest(b"{}")}\n'
        '"x-payer": 0x857b06519E91e3A54538791bDbb0E22373e36b66\n'
        '"x-purchase-id": pur_1\n'
        '"x-paygate-slug": abc12345\n'
        f'"@signature-params": {parameters}'
    )
    tag = base64.b64encode(hmac.digest(b"pgs_one", base.encode(), hashlib.sha256)).decode()
    assert made == {
        "content-digest": content_digest(b"{}"),
        "signature-input": f"paygate={parameters}",
        "signature": f"paygate=:{tag}:",
    }


def test_an_empty_body_has_a_digest() -> None:
    assert headers(replace(CALL, body=b""))["content-digest"] == content_digest(b"")


def test_a_body_that_was_not_read_whole_is_named_unsigned_and_that_is_signed() -> None:
    made = headers(replace(CALL, body=None))
    assert made["x-paygate-body"] == "unsigned"
    assert "content-digest" not in str(made)
    signed = read_signature(made["signature-input"], made["signature"], label="paygate")
    assert "x-paygate-body" in signed.parameters.covered


def test_each_secret_in_force_signs_for_itself_the_current_one_first() -> None:
    former = HmacSecret("pgk_2", "pgs_two", NOW_MS + 1)
    over = HmacSecret("pgk_3", "pgs_three", NOW_MS)
    made = headers(CALL, SECRET, former, over)
    assert re.findall(r'(paygate[-0-9]*)=\(.*?keyid="(.*?)"', made["signature-input"]) == [
        ("paygate", "pgk_1"),
        ("paygate-2", "pgk_2"),
    ]
    components = {
        "@method": CALL.method,
        "@target-uri": CALL.target_uri,
        "content-digest": made["content-digest"],
        "x-payer": CALL.payer,
        "x-purchase-id": CALL.purchase_id,
        "x-paygate-slug": CALL.slug,
    }
    for label, secret in (("paygate", SECRET), ("paygate-2", former)):
        signed = read_signature(made["signature-input"], made["signature"], label=label)
        key = VerifyingKey(Algorithm.HMAC_SHA256, secret.secret.encode())
        require_signature(signed, components, key, required=tuple(components))


@pytest.mark.parametrize("shown", [repr, str])
def test_a_secret_is_made_of_random_bytes_and_not_shown(shown: type) -> None:
    secret = new_secret(bytes(SECRET_SIZE_BYTES) + b"\xff" * KEY_ID_SIZE_BYTES)
    assert (secret.secret, secret.key_id) == ("pgs_" + "A" * 43, "pgk_" + "_" * 12)
    assert secret.until_ms is None
    assert secret.secret not in shown(secret)
