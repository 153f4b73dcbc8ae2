"""The types of ASGI applications and of what they are called with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[Any], Awaitable[None]]
# Any: uvicorn, Litestar and our own applications name one and the same protocol by types of their own.
Application: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
