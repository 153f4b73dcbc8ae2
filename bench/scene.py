"""What the benchmarks of calls stand on: chain, callers and an nginx target on one core, the gateway on the other.

A second nginx, which proxies, is the reference: the same requests to the same target, with no payment logic at all, on
the core of the gateway and in turns with it. Rates are what counts, as callers see them. Where other programs use the
machine at the same time, or the callers' core is the limit (nginx on small answers, 1 MiB bodies), `cpu_ratio` says
more: answers per second of processor time that each side used itself, kernel included.
"""

from __future__ import annotations

import ipaddress
import statistics
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bench.gateway import Gateway, family_cpu_seconds, gateway
from bench.measuring import Result, alternate, cores, say
from bench.nginx import nginx
from bench.processes import serving
from bench.wrk import CONNECTIONS
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bench.wrk import Calls, Run

SMALL_BYTES: Final = 200
MEDIUM_BYTES: Final = 16 * 1024
LARGE_BYTES: Final = 1024 * 1024
PURCHASES: Final = 256
ROUNDS: Final = 7
ROUND_SECONDS: Final = 2

_LOCATIONS: Final = """\
        location = /small {{ return 200 "{small}"; }}
        location = /medium {{ alias {directory}/medium; }}
        location = /large {{ alias {directory}/large; }}
"""
_TARGET: Final = """\
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        listen 127.0.0.1:{tls_port} ssl backlog=4096;
        ssl_certificate {directory}/certificate.pem;
        ssl_certificate_key {directory}/key.pem;
{locations}    }}
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
            proxy_ssl_trusted_certificate {certificate};
        }}
        location = /challenge {{ alias {challenge}; }}
    }}
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that runs. `target` and `secure_target` are URLs without a path."""

    directory: Path
    gateway: Gateway
    target: str
    secure_target: str
    target_port: int
    tls_port: int
    node_url: str

    @contextmanager
    def reference(self, challenge_bytes: int = 0) -> Iterator[tuple[str, int]]:
        """URL and process id of the nginx on the gateway's core. /challenge is a file of so many bytes."""
        port = free_port()
        challenge = self.directory / "challenge"
        challenge.write_bytes(b"x" * challenge_bytes)
        http = _PROXY.format(
            target_port=self.target_port,
            tls_port=self.tls_port,
            port=port,
            certificate=self.directory / "certificate.pem",
            challenge=challenge,
        )
        with nginx(http, port, cores()[0], self.directory / "proxy") as pid:
            yield f"http://127.0.0.1:{port}", pid


@contextmanager
def scene() -> Iterator[Scene]:
    """All of it but the reference, until the block ends."""
    server_core, other_core = cores()
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="tollkeeper-bench-")))
        (directory / "medium").write_bytes(b"m" * MEDIUM_BYTES)
        (directory / "large").write_bytes(b"l" * LARGE_BYTES)
        _write_certificate(directory)
        port, tls_port = free_port(), free_port()
        locations = _LOCATIONS.format(small="s" * SMALL_BYTES, directory=directory)
        http = _TARGET.format(port=port, tls_port=tls_port, directory=directory, locations=locations)
        running.enter_context(nginx(http, port, other_core, directory / "target"))
        node = running.enter_context(serving("embedded_node", other_core))
        trusted = str(directory / "certificate.pem")
        own = running.enter_context(gateway(directory / "gateway", node.url, server_core, SSL_CERT_FILE=trusted))
        yield Scene(
            directory, own, f"http://127.0.0.1:{port}", f"https://127.0.0.1:{tls_port}", port, tls_port, node.url
        )


def compare(
    name: str,
    unit: str,
    ours: Calls,
    our_pid: int,
    theirs: Calls,
    their_pid: int,
    *,
    rounds: int = ROUNDS,
    connections: int = CONNECTIONS,
) -> Result:
    """Rates of both sides in turns, and each side's answers per second of its own processor time.

    Of the latencies the medians of the rounds, and what ours adds, at the full load of so many connections.
    """
    load_core = cores()[1]
    also: dict[str, float | str] = {"connections": float(connections)}
    spent: dict[str, list[tuple[int, float]]] = {"ours": [], "reference": []}
    runs: dict[str, list[Run]] = {"ours": [], "reference": []}

    def turn(side: str, calls: Calls, pid: int) -> float:
        before = family_cpu_seconds(pid)
        run = calls.run(ROUND_SECONDS, load_core, connections)
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
        also[f"{side}_per_cpu_second"] = sum(one for one, _ in turns[1:]) / sum(seconds for _, seconds in turns[1:])
    also["cpu_ratio"] = float(also["ours_per_cpu_second"]) / float(also["reference_per_cpu_second"])
    also |= latencies({side: its[1:] for side, its in runs.items()})
    return result


def rates(name: str, sides: Mapping[str, tuple[Calls, int]], rounds: int, round_seconds: int) -> dict[str, float]:
    """Each side's answers per second of its own processor time, in turns; the first round warms up."""
    load_core = cores()[1]
    spent = {side: [0, 0.0] for side in sides}
    for number in range(rounds + 1):
        for side, (one, pid) in sides.items():
            before = family_cpu_seconds(pid)
            run = one.run(round_seconds, load_core)
            if number:
                spent[side][0] += run.answers
                spent[side][1] += family_cpu_seconds(pid) - before
        say(f"{name} {number}/{rounds}")
    return {side: answers / seconds for side, (answers, seconds) in spent.items()}


def latencies(runs: dict[str, list[Run]]) -> dict[str, float | str]:
    """The medians of each side's p50 and p99, and what every side adds to the `reference`."""
    told: dict[str, float | str] = {}
    for side, its in runs.items():
        for name in ("p50_ms", "p99_ms"):
            middle = statistics.median(getattr(one, name) for one in its)
            told[f"{side}_{name}"] = middle
            if side != "reference":
                added = "added" if side == "ours" else f"{side}_added"
                told[f"{added}_{name}"] = middle - statistics.median(getattr(one, name) for one in runs["reference"])
    return told


def _write_certificate(directory: Path) -> None:
    """A self-signed certificate of 127.0.0.1, good for a day, which is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tollkeeper bench")])
    now = datetime.now(UTC)
    alternatives = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (directory / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "key.pem").write_bytes(private)
