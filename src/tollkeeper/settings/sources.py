"""Sources of settings' texts: options, environment, configuration file, key files (security A-26).

A setting `x` is `TOLLKEEPER_X` in the environment or `x` in `tollkeeper.toml`; a command's option wins over the
environment, the environment over the file. Everything that is wrong is noted, and an unknown name is wrong. Secrets
come from files that nobody else can read, or from the environment, never from the configuration file. This module does
not know which settings there are.
"""

from __future__ import annotations

import os
import stat
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO, TypeVar

from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.configuration import list_of
from tollkeeper.core.json_types import JsonMapping, JsonObject
from tollkeeper.core.networks import ALIASES
from tollkeeper.settings.model import SettingProblem, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

COMMAND: Final = "tollkeeper"
PREFIX: Final = "TOLLKEEPER_"
FILE_NAME: Final = "tollkeeper.toml"
CONFIG_VARIABLE: Final = "TOLLKEEPER_CONFIG"
_FILE_SIZE_BYTES: Final = 1024 * 1024


class _Given(NamedTuple):
    """One setting as it was given: the name by which its reader knows it, and its text."""

    source: str
    text: str
    from_file: bool = False


class Sources:
    """The texts of all settings by name, and the findings so far."""

    def __init__(self, file: JsonMapping, environ: Mapping[str, str], overrides: Mapping[str, str], base: Path) -> None:
        self.base = base
        self.findings: list[SettingProblem] = []
        self.sections: set[str] = set()  # networks that the file has a section for
        self._given: dict[str, _Given] = {}
        self._asked: set[str] = set()
        self._read_file(file)
        for variable, value in environ.items():
            if variable.startswith(PREFIX) and variable != CONFIG_VARIABLE:
                self._given[variable.removeprefix(PREFIX).lower()] = _Given(variable, value.strip())
        for name, value in overrides.items():
            self._given[name] = _Given(f"--{name.replace('_', '-')}", value)

    def _read_file(self, file: JsonMapping) -> None:
        values = {name: (name, value) for name, value in file.items() if name != "networks"}
        networks = file.get("networks", {})
        if not isinstance(networks, dict) or not all(isinstance(table, dict) for table in networks.values()):
            self._note("networks", "it is not a table of networks", "write a section [networks.base-sepolia]")
            networks = {}
        for network, table in networks.items():
            self.sections.add(ALIASES.get(network, network))
            for name, value in table.items():
                # One name whatever the source: rpc_url of [networks.base-sepolia] is TOLLKEEPER_RPC_URL_BASE_SEPOLIA.
                values[network_setting(name, network)] = (f"networks.{network}.{name}", value)
        for name, (source, value) in values.items():
            text = _toml_text(value)
            if text is None:
                remedy = "put a number with a point in quotes" if isinstance(value, float) else ""
                self._note(source, "it is not a string, a whole number, true, false or a list of these", remedy)
            else:
                self._given[name] = _Given(source, text, from_file=True)

    def report(self, name: str, problem: str, remedy: str = "") -> None:
        """Note one finding."""
        given = self._given.get(name)
        source = f"{name} ({PREFIX}{name.upper()})" if given is None else given.source
        self._note(source, problem, remedy)

    def _note(self, source: str, problem: str, remedy: str = "") -> None:
        self.findings.append(SettingProblem(source, problem, remedy))

    def text(self, name: str) -> str | None:
        """The text of a setting; an empty one counts as not given."""
        self._asked.add(name)
        given = self._given.get(name)
        return given.text or None if given is not None else None

    def is_empty(self, name: str) -> bool:
        """Return True if a setting is given as nothing."""
        given = self._given.get(name)
        return given is not None and not given.text

    def take(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """The value of a setting; its default also where the text is wrong, which is then reported."""
        value = self.optional(name, parse)
        return default if value is None else value

    def several(self, name: str, parse_item: Callable[[str], T]) -> tuple[T, ...]:
        """The values of a comma-separated setting; none where it is not given."""
        return self.optional(name, list_of(parse_item)) or ()

    def optional(self, name: str, parse: Callable[[str], T]) -> T | None:
        """The value of a setting; None where it is not given, or wrong, which is then reported."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse(text)
        except ApiError as error:
            self.report(name, error.message)
        except ValueError as error:
            self.report(name, str(error))
        return None

    def secret(self, name: str, parse: Callable[[str], T], needed_for: str | None) -> T | None:
        """Return what the variable `name`, or the files that `name`_file names, hold.

        A secret needed and absent is reported.
        """
        inline, path_text = self.text(name), self.text(f"{name}_file")
        if inline is not None and self._given[name].from_file:
            self.report(name, "a secret does not belong into the configuration file", f"use {name}_file")
            return None
        if inline is not None:
            return self.optional(name, parse)
        if path_text is None:
            if needed_for is not None:
                self.report(f"{name}_file", f"it is not set, and {needed_for}", "`tollkeeper init` makes one")
            return None
        try:
            return parse("\n".join(map(read_secret_file, self._paths(path_text))))
        except ValueError as error:
            self.report(f"{name}_file", str(error))
            return None

    def secret_paths(self, name: str) -> tuple[Path, ...]:
        """The files that a secret comes from; none where it comes from the environment."""
        path_text = self.text(f"{name}_file")
        return () if self.text(name) is not None or path_text is None else tuple(self._paths(path_text))

    def _paths(self, text: str) -> list[Path]:
        return [self.base / path for path in list_of(str)(text)]

    def report_unknown(self) -> None:
        """Report every name that nobody asked for."""
        for name, given in sorted(self._given.items()):
            if name not in self._asked:
                problem, remedy = "there is no such setting", "remove it or correct its spelling"
                self._note(given.source, problem, remedy)


def network_setting(name: str, network: str) -> str:
    """The name of a network's setting: `rpc_url` of base-sepolia is `rpc_url_base_sepolia`."""
    return f"{name}_{ALIASES.get(network, network).replace('-', '_')}"


def _toml_text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, list):
        texts = [_toml_text(item) for item in value]
        return None if any(text is None for text in texts) else ",".join(text or "" for text in texts)
    return None


