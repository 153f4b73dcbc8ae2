"""What the benchmarks of calls stand on: callers, targets and chain on one core, the gateway on the other.

The target is an nginx, which also plays a facilitator that finds every payment valid and every settlement done at once.
A second nginx, which proxies, is the reference: the same requests to the same target, with no payment logic at all, on
the core of the gateway and in turns with it. Rates are what counts, as callers see them. Where other programs use the
machine at the same time, or the callers' core is the limit (nginx on small answers, 1 MiB bodies), `cpu_ratio` says
more: answers per second of processor time that each side used itself, kernel included.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.gateway import COMMAND, Gateway, family_cpu_seconds, gateway
from bench.measuring import Result, alternate, cores
from bench.nginx import nginx
from bench.processes import serving
from bench.wrk import CONNECTIONS
from tests.edge.targets import certificate
from tests.ports import free_port
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.sandbox.evm.node import TOKEN_NAME
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.wrk import Calls, Run

SMALL_BYTES: Final = 200
MEDIUM_BYTES: Final = 16 * 1024
LARGE_BYTES: Final = 1024 * 1024
HUGE_BYTES: Final = 10 * LARGE_BYTES
ROUNDS: Final = 7
ROUND_SECONDS: Final = 2
V2_NETWORK: Final = "eip155:84532"

# `/other` is /small with a head that differs from answer to answer. $request_id is 32 hexadecimal digits, new for each.
_TARGET: Final = """\
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        listen 127.0.0.1:{tls_port} ssl backlog=4096;
        ssl_certificate {directory}/localhost.pem;
        ssl_certificate_key {directory}/localhost.key;
        location /small {{ return 200 "{small}"; }}
        location /other {{
            add_header ETag '"$request_id"';
            add_header X-Request-Id $request_id;
            add_header Server-Timing "total;dur=$request_time";
            return 200 "{small}";
        }}
        location ~ ^/medium {{ alias {directory}/medium; }}
        location ~ ^/large {{ alias {directory}/large; }}
        location ~ ^/double {{ alias {directory}/double; }}
        location ~ ^/huge {{ alias {directory}/huge; }}

        default_type application/json;
        location ~ /supported$ {{ return 200 '{supported}'; }}
        location ~ /verify$ {{ return 200 '{{"isValid":true,"payer":"{payer}"}}'; }}
        location ~ ^/v1/settle$ {{ return 200 '{{"success":true,"payer":"{payer}","network":"base-sepolia",\
"transaction":"0x$request_id$request_id"}}'; }}
        location ~ ^/v2/settle$ {{ return 200 '{{"success":true,"payer":"{payer}","network":"{v2_network}",\
"transaction":"0x$request_id$request_id"}}'; }}
    }}
"""
# Bodies go through memory only, as ours do.
_PROXY: Final = """\
    upstream plain {{ server 127.0.0.1:{target_port}; keepalive 512; keepalive_requests 1000000000; }}
    upstream secure {{ server 127.0.0.1:{tls_port}; keepalive 512; keepalive_requests 1000000000; }}
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_buffers 16 64k;
    proxy_max_temp_file_size 0;
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{ proxy_pass http://plain; }}
        location /secure/ {{
            proxy_pass https://secure/;
            proxy_ssl_verify on;
            proxy_ssl_name localhost;  # nginx matches no addresses
            proxy_ssl_trusted_certificate {trusted};
        }}
        location ~ ^/challenge {{ alias {challenge}; }}
    }}
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """A running target, and what can be put beside it."""

    directory: Path
    port: int
    tls_port: int

    @property
    def target(self) -> str:
        """The target over plain HTTP."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def secure_target(self) -> str:
        """The same behind TLS."""
        return f"https://localhost:{self.tls_port}"

    @contextmanager
    def chain(self) -> Iterator[str]:
        """The node of the embedded chain."""
        with serving("embedded_node", cores()[1]) as node:
            yield node.url

    @contextmanager
    def serve(self, node_url: str = "") -> Iterator[Gateway]:
        """`tollkeeper serve`, gateway and hub in one process, on this chain or one of its own."""
        trusted = str(self.directory / "localhost.pem")
        with ExitStack() as running:
            node = node_url or running.enter_context(self.chain())
            yield running.enter_context(gateway(self.directory / "serve", node, cores()[0], SSL_CERT_FILE=trusted))

    @contextmanager
    def instant(self, name: str = "instant", database_url: str = "") -> Iterator[Gateway]:
        """A gateway apart, whose facilitator is the target's: purchases cost what they cost here."""
        url = f"{self.target}/v1"
        nowhere = "http://127.0.0.1:1"
        env = {"TOLLKEEPER_HUB_URL": url} | ({"TOLLKEEPER_DATABASE_URL": database_url} if database_url else {})
        with gateway(self.directory / name, nowhere, cores()[0], role="gateway", program=COMMAND, **env) as own:
            yield own

    @contextmanager
    def reference(self, challenge_bytes: int = 0) -> Iterator[tuple[str, int]]:
        """URL and process id of the nginx on the gateway's core. /challenge is a file of so many bytes."""
        port = free_port()
        challenge = self.directory / "challenge"
        challenge.write_bytes(b"x" * challenge_bytes)
        http = _PROXY.format(
            target_port=self.port,
            tls_port=self.tls_port,
            port=port,
            trusted=self.directory / "localhost.pem",
            challenge=challenge,
        )
        with nginx(http, port, cores()[0], self.directory / "proxy") as pid:
            yield f"http://127.0.0.1:{port}", pid


