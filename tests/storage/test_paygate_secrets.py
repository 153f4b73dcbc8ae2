"""The secrets of a gate in the database: which sign, and for how long beside their successors (contract 2, 4.7)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.keys.sealing import KeyRing, Sealing
from tollkeeper.core.limits import SECRETS_IN_FORCE_MAX
from tollkeeper.core.paygates.model import CreateDefaults, PayGate, parse_create
from tollkeeper.core.paygates.target_signing import HmacSecret, SignedCall, signature_lines
from tollkeeper.storage.gateway.paygates import PayGates
from tollkeeper.storage.urls import open_database

NOW_MS = 1_700_000_000_000
DAY_MS = 24 * 3600 * 1000
CALL = SignedCall("GET", "http://target/", b"", "0x" + "22" * 20, "pur_1", "slug")


def secret(number: int) -> HmacSecret:
    return HmacSecret(f"pgk_{number}", f"pgs_{number}")


@pytest.fixture
async def gates(tmp_path: Path) -> AsyncIterator[PayGates]:
    database = open_database(f"sqlite:///{tmp_path / 'gate.db'}")
    yield PayGates(database, Sealing(KeyRing("a", {"a": bytes(32)}), os.urandom), os.urandom)
    await database.close()


async def signing_gate(gates: PayGates) -> PayGate:
    body = {"price": "0.01", "targetUrl": "http://target/", "headerAuthMode": "hmac"}
    return await gates.create(
        parse_create(body, CreateDefaults("base-sepolia", "0x" + "ab" * 20)), None, None, NOW_MS, secret(1)
    )


async def in_force(gates: PayGates, gate: PayGate, now_ms: int) -> list[str]:
    """The ids of the secrets that a gate is loaded with then, the current one first."""
    loaded = await gates.by_slug(gate.slug, now_ms)
    assert loaded is not None
    return [one.key_id for one in loaded.secrets]


async def test_a_former_secret_signs_for_a_day_and_no_longer(gates: PayGates) -> None:
    gate = await signing_gate(gates)
    await gates.replace_secret(gate.id, secret(2), NOW_MS + 1000)
    end_ms = NOW_MS + 1000 + DAY_MS
    assert await in_force(gates, gate, NOW_MS + 1000) == ["pgk_2", "pgk_1"]
    assert await in_force(gates, gate, end_ms - 1) == ["pgk_2", "pgk_1"]
    assert await in_force(gates, gate, end_ms) == ["pgk_2"]
    # A gate that stays in memory meanwhile signs by it as long, and no longer.
    loaded = await gates.by_slug(gate.slug, NOW_MS + 1000)
    assert loaded is not None
    signed = [signature_lines(CALL, loaded.secrets, at_ms, bytes(12)) for at_ms in (end_ms - 1, end_ms)]
    assert [(lines.count(b"keyid="), b'keyid="pgk_1"' in lines) for lines in signed] == [(2, True), (1, False)]


async def test_a_day_after_a_change_there_is_room_for_another(gates: PayGates) -> None:
    gate = await signing_gate(gates)
    for number in range(2, SECRETS_IN_FORCE_MAX + 1):
        await gates.replace_secret(gate.id, secret(number), NOW_MS + number)
    with pytest.raises(ApiError) as refused:
        await gates.replace_secret(gate.id, secret(9), NOW_MS + 2 + DAY_MS - 1)
    assert refused.value.code is Code.CONFLICT
    await gates.replace_secret(gate.id, secret(9), NOW_MS + 2 + DAY_MS)
    assert (await in_force(gates, gate, NOW_MS + 2 + DAY_MS))[0] == "pgk_9"
    assert len(await in_force(gates, gate, NOW_MS + 2 + DAY_MS)) == SECRETS_IN_FORCE_MAX
