"""`tollkeeper init`: a commented configuration and fresh keys that `serve` then starts with (contract 1).

Writes nothing over anything: where one of its files is there already, it refuses before it has made the first. Key
files have mode 0600 in a directory of mode 0700. What this module does not do: reach a network.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from tollkeeper.core import configuration as text_of
from tollkeeper.core.errors import ApiError
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.keyring import key_line
from tollkeeper.core.paygates import check_payment_address
from tollkeeper.core.wallets import parse_address_of, parse_wallet, shown_address
from tollkeeper.settings import FILE_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tollkeeper.core.networks import Network

T = TypeVar("T")

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

# Where files that are sold are kept (a directory, or "s3://bucket/prefix", which the environment describes), how many
# MB stay free in a directory, how long a link to a file is good. Each database needs a place of its own.
# files = "data/files"
# files_min_free_mb = 1024
# download_lifetime_seconds = 900

# How many purchases, and how much USDC, are served before the chain confirmed them, where a gate's owner chose
# assumeValid: of one payer, and of all payers of one gate (unless they are set, ten times the former).
# assume_valid_max_payments = 20
# assume_valid_max_value = "20"
# assume_valid_gate_max_payments = 200
# assume_valid_gate_max_value = "200"

# Where gateway and hub run apart: for the gateway the facilitator's URL, and the other part's public URL, whose logins
# are taken.
# hub_url = "https://hub.example.org"
# trusted_issuers = ["https://hub.example.org"]

# The body of a 402: "superset" (whatever a client expects), "x402-a" or "x402-b".
# challenge_profile = "superset"

# Proxies in front of this machine (with one, anonymous_paygates is "off" unless it is set), and web pages that may
# manage gates.
# trusted_proxies = ["10.0.0.0/8"]
# cors_origins = ["https://dashboard.example.org"]

# Where Prometheus finds /metrics; empty: nowhere.
# metrics_address = "127.0.0.1:8403"

# Requests per minute (0: no limit): unpaid or refused at gates, of one address; under /api, of one address and of one
# wallet; logins of one address. This machine's own are not counted. Behind a proxy, set trusted_proxies.
# unpaid_requests_per_minute = 600
# api_requests_per_minute = 600
# wallet_requests_per_minute = 600
# login_requests_per_minute = 60

# How long a caller may take, or its connection is closed: to send a head, to fall behind with a body that comes
# slower than body_min_bytes_per_second, to read an answer (while nothing of it is taken), between two requests.
# head_timeout_seconds = 15
# body_timeout_seconds = 60
# body_min_bytes_per_second = 1024
# read_timeout_seconds = 60
# idle_timeout_seconds = 75

# Days that rows of the request log are kept, and each hour's sums of calls and latencies.
# request_log_days = 30
# statistics_days = 730

# The largest body of a call that is forwarded; a file's upload has no limit.
# call_body_max_mb = 100

# Blocks that a settlement must lie deep before it is final, and what one settlement may cost (wei per gas, and gas).
# confirm_depth = 1
# More of them from so much USDC on; unless set, on base ["100:3", "1000:10"] and on solana ["100:2"]. []: never.
# confirm_depth_steps = ["100:3", "1000:12"]
# How many of a network's nodes must show what became of a settlement; 0: two, where there are several.
# confirm_nodes = 0
# max_fee_per_gas_wei = 50000000000
# gas_limit = 150000
# gas_budget_per_hour = 18000000000
# On top of gas_limit, where a factory deploys the payer's wallet first.
# deploy_gas_limit = 500000

# The same on Solana: compute units of one settlement, micro-lamports per unit, lamports that may be signed in an hour.
# compute_limit_max = 400000
# compute_price_max_micro_lamports = 100000
# fee_budget_per_hour_lamports = 2000000000

# How many settlements may be under way on each network; half of them are kept for trusted gateways, if there are any.
# settlements_max = 20000

# Gates that are cheaper are not made, and payments of less not settled: what a settlement's gas costs you, or more.
# min_price = "0.001"

# From how many settlements under way on a network they share transactions (0: never), and how many share one.
# batch_queue_depth = 16
# batch_items_max = 20

# How long a stop waits for accepted requests.
# shutdown_timeout_seconds = 600

# "debug", "info", "warning" or "error"; "auto" (text on a terminal, else JSON), "json" or "text".
# log_level = "info"
# log_format = "auto"

# Secrets stay out of this file. These files hold keys, one a line; nobody but their owner may read them.
encryption_keys_file = "keys/encryption.keys"
auth_keys_file = "keys/auth.keys"
signer_key_file = "keys/signer.key"

# A section enables a network. rpc_url: a JSON-RPC node of it. The token is the network's USDC unless asset names
# another; its EIP-712 name and version are read from the chain. batcher: where `tollkeeper contracts deploy` put it, if
# that said so. wallet_factories = ["0x..."]: contracts that the hub may call to deploy a payer's wallet with its first
# payment (ERC-6492); none: such payments are refused.
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
    """What was made, and who is to be funded: the accounts on the chosen network that pay for settlements."""

    config_path: Path
    payers: tuple[str, ...]


def parse_choices(
    network: str, rpc_url: str | None, host: str, port: int, public_url: str | None, payment_address: str | None
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

    def recipient(text: str) -> str:
        parse_address_of(chosen.family, text, field="it")
        return shown_address(check_payment_address(text, chosen.name, frozenset({parse_wallet(chosen.usdc.address)})))

    return Choices(
        network=chosen,
        rpc_url=None if rpc_url is None else parsed("--rpc-url", text_of.parse_rpc_url, rpc_url),
        host=host,
        port=port,
        public_url=parsed("--public-url", text_of.parse_origin, public_url or text_of.local_url(host, port)).text,
        payment_address=None if payment_address is None else parsed("--payment-address", recipient, payment_address),
    )


def initialise(directory: Path, choices: Choices) -> Initialised:
    """Write the configuration and the keys into `directory`, which is made. Raises: InitError."""
    config_path, keys = directory / FILE_NAME, directory / _KEYS
    signer = secrets.token_bytes(_KEY_SIZE_BYTES)
    files = {
        keys / "encryption.keys": key_line(f"e-{secrets.token_hex(4)}", secrets.token_bytes(_KEY_SIZE_BYTES)),
        keys / "auth.keys": key_line(f"a-{secrets.token_hex(4)}", secrets.token_bytes(_KEY_SIZE_BYTES)),
        keys / "signer.key": f"0x{signer.hex()}\n",
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
    return Initialised(config_path, FAMILIES[choices.network.family].fee_accounts(signer))


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
