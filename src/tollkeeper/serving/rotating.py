"""`tollkeeper keys rotate`, `list` and `revoke`: another key for what is stored, while a server serves from it.

The steps: (1) the key file gets a new first key, beside the former one; (2) every process opens with it, and when all
do, every one seals with it; (3) what is stored is moved, a page at a time; (4) nothing is sealed under the former key:
what made its credit tokens is kept, the file is without it, the processes let it go. Whatever dies in between, each
stored value is under a key of the file, and the same command goes on. The running server carries the steps out, else
the command itself. What this module does not do: rotate keys that sign.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Final

from tollkeeper.core.keyring import ring_text
from tollkeeper.core.sealing import KEY_SIZE_BYTES
from tollkeeper.serving import StartError
from tollkeeper.serving.hands import Hands
from tollkeeper.serving.key_files import KeyFiles
from tollkeeper.storage.resealing import SEALED_TABLES, retired_ids, sealed_under
from tollkeeper.storage.snapshot import open_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.sealing import KeyRing
    from tollkeeper.settings import Settings

_ROUNDS_MAX: Final = 3


def key_files_of(settings: Settings) -> KeyFiles:
    """The files that are rewritten. Raises: StartError where there are none."""
    if not settings.encryption_key_paths:
        raise StartError(
            "the encryption keys are in the environment (TOLLKEEPER_ENCRYPTION_KEYS), which no command can change: "
            "put them into a file that encryption_keys_file names, restart, and rotate then"
            if settings.encryption_keys is not None
            else "this part seals nothing: it has no encryption keys"
        )
    return KeyFiles(settings.encryption_key_paths)


async def rotate(settings: Settings, say: Callable[[str], None], *, revokes_tokens: bool = False) -> None:
    """Everything is sealed under a new key when this returns; a rotation that was cut off is finished first.

    `revokes_tokens`: credit tokens and links that a former key made are worthless from then on.
    Raises: StartError, StorageError, OSError.
    """
    files = key_files_of(settings)
    with files.locked():
        ring = files.ring()
        hands = Hands(settings, files.ring)
        try:
            await hands.carry(keys="use", ring=ring_text(ring))  # are these its keys?
            if len(ring.keys) == 1:
                new_id = f"e-{secrets.token_hex(4)}"
                files.put_first(new_id, secrets.token_bytes(KEY_SIZE_BYTES))
                ring = files.ring()
                say(f"{ring.current} is the new key")
            else:
                say(f"going on with {ring.current}, which is the first key of the file")
            await hands.carry(keys="use", ring=ring_text(ring))
            former = [name for name in ring.keys if name != ring.current]
            say(f"{await _move_all(settings, hands, ring, former)} values are sealed under it that were not before")
            await hands.carry(keys="retire", ids=former, revoke=revokes_tokens)
            files.retire(former)
            await hands.carry(keys="use", ring=ring_text(files.ring()))
            say(f"{', '.join(former)} is retired, and kept in {files.retired_path}: backups from before need it")
        finally:
            await hands.close()
        if revokes_tokens and (good := _retired(settings)):
            say(f"tokens that {', '.join(good)} made stay good: `tollkeeper keys revoke` ends those of a key")


async def revoke_tokens(settings: Settings, key_id: str, say: Callable[[str], None]) -> None:
    """Credit tokens and links that a key made which was retired before are worthless when this returns.

    Raises: StartError where there are none, or the key is still there; StorageError, OSError.
    """
    files = key_files_of(settings)
    with files.locked():
        ring = files.ring()
        if key_id in ring.keys:
            raise StartError(
                f"{key_id} is no retired key: `tollkeeper keys rotate --revoke-tokens` replaces and ends it"
            )
        hands = Hands(settings, files.ring)
        try:
            # Are these its keys? And every process hears of a revocation that was cut off behind its commit.
            await hands.carry(keys="use", ring=ring_text(ring))
            if key_id not in (good := _retired(settings)):
                raise StartError(
                    f"no tokens of {key_id} are good; of retired keys those of {', '.join(good) or 'none'} are"
                )
            await hands.carry(keys="retire", ids=[key_id], revoke=True)
            await hands.carry(keys="use", ring=ring_text(ring))  # every process reads anew which tokens are good
        finally:
            await hands.close()
        say(f"tokens and links that {key_id} made are worthless")


def _retired(settings: Settings) -> list[str]:
    with open_snapshot(settings.database_url) as snapshot:
        return retired_ids(snapshot)


async def _move_all(settings: Settings, hands: Hands, ring: KeyRing, former: list[str]) -> int:
    """How many values were moved, until none is under a former key. Raises: StartError where some stay."""
    moved = 0
    for _ in range(_ROUNDS_MAX):
        for number in range(len(SEALED_TABLES)):
            moved += await _move_table(hands, number)
        counts, _unknown = await asyncio.to_thread(_counted, settings, [*ring.keys])
        left = sum(counts[name] for name in former)
        if not left:
            return moved
    raise StartError(f"{left} values do not open under the key that sealed them; {', '.join(former)} stays in the ring")


async def _move_table(hands: Hands, number: int) -> int:
    moved: int = 0
    last = None
    while True:
        begun = time.monotonic()
        done = await hands.carry(keys="move", table=number, after=last)
        moved += done["moved"]
        last = done["last"]
        if last is None:
            return moved
        await asyncio.sleep(time.monotonic() - begun)  # half of the time is the callers'


def _counted(settings: Settings, key_ids: list[str]) -> tuple[dict[str, int], int]:
    with open_snapshot(settings.database_url) as snapshot:
        return sealed_under(snapshot, key_ids)


def list_keys(settings: Settings) -> list[str]:
    """A line per key of the ring: its id, whether it is in use, how many values it sealed; then of retired ones.

    Raises: StartError, StorageError.
    """
    ring = settings.encryption_keys
    if ring is None:
        raise StartError("this part seals nothing: it has no encryption keys")
    counts, unknown = _counted(settings, [*ring.keys])
    width = max(map(len, ring.keys))
    lines = [
        f"{name:<{width}}  {'in use' if name == ring.current else 'former'}  {counts[name]} values"
        for name in ring.keys
    ]
    lines += [f"{name:<{width}}  retired, and its tokens are good" for name in _retired(settings)]
    return lines + ([f"{unknown} values are sealed under keys that the ring lacks"] if unknown else [])
