"""`tollkeeper keys`: another encryption key takes the place of the one in use, by a restart (contract 3.1).

1. `rotate` writes a new key into the key file, first of all.
2. The restarted server seals by it, opens what the former one sealed, and moves that in the background
   (`gateway.encryption_keys`).
3. `retire` takes the former key out of the file: not before a server has said in the database that everything is moved,
   and nothing there is sealed under that key.

Whatever stops in between, each value is under a key of the file. What this module does not do: rotate keys that sign.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from tollkeeper.core.keys.sealing import KEY_SIZE_BYTES
from tollkeeper.serving import StartError
from tollkeeper.serving.admin.socket import give_order
from tollkeeper.serving.keys.files import KeyFiles
from tollkeeper.storage.engine.nodes import SEEN_SECONDS, end_tokens
from tollkeeper.storage.gateway.reseals import retired_ids, sealed_under
from tollkeeper.storage.urls import open_database, open_snapshot, server_of

if TYPE_CHECKING:
    from tollkeeper.settings.model import Settings


def _key_files(settings: Settings) -> KeyFiles:
    """The files that are rewritten. Raises: StartError where there are none."""
    if not settings.encryption_key_paths:
        raise StartError(
            "the encryption keys are in the environment (TOLLKEEPER_ENCRYPTION_KEYS), which no command can change: "
            "put them into a file that encryption_keys_file names, restart, and rotate then"
            if settings.encryption_keys is not None
            else "this part seals nothing: it has no encryption keys"
        )
    return KeyFiles(settings.encryption_key_paths)


def rotate(settings: Settings) -> list[str]:
    """Put a new key first into the file; lines that say what to do next.

    Raises: StartError, where a former key is there still, too; OSError.
    """
    files = _key_files(settings)
    with files.locked():
        ring = files.ring()
        if len(ring.keys) > 1:
            former = " and ".join(f"`tollkeeper keys retire {name}`" for name in ring.keys if name != ring.current)
            raise StartError(
                f"the key file has a new key already, {ring.current}, and nothing was changed: "
                f"restart the server with it, then {former}"
            )
        new_id = f"e-{secrets.token_hex(4)}"
        files.put_first(new_id, secrets.token_bytes(KEY_SIZE_BYTES))
    return [
        f"{new_id} is the first key of the file now; nothing is sealed under it yet",
        f"restart the server: it seals under it, and moves what {ring.current} sealed in the background",
        f"then `tollkeeper keys retire {ring.current}`, once `tollkeeper keys list` shows no values of it",
    ]


def retire(settings: Settings, key_id: str) -> list[str]:
    """Take a former key out of the file, where nothing needs it; lines that say so. Raises: StartError, OSError."""
    files = _key_files(settings)
    with files.locked():
        ring = files.ring()
        if key_id == ring.current:
            raise StartError(f"{key_id} is the key in use: `tollkeeper keys rotate` makes another one")
        if key_id not in ring.keys:
            raise StartError(f"the key file has no key {key_id}; it has {', '.join(ring.keys)}")
        with open_snapshot(settings.database_url) as snapshot:
            counts, _ = sealed_under(snapshot, [key_id])
            is_moved = key_id in retired_ids(snapshot)
        if counts[key_id]:
            raise StartError(
                f"{counts[key_id]} values are sealed under {key_id}, which stays in the file: a server that was "
                f"started with {ring.current} moves them, and logs `values_do_not_open` of those that it cannot"
            )
        if not is_moved:
            raise StartError(
                f"no server has sealed under {ring.current} yet, so {key_id} stays in the file: restart it first"
            )
        files.retire([key_id])
    return [
        f"{key_id} is retired, and kept in {files.retired_path}: backups from before need it",
        f"its credit tokens and links stay good; if it leaked, `tollkeeper keys revoke {key_id}` ends them",
    ]


async def revoke(settings: Settings, key_id: str) -> list[str]:
    """Have the running server end the credit tokens and links of a retired key. Raises: StartError."""
    files = _key_files(settings)
    if key_id in files.ring().keys:
        raise StartError(f"{key_id} is in the key file: `tollkeeper keys retire {key_id}` first")
    with open_snapshot(settings.database_url) as snapshot:
        good = [name for name in retired_ids(snapshot) if name not in files.revoked()]
    if key_id not in good:
        raise StartError(f"no tokens of {key_id} are good; of retired keys those of {', '.join(good) or 'none'} are")
    if server_of(settings.database_url) is None:
        answer = await give_order(settings.database_url, {"order": "revoke", "key": key_id})
        if "error" in answer:
            raise StartError(answer["error"])
    else:
        await _revoke_everywhere(settings, key_id)
    with files.locked():
        files.revoke(key_id)
    return [f"tokens and links that {key_id} made are worthless"]


async def _revoke_everywhere(settings: Settings, key_id: str) -> None:
    """End them at every program on the database, each of which has seen it once this returns. Raises: StorageError."""
    database = open_database(settings.database_url)
    try:
        await database.run(end_tokens(key_id))
    finally:
        await database.close()
    await asyncio.sleep(SEEN_SECONDS)


def list_keys(settings: Settings) -> list[str]:
    """A line per key of the ring: its id, what it is, how many values it sealed; then retired ones.

    Raises: StartError, StorageError.
    """
    ring = settings.encryption_keys
    if ring is None:
        raise StartError("this part seals nothing: it has no encryption keys")
    revoked = KeyFiles(settings.encryption_key_paths).revoked() if settings.encryption_key_paths else frozenset()
    with open_snapshot(settings.database_url) as snapshot:
        counts, unknown = sealed_under(snapshot, [*ring.keys])
        retired = [name for name in retired_ids(snapshot) if name not in ring.keys and name not in revoked]
    width = max(map(len, ring.keys))
    lines = [
        f"{name:<{width}}  {'in use' if name == ring.current else 'former'}  {counts[name]} values"
        for name in ring.keys
    ]
    lines += [f"{name:<{width}}  retired, and its tokens are good" for name in retired]
    return lines + ([f"{unknown} values are sealed under keys that the ring lacks"] if unknown else [])
