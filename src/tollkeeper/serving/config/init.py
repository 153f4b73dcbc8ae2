"""`tollkeeper init`: a commented configuration and fresh keys that `serve` then starts with (contract 1).

Writes nothing over anything: where one of its files is there already, it refuses before it has made the first. Key
files have mode 0600 in a directory of mode 0700. What this module does not do: reach a network.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from importlib.resources import files as resources
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tollkeeper.core import configuration as text_of
from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.keys.keyring import key_line, parse_private_key
from tollkeeper.core.paygates.model import check_payment_address
from tollkeeper.core.wallets import parse_address_of, parse_wallet, shown_address
from tollkeeper.settings.loading import DEFAULT_PORT
from tollkeeper.settings.model import Role
from tollkeeper.settings.sources import FILE_NAME
from tollkeeper.storage.engine.private_files import open_private_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tollkeeper.core.networks import Network

T = TypeVar("T")

_KEYS: Final = "keys"
_AUTH: Final = "auth.keys"
_ENCRYPTION: Final = "encryption.keys"
_SIGNER: Final = "signer.key"
_KEY_SIZE_BYTES: Final = 32


class InitError(Exception):
    """Nothing was written; the message says why."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Choices of the user. `data_dir` None: beside the configuration, unless that is in /etc."""

    role: Role
    network: Network
    rpc_url: str | None
    host: str
    port: int
    public_url: str
    payment_address: str | None
    hub_url: str | None = None
    data_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class Initialised:
    """Result: the file made, the place of data, and the accounts to fund, which pay for settlements, if any do."""

    config_path: Path
    data_dir: Path
    payers: tuple[str, ...]


def parse_choices(  # noqa: PLR0913 - each is an option of the command
    network: str,
    rpc_url: str | None,
    host: str,
    port: int | None,
    public_url: str | None,
    payment_address: str | None,
    *,
    role: Role = Role.SERVE,
    hub_url: str | None = None,
    data_dir: Path | None = None,
) -> Choices:
    """The choices as they were typed. Raises: ValueError naming the option that is wrong."""

    def parsed(option: str, parse: Callable[[str], T], text: str) -> T:
        try:
            return parse(text)
        except ApiError as error:
            raise ValueError(f"{option}: {error.message}") from None
        except ValueError as error:
            raise ValueError(f"{option}: {error}") from None

    host = parsed("--host", text_of.parse_host, host)
    if public_url is None and not text_of.is_loopback(host):
        raise ValueError(f"--public-url: give the URL by which clients reach {host}")
    chosen = parsed("--network", text_of.parse_network, network)
    if payment_address is not None and role is Role.HUB:
        raise ValueError("--payment-address: a hub sells nothing, its gateways do")
    if hub_url is not None and role is not Role.GATEWAY:
        raise ValueError(f"--hub-url: {role.value} has a hub of its own, or is one")
    port = DEFAULT_PORT[role] if port is None else port

    def recipient(text: str) -> str:
        parse_address_of(chosen.family, text, field="it")
        return shown_address(check_payment_address(text, chosen.name, frozenset({parse_wallet(chosen.usdc.address)})))

    return Choices(
        role=role,
        network=chosen,
        rpc_url=None if rpc_url is None else parsed("--rpc-url", text_of.parse_rpc_url, rpc_url),
        host=host,
        port=port,
        public_url=parsed("--public-url", text_of.parse_origin, public_url or text_of.local_url(host, port)).text,
        payment_address=None if payment_address is None else parsed("--payment-address", recipient, payment_address),
        hub_url=None if hub_url is None else parsed("--hub-url", text_of.parse_url, hub_url),
        data_dir=data_dir,
    )


def initialise(directory: Path, choices: Choices) -> Initialised:
    """Write the configuration and the keys into `directory`, which is made. Raises: InitError."""
    config_path, keys = directory / FILE_NAME, directory / _KEYS
    made = _keys(choices.role)
    data_dir = data_place(directory) if choices.data_dir is None else choices.data_dir.absolute()
    files = {keys / name: text for name, text in made.items()} | {config_path: _configuration(choices, made, data_dir)}
    there = sorted(str(path) for path in files if path.exists() or path.is_symlink())
    if there:
        raise InitError(f"{', '.join(there)} is there already; nothing was written")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        keys.mkdir(mode=0o700, exist_ok=True)
        keys.chmod(0o700)
        for path, text in files.items():
            with open_private_file(path) as file:
                file.write(text.encode("ascii"))
                os.fsync(file.fileno())
    except OSError as error:
        raise InitError(f"{error.filename} cannot be written ({error.strerror})") from error
    signer = made.get(_SIGNER)
    row = FAMILIES[choices.network.family]
    payers = () if signer is None else row.fee_accounts(parse_private_key(signer).reveal())
    return Initialised(config_path, directory / data_dir, payers)


def data_place(directory: Path) -> Path:
    """Return where data goes: beside the configuration, but for one in /etc, which is no place for it."""
    is_in_etc = directory.absolute().resolve().is_relative_to("/etc")
    return Path("/var/lib/tollkeeper") if is_in_etc else Path("data")


def _keys(role: Role) -> dict[str, str]:
    """Make the keys that a part uses, as texts by the names of their files."""
    made = {_AUTH: key_line(f"a-{secrets.token_hex(4)}", secrets.token_bytes(_KEY_SIZE_BYTES))}
    if role is not Role.HUB:
        made[_ENCRYPTION] = key_line(f"e-{secrets.token_hex(4)}", secrets.token_bytes(_KEY_SIZE_BYTES))
    if role is not Role.GATEWAY:
        made[_SIGNER] = f"0x{secrets.token_bytes(_KEY_SIZE_BYTES).hex()}\n"
    return made


def _template(role: Role) -> str:
    """Return the commented configuration of a part, with names in braces where its own values go.

    Above each block the template says which parts read it.
    """
    text = resources("tollkeeper.serving.config").joinpath("configuration.template").read_text("utf-8")
    blocks = (block.partition("\n") for block in text.split("#: ")[1:])
    return "".join(block for parts, _, block in blocks if role in parts.split()).rstrip("\n") + "\n"


def _configuration(choices: Choices, keys: Iterable[str], data_dir: Path) -> str:
    def line(name: str, value: str | None, example: str) -> str:
        return f'# {name} = "{example}"' if value is None else f"{name} = {json.dumps(value)}"

    key_files = [f'{name.replace(".", "_")}_file = "{_KEYS}/{name}"' for name in sorted(keys)]
    other = "https://pay.example.org" if choices.role is Role.HUB else choices.hub_url or "https://hub.example.org"
    return _template(choices.role).format(
        host=json.dumps(choices.host),
        port=choices.port,
        public_url=json.dumps(choices.public_url),
        data_dir=json.dumps(str(data_dir)),
        files=json.dumps(f"{data_dir}/files"),
        network=choices.network.name,
        payment_address=line("default_payment_address", choices.payment_address, "0x..."),
        hub_url=line("hub_url", choices.hub_url, "https://hub.example.org"),
        other=json.dumps(other),
        key_files="\n".join(key_files),
        rpc_url=line("rpc_url", choices.rpc_url, "https://..."),
    )
