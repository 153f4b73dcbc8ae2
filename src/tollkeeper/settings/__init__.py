"""Settings: the only reader of environment, configuration file and key files (contract 1, security A-26).

Promises:
- `load_settings` gives the checked configuration of a process or, as SettingsError, everything that is wrong with it.
- An option wins over the environment, the environment over the file; an unknown name is an error.
- A secret comes from a file that nobody else can read, or from the environment; no error and no repr shows it.
- There are at most 45 settings beside those of networks, counted by a test. What nobody needs to turn is a constant,
  with its reason where it stands.

Begin with `model`, then `loading`, which gives each its meaning and default; `sources` finds the texts. This package
opens no database and no connection.
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
