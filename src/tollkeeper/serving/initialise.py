"""`tollkeeper init`: a commented configuration and fresh keys that `serve` then starts with (contract 1).

Writes nothing over anything: where one of its files is there already, it refuses before it has made the first. Key
files have mode 0600 in a directory of mode 0700. What this module does not do: reach a network.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.evm import address_of_key, checksum_address
from tollkeeper.core.keyring import key_line
from tollkeeper.settings import FILE_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from tollkeeper.core.networks import Network

_KEYS: Final = "keys"
_KEY_SIZE_BYTES: Final = 32

_TEMPLATE: Final = """\
# Tollkeeper's configuration. Every setting here can also be given as an environment variable, which then wins:
# port is TOLLKEEPER_PORT, and rpc_url of [networks.base-sepolia] is TOLLKEEPER_RPC_URL_BASE_SEPOLIA.
# Check it with `tollkeeper config check`. Paths are relative to this file.

# Where to listen, and the one URL by which the world reaches us: it stands in every link, receipt and login message.
host = {host}
port = {port}
public_url = {public_url}

# Where the databases are.
data_dir = "data"

# The network that new gates are paid on, unless they name another.
default_network = "{network}"

# Who is paid where a new gate names nobody and its creator is not logged in.
{payment_address}

# Gates without an owner: "create" (each with a management token of its own), or "off". Unless it is set: "create" while
# public_url is this machine's own and nothing proxies for it, else "off".
# anonymous_paygates = "off"

# Targets on private addresses are refused, so that nobody can sell your inner network. True is for development.
# allow_private_targets = false

# The body of a 402: "superset" (whatever a client expects), "x402-a" or "x402-b".
# challenge_profile = "superset"

# Proxies whose X-Forwarded-* headers are believed, and web pages that may manage gates.
# trusted_proxies = ["10.0.0.0/8"]
# cors_origins = ["https://dashboard.example.org"]

# Blocks that a settlement must lie deep before it is final, and what settling may cost (wei; wei in an hour).
# confirm_depth = 1
# max_fee_per_gas_wei = 50000000000
# gas_budget_per_hour_wei = 50000000000000000

# "debug", "info", "warning" or "error"; "auto" (text on a terminal, else JSON), "json" or "text".
# log_level = "info"
# log_format = "auto"

# Secrets stay out of this file. Each of these holds keys, one a line; nobody but their owner may read them.
encryption_keys_file = "keys/encryption.keys"
auth_keys_file = "keys/auth.keys"
signer_keys_file = "keys/signer.keys"

# A section enables a network. rpc_url: a JSON-RPC node of it. The token is the network's USDC unless asset names
# another; its EIP-712 name and version are read from the chain.
[networks.{network}]
{rpc_url}
"""


class InitError(Exception):
    """Nothing was written; the message says why."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user chose."""

    network: Network
    rpc_url: str | None
    host: str
    port: int
    public_url: str
    payment_address: str | None


@dataclass(frozen=True, slots=True)
class Initialised:
    """What was made. `relayer` (EIP-55) pays the gas of settlements and must be funded."""

    config_path: Path
    relayer: str


def initialise(directory: Path, choices: Choices) -> Initialised:
    """Write the configuration and the keys into `directory`, which is made. Raises: InitError."""
    config_path, keys = directory / FILE_NAME, directory / _KEYS
    signer = secrets.token_bytes(_KEY_SIZE_BYTES)
    files = {
        keys / "encryption.keys": key_line("e1", secrets.token_bytes(_KEY_SIZE_BYTES)),
        keys / "auth.keys": key_line("a1", secrets.token_bytes(_KEY_SIZE_BYTES)),
        keys / "signer.keys": f"0x{signer.hex()}\n",
        config_path: _configuration(choices),
    }
    there = sorted(str(path) for path in files if path.exists() or path.is_symlink())
    if there:
        msg = f"{', '.join(there)} is there already; nothing was written"
        raise InitError(msg)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        keys.mkdir(mode=0o700, exist_ok=True)
        keys.chmod(0o700)
        for path, text in files.items():
            _write_new(path, text)
    except OSError as error:
        msg = f"{error.filename} cannot be written ({error.strerror})"
        raise InitError(msg) from error
    return Initialised(config_path, checksum_address(address_of_key(signer)))


def _write_new(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _configuration(choices: Choices) -> str:
    def line(name: str, value: str | None, example: str) -> str:
        return f'# {name} = "{example}"' if value is None else f"{name} = {json.dumps(value)}"

    return _TEMPLATE.format(
        host=json.dumps(choices.host),
        port=choices.port,
        public_url=json.dumps(choices.public_url),
        network=choices.network.name,
        payment_address=line("default_payment_address", choices.payment_address, "0x..."),
        rpc_url=line("rpc_url", choices.rpc_url, "https://..."),
    )
