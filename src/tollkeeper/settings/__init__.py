"""Settings: the only reader of environment, configuration file and key files (contract 1, security A-26).

`load_settings` gives the checked configuration of a process or, as SettingsError, everything that is wrong with it.
What this package does not do: open a database or a connection.
"""

from __future__ import annotations

from tollkeeper.settings.loading import DEFAULT_PORT, inspect_settings, load_settings
from tollkeeper.settings.model import (
    DepthSettings,
    ExposureCaps,
    FileSettings,
    GasCaps,
    NetworkSettings,
    Peers,
    Role,
    SettingProblem,
    Settings,
    SettingsError,
)
from tollkeeper.settings.sources import (
    CONFIG_VARIABLE,
    FILE_NAME,
    find_config,
    read_secret_file,
    typed_command,
    wants_colours,
)

__all__ = [
    "CONFIG_VARIABLE",
    "DEFAULT_PORT",
    "FILE_NAME",
    "DepthSettings",
    "ExposureCaps",
    "FileSettings",
    "GasCaps",
    "NetworkSettings",
    "Peers",
    "Role",
    "SettingProblem",
    "Settings",
    "SettingsError",
    "find_config",
    "inspect_settings",
    "load_settings",
    "read_secret_file",
    "typed_command",
    "wants_colours",
]
