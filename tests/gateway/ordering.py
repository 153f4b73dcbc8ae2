"""An operator's orders to the running server, as the commands give them."""

from __future__ import annotations

from typing import Any

from tollkeeper.serving.admin.socket import give_order
from tollkeeper.settings.model import Settings


async def honour_payment(settings: Settings, order: dict[str, Any]) -> dict[str, Any]:
    """What came of the order at the server on the database of these settings: `done` or `error`."""
    return await give_order(settings.database_url, {"order": "honour", **order})
