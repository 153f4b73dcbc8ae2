"""The codes of a handed-over login are ours alone, for one program, and over after their time."""

from __future__ import annotations

import base64
import hmac

import pytest

from tollkeeper.core.api.errors import ApiError, Code, login_required
from tollkeeper.core.keys.handover import Handover, challenge_of, check_asked, code_of, read_code
from tollkeeper.core.limits import HANDOVER_LIFETIME_SECONDS

KEY = b"k" * 32
VERIFIER = "v" * 43
NOW_MS = 1_800_000_000_000
ASKED = Handover("0x" + "ab" * 20, "session", 40_000, challenge_of(VERIFIER), NOW_MS, "nonce")


def test_a_code_says_what_it_was_made_of() -> None:
    assert read_code(code_of(ASKED, KEY), KEY, NOW_MS) == ASKED


def test_a_code_is_over_when_its_time_is() -> None:
    code, over_ms = code_of(ASKED, KEY), NOW_MS + HANDOVER_LIFETIME_SECONDS * 1000
    assert read_code(code, KEY, over_ms - 1) == ASKED
    assert read_code(code, KEY, over_ms) is None


def signed(text: str) -> str:
    return base64.urlsafe_b64encode(hmac.digest(KEY, text.encode(), "sha256") + text.encode()).decode()


@pytest.mark.parametrize(
    "code", ["", "no base64 é", "AAA", code_of(ASKED, b"o" * 32), code_of(ASKED, KEY)[:-8], signed("too.few.parts")]
)
def test_another_text_is_no_code(code: str) -> None:
    assert read_code(code, KEY, NOW_MS) is None


def test_it_is_for_the_program_that_knows_the_verifier_and_waits_at_the_port() -> None:
    assert ASKED.is_for(VERIFIER, 40_000)
    assert not ASKED.is_for(VERIFIER, 40_001)
    assert not ASKED.is_for("w" * 43, 40_000)


@pytest.mark.parametrize(
    ("port", "challenge", "field"),
    [(0, ASKED.challenge, "port"), (65_536, ASKED.challenge, "port"), (1, "short", "challenge")],
)
def test_a_port_is_a_port_and_a_challenge_a_hash(port: int, challenge: str, field: str) -> None:
    with pytest.raises(ApiError) as refused:
        check_asked(port, challenge)
    assert (refused.value.code, refused.value.details) == (Code.INVALID_PARAMETER, {"field": field})


def test_who_is_not_logged_in_is_told_so() -> None:
    assert (login_required().status, login_required().code) == (401, Code.AUTH_REQUIRED)
