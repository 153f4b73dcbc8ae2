"""A page of the dashboard: its place, and the function that answers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from tollkeeper.web.dashboard.visit import PageAnswer

Handler: TypeAlias = "Callable[..., Awaitable[PageAnswer]]"


@dataclass(frozen=True, slots=True)
class DashboardPage:
    """One page: which requests it answers, and whether somebody must be logged in."""

    method: str
    path: re.Pattern[str]
    handler: Handler
    is_open: bool = False
