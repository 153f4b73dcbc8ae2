"""`tollkeeper doctor`: everything that an operator would look at, each finding with what to do about it.

It begins with what `config check` finds. It changes nothing and sends nothing to a chain.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tollkeeper.serving.config.check import BY_DOCTOR, check_settings
from tollkeeper.serving.config.findings import Findings
from tollkeeper.serving.doctor.nodes import examine_nodes
from tollkeeper.serving.doctor.public_url import examine_public_url
from tollkeeper.settings.loading import inspect_settings
from tollkeeper.settings.model import Role, SettingProblem
from tollkeeper.storage.urls import server_of, sqlite_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.settings.model import Settings

_LOW_BYTES: Final = 1024**3
_FULL_BYTES: Final = 100 * 1024**2


def examine(role: Role, config: Path | None) -> Findings:
    """Look at everything that belongs to a configuration.

    Raises: SettingsError where the configuration's file cannot be read at all.
    """
    return examine_settings(*inspect_settings(role, config))


def examine_settings(settings: Settings, wrong: Sequence[SettingProblem] = ()) -> Findings:
    """Look at everything that belongs to these settings, of which those were found `wrong`."""
    found = check_settings(settings, wrong)
    found.good = [f"{name}: {value}" for name, value in found.values if name.endswith((".nodes", ".signer"))]
    found.unchecked = [one for one in found.unchecked if BY_DOCTOR not in one]
    if not found.errors:
        found.good.append("settings, keys and database can be used")
    _examine_disks(settings, found)
    asyncio.run(_examine_network(settings, found))
    return found


async def _examine_network(settings: Settings, found: Findings) -> None:
    await asyncio.gather(
        examine_public_url(settings, found),
        *(examine_nodes(network, found) for network in settings.networks.values() if network.rpc_urls),
    )


def _examine_disks(settings: Settings, found: Findings) -> None:
    """Tell how much room is left where a database in a file and sold files are."""
    folders = [] if server_of(settings.database_url) else [sqlite_path(settings.database_url).parent]
    if settings.role is not Role.HUB and isinstance(settings.files.place, Path):
        folders.append(settings.files.place)
    rooms: dict[int, tuple[Path, int]] = {}  # one for each disk, of those that are there
    for folder in folders:
        with suppress(OSError):  # `config check` says why
            rooms.setdefault(folder.stat().st_dev, (folder, shutil.disk_usage(folder).free))
    for folder, free in rooms.values():
        told = f"{free / 1024**3:.1f} GiB are free at {folder}"
        if free >= _LOW_BYTES:
            found.good.append(told)
            continue
        tell = found.fail if free < _FULL_BYTES else found.warn
        tell("disk", told, "make room: on a full disk nothing is sold")
