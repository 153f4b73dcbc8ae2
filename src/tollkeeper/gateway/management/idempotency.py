"""Keys of creates that may be sent again, as callers send them (contract 2; draft-ietf-httpapi-idempotency-key-header).

A key of a logged-in caller is that wallet's. Without a login all callers share their keys, so such a key must be long
enough that nobody guesses it: the answer may hold the gate's management token.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Final

from tollkeeper.core.api.errors import invalid
from tollkeeper.storage.gateway.creations import CreationKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.api.strict_json import NumberText
    from tollkeeper.core.json_types import JsonMapping
    from tollkeeper.core.paygates.downloads import StoredFile
    from tollkeeper.gateway.management.ownership import GateManager

_NAME: Final = "Idempotency-Key"
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
UNGUESSABLE_LENGTH: Final = 16


def key_among(sent: Sequence[str]) -> str | None:
    """The key of a request, of all that came under its name; None without one. Raises: INVALID_PARAMETER."""
    if len(sent) > 1:
        raise invalid(_NAME, f"{_NAME} came twice")
    if sent and _KEY.fullmatch(sent[0]) is None:
        raise invalid(_NAME, f"{_NAME} must be 1 to 255 visible ASCII characters")
    return sent[0] if sent else None


def creation_key(
    key: str | None, caller: GateManager, body: JsonMapping, file: StoredFile | None
) -> CreationKey | None:
    """The key of a create; None where none was sent. Raises: INVALID_PARAMETER."""
    if key is None:
        return None
    if caller.wallet is None and len(key) < UNGUESSABLE_LENGTH:
        raise invalid(_NAME, f"without a login {_NAME} must have at least {UNGUESSABLE_LENGTH} characters")
    content = None if file is None else [file.name, file.content_type, file.sha256, file.size_bytes]
    fingerprint = hashlib.sha256(json.dumps([body, content], sort_keys=True, default=_text).encode()).hexdigest()
    return CreationKey(caller.wallet or "", key, fingerprint)


def _text(number: NumberText) -> str:
    return number.text  # a price that is no whole number is kept as it was written
