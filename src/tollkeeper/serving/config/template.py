"""The commented configuration that `tollkeeper init` writes: of each part, what that part reads."""

from __future__ import annotations

from typing import Final

from tollkeeper.settings.model import Role

_ALL: Final = frozenset(Role)
_SELL: Final = frozenset({Role.SERVE, Role.GATEWAY})
_SETTLE: Final = frozenset({Role.SERVE, Role.HUB})
_GATEWAY: Final = frozenset({Role.GATEWAY})
_APART: Final = frozenset({Role.GATEWAY, Role.HUB})

_BLOCKS: Final = (
    (
        _ALL,
        """\
# Tollkeeper's configuration. Every setting here can also be given as an environment variable, which then wins:
# port is TOLLKEEPER_PORT, and rpc_url of [networks.base-sepolia] is TOLLKEEPER_RPC_URL_BASE_SEPOLIA.
# Check it with `tollkeeper config check`. Paths are relative to this file.
""",
    ),
    (
        _ALL,
        """\
# Where to listen, and the one URL by which the world reaches us: it stands in every link, receipt and login message.
host = {host}
port = {port}
public_url = {public_url}
""",
    ),
    (
        _ALL,
        """\
# Where the databases are.
data_dir = {data_dir}
""",
    ),
    (
        _SELL,
        """\
# The network that new gates are paid on, unless they name another.
default_network = "{network}"
""",
    ),
    (
        _SELL,
        """\
# Who is paid where a new gate names nobody and its creator is not logged in.
{payment_address}
""",
    ),
    (
        _SELL,
        """\
# Gates without an owner: "create" (each with a management token of its own), or "off". Unless it is set: "create" while
# public_url is this machine's own and nothing proxies for it, else "off".
# anonymous_paygates = "off"
""",
    ),
    (
        _SELL,
        """\
# Targets on private addresses are refused, so that nobody can sell your inner network. True is for development.
# allow_private_targets = false
""",
    ),
    (
        _SELL,
        """\
# Where files that are sold are kept (a directory, or "s3://bucket/prefix", which the environment describes), how many
# MB stay free in a directory, how long a link to a file is good.
# files = {files}
# files_min_free_mb = 1024
# download_lifetime_seconds = 900
""",
    ),
    (
        _SELL,
        """\
# How many purchases, and how much USDC, are served before the chain confirmed them, where a gate's owner chose
# assumeValid: of one payer. All payers of one gate together may owe ten times as much.
# assume_valid_max_payments = 20
# assume_valid_max_value = "20"
""",
    ),
    (
        _GATEWAY,
        """\
# The hub, or another x402 facilitator, that verifies and settles.
{hub_url}
""",
    ),
    (
        _APART,
        """\
# The other part's public URL: its logins are taken, and a hub takes purchase data of gateways that it names.
# trusted_issuers = [{other}]
""",
    ),
    (
        _SELL,
        """\
# The body of a 402: "superset" (whatever a client expects), "x402-a" or "x402-b".
# challenge_profile = "superset"
""",
    ),
    (
        _ALL,
        """\
# Proxies in front of this machine, and web pages of other origins that may use /api.
# trusted_proxies = ["10.0.0.0/8"]
# cors_origins = ["https://dashboard.example.org"]
""",
    ),
    (
        _SELL,
        """\
# The dashboard's origin, a host name of its own that leads here as well. On this machine alone it is public_url.
# app_url = "https://app.example.org"
""",
    ),
    (
        _ALL,
        """\
# Where Prometheus finds /metrics; empty: nowhere.
# metrics_address = "127.0.0.1:8403"
""",
    ),
    (
        _SELL,
        """\
# Requests per minute (0: no limit): unpaid or refused at gates, of one address; under /api, of one address and of one
# wallet; logins of one address. This machine's own are not counted. Behind a proxy, set trusted_proxies.
# unpaid_requests_per_minute = 600
# api_requests_per_minute = 600
# login_requests_per_minute = 60
""",
    ),
    (
        _ALL,
        """\
# How long a connection is kept between two requests: longer than the proxy's, so that the proxy is the one to close.
# idle_timeout_seconds = 75
""",
    ),
    (
        _SELL,
        """\
# Days that rows of the request log are kept, and each hour's sums of calls and latencies.
# request_log_days = 30
# statistics_days = 730
""",
    ),
    (
        _SELL,
        """\
# The largest body of a call that is forwarded; a file's upload has no limit.
# call_body_max_mb = 100
""",
    ),
    (
        _ALL,
        """\
# Blocks that a settlement must lie deep before it is final.
# confirm_depth = 1
# More of them from so much USDC on; unless set, on base ["100:3", "1000:10"] and on solana ["100:2"]. []: never.
# confirm_depth_steps = ["100:3", "1000:12"]
# How many of a network's nodes must show what became of a settlement; 0: two, where there are several.
# confirm_nodes = 0
""",
    ),
    (
        _SETTLE,
        """\
# What one settlement may cost (wei per gas, and gas), and how much gas all of an hour may use.
# max_fee_per_gas_wei = 50000000000
# gas_limit = 150000
# gas_budget_per_hour = 18000000000
# The same of an hour on Solana, in lamports.
# fee_budget_per_hour_lamports = 2000000000
""",
    ),
    (
        _ALL,
        """\
# Gates that are cheaper are not made, and payments of less not settled: what a settlement's gas costs you, or more.
# min_price = "0.001"
""",
    ),
    (
        _SETTLE,
        """\
# From how many settlements under way on a network they share transactions; 0: each goes alone.
# batch_queue_depth = 16
""",
    ),
    (
        _ALL,
        """\
# How long a stop waits for accepted requests.
# shutdown_timeout_seconds = 600
""",
    ),
    (
        _ALL,
        """\
# "debug", "info", "warning" or "error"; "auto" (text on a terminal, else JSON), "json" or "text".
# log_level = "info"
# log_format = "auto"
""",
    ),
    (
        _ALL,
        """\
# Secrets stay out of this file. These files hold keys, one a line; nobody but their owner may read them.
{key_files}
""",
    ),
    (
        _SETTLE,
        """\
# A section enables a network. rpc_url: a JSON-RPC node of it. The token is the network's USDC unless asset names
# another; its EIP-712 name and version are read from the chain. batcher: where `tollkeeper contracts deploy` put it, if
# that said so. wallet_factories = ["0x..."]: contracts that the hub may call to deploy a payer's wallet with its first
# payment (ERC-6492); none: such payments are refused.
[networks.{network}]
{rpc_url}
""",
    ),
    (
        _GATEWAY,
        """\
# A section enables a network. rpc_url: a JSON-RPC node of it, which a gateway with a Tollkeeper hub needs not. The
# token is the network's USDC unless asset names another.
[networks.{network}]
{rpc_url}
""",
    ),
)


def template_of(role: Role) -> str:
    """Return the text for a part, with names in braces where its own values go."""
    return "\n".join(text for parts, text in _BLOCKS if role in parts)