@contextmanager
def scene() -> Iterator[Scene]:
    """The target, until the block ends."""
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="tollkeeper-bench-")))
        (directory / "medium").write_bytes(b"m" * MEDIUM_BYTES)
        (directory / "large").write_bytes(b"l" * LARGE_BYTES)
        (directory / "double").write_bytes(b"d" * 2 * LARGE_BYTES)
        (directory / "huge").write_bytes(b"h" * HUGE_BYTES)
        certificate(directory, "localhost")
        made = Scene(directory, free_port(), free_port())
        domain = {"name": TOKEN_NAME, "version": "2"}
        kinds = [
            {"x402Version": 1, "scheme": "exact", "network": "base-sepolia", "extra": domain},
            {"x402Version": 2, "scheme": "exact", "network": V2_NETWORK},
        ]
        http = _TARGET.format(
            port=made.port,
            tls_port=made.tls_port,
            directory=directory,
            small="s" * SMALL_BYTES,
            supported=json.dumps({"kinds": kinds, "extensions": ["confirm"], "signers": {}}),
            payer=checksum_address(derive_wallets().buyer.address),
            v2_network=V2_NETWORK,
        )
        running.enter_context(nginx(http, made.port, cores()[1], directory / "target"))
        yield made


def compare(
    name: str,
    unit: str,
    ours: Calls,
    our_pid: int,
    theirs: Calls,
    their_pid: int,
    *,
    rounds: int = ROUNDS,
) -> Result:
    """Rates of both sides in turns, and each side's answers per second of its own processor time.

    Of the latencies the medians of the rounds, and what ours adds, at the full load of 64 connections.
    """
    load_core = cores()[1]
    also: dict[str, float | str] = {}
    spent: dict[str, list[tuple[int, float]]] = {"ours": [], "reference": []}
    runs: dict[str, list[Run]] = {"ours": [], "reference": []}

    def turn(side: str, calls: Calls, pid: int) -> float:
        before = family_cpu_seconds(pid)
        run = calls.run(ROUND_SECONDS, load_core, CONNECTIONS)
        spent[side].append((run.answers, family_cpu_seconds(pid) - before))
        runs[side].append(run)
        return run.rate

    result = alternate(
        name,
        unit,
        rounds,
        lambda: turn("ours", ours, our_pid),
        lambda: turn("reference", theirs, their_pid),
        also=also,
    )
    for side, turns in spent.items():
        answers, seconds = (sum(one[place] for one in turns[1:]) for place in (0, 1))
        also[f"{side}_cpu_us"] = 1e6 * seconds / answers
    also["cpu_ratio"] = float(also["reference_cpu_us"]) / float(also["ours_cpu_us"])
    also |= latencies({side: its[1:] for side, its in runs.items()})
    return result


def latencies(runs: dict[str, list[Run]]) -> dict[str, float | str]:
    """The medians of each side's p50 and p99, and what ours adds to the `reference`."""
    told: dict[str, float | str] = {}
    for name in ("p50_ms", "p99_ms"):
        ours, theirs = (statistics.median(getattr(one, name) for one in runs[side]) for side in ("ours", "reference"))
        told |= {f"ours_{name}": ours, f"reference_{name}": theirs, f"added_{name}": ours - theirs}
    return told
