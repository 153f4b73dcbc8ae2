"""Settings read anew by a running process, at SIGHUP (contract 1).

What can change at once does: the log's level, rate limits, origins of web pages. Whatever else changed is named, and
waits for a restart; so do keys, always. Settings with a mistake change nothing. Nothing here stops the process.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.settings.model import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.gateway.app import Gateway
    from tollkeeper.serving.http.origins import OriginGuard
    from tollkeeper.settings.model import Settings

_LOG = structlog.get_logger("tollkeeper.serving.reloading")
_AT_ONCE: Final = frozenset(
    {
        "log_level",
        "cors_origins",
        "unpaid_requests_per_minute",
        "api_requests_per_minute",
        "login_requests_per_minute",
    }
)


class Reloading:
    """The settings of one process; `read` reads them anew. What they reach is given by the composition."""

    def __init__(self, settings: Settings, read: Callable[[], Settings]) -> None:
        self._settings = settings
        self._read = read
        self.gateway: Gateway | None = None
        self.guard: OriginGuard | None = None

    def reload(self) -> None:
        """Read the settings anew and use what can be used at once."""
        try:
            settings = self._read()
        except SettingsError as error:
            _LOG.error("settings_not_reloaded", problems=[str(finding) for finding in error.findings])
            return
        changed = _changed(self._settings, settings)
        root, level = logging.getLogger(), logging.getLevelNamesMapping()[settings.log_level.value.upper()]
        root.setLevel(min(level, root.level))  # else this change hides that it was made
        if self.gateway is not None:
            self.gateway.allow(settings.request_limits)
        if self.guard is not None:
            self.guard.name(settings.cors_origins)
        _LOG.warning(
            "settings_reloaded", now_used=sorted(changed & _AT_ONCE), want_a_restart=sorted(changed - _AT_ONCE)
        )
        root.setLevel(level)


def _changed(before: Settings, now: Settings) -> set[str]:
    """Return what is set otherwise now, by the names that users write. Of a node's URL all counts, also its key."""
    from tollkeeper.serving.config.check import describe  # noqa: PLC0415 - most processes never need it

    shown = dict(describe(before))
    changed = {name for name, value in describe(now) if shown.pop(name, None) != value} | shown.keys()
    for name in before.networks.keys() & now.networks.keys():
        if before.networks[name].rpc_urls != now.networks[name].rpc_urls:
            changed.add(f"networks.{name}.rpc_url")
    return changed
