"""The call in which every way to start a process that serves ends."""
# ruff: noqa: PLC0415 - what a process does not need is not imported

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tollkeeper.settings.loading import load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tollkeeper.settings.model import Role, Settings


def serve(role: Role, config: str | None, overrides: Mapping[str, str]) -> None:
    """Run the parts of a role until a signal. Raises: SettingsError, StartError, StorageError."""

    def read() -> Settings:
        return load_settings(role, None if config is None else Path(config), overrides=overrides)

    settings = read()
    from tollkeeper.serving.run import serve as serve_settings

    serve_settings(settings, read)