def read_secret_file(path: Path) -> str:
    """The text of a key file. Raises: ValueError where it is absent, or readable by anybody but its owner."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise ValueError(f"{path} is not a file")
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ValueError(f"{path} can be read by others (mode {stat.S_IMODE(mode):04o}): run chmod 600 on it")
            return file.read(_FILE_SIZE_BYTES).decode("ascii")
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a key file") from None


def find_config(option: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The configuration file: the option, else TOLLKEEPER_CONFIG, else `tollkeeper.toml` here, else none."""
    if option is not None:
        return option
    if named := environ.get(CONFIG_VARIABLE):
        return Path(named)
    return Path(FILE_NAME) if Path(FILE_NAME).is_file() else None


def typed_command() -> str:
    """Our command as it can be typed again: as it was called, where the shell does not find it by its name."""
    from shlex import quote  # noqa: PLC0415 - no process that serves needs these
    from shutil import which  # noqa: PLC0415 - as above

    is_path = Path(sys.argv[0]).name == COMMAND and which(COMMAND) is None
    return quote(sys.argv[0]) if is_path else COMMAND


def wants_colours(stream: TextIO) -> bool:
    """Tell whether this is a terminal whose user has not set NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def read_toml(path: Path | None) -> JsonObject:
    """The configuration file's content; nothing where there is no file. Raises: SettingsError."""
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        finding = SettingProblem(str(path), f"it cannot be read ({error.strerror})", "`tollkeeper init` writes one")
        raise SettingsError((finding,)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError((SettingProblem(str(path), f"it is not TOML ({error})"),)) from None
