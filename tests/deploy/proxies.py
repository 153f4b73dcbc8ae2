"""nginx and Caddy as deploy/ configures them, on ports of the tests' own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.described_answers import has_no_description
from tests.edge.targets import certificate
from tests.ports import free_port

DEPLOY: Final = Path(__file__).resolve().parents[2] / "deploy"
NAMES: Final = ("nginx", "caddy")
_START_SECONDS: Final = 60

# What a distribution's own nginx.conf says around the files of conf.d.
_NGINX: Final = """\
daemon off;
pid {folder}/nginx.pid;
error_log stderr warn;
worker_processes 1;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/*.conf;
}}
"""

# HTTP/3's port is kept by whoever handed the number out.
_CADDY: Final = """\
{{
	admin off
	auto_https off
	default_bind 127.0.0.1
	servers {{
		protocols h1 h2
	}}
}}
https://localhost:{port} {{
	tls {cert} {key}
"""


@dataclass(frozen=True)
class Proxy:
    """A running one: its URL, whom its callers trust, and where it would write what it does not pass on."""

    url: str
    trust: ssl.SSLContext
    folder: Path


@contextmanager
def proxy(name: str, upstream: str, folder: Path) -> Iterator[Proxy]:
    """The one of that name in front of `http://HOST:PORT`, or of several, with TLS, until the block ends."""
    folder.mkdir()
    port, (_, trust) = free_port(), certificate(folder, "localhost")
    write = {"nginx": _write_nginx, "nginx-of-several": _write_nginx_of_several, "caddy": _write_caddy}[name]
    words = write(folder, port, upstream.replace("http://", ""), folder / "localhost.pem", folder / "localhost.key")
    environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(words, stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not _listens(port):
                assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()  # noqa: PT018
                time.sleep(0.02)
            has_no_description(f"https://localhost:{port}")  # it has headers of its own
            yield Proxy(f"https://localhost:{port}", trust, folder)
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def replaced(text: str, changes: dict[str, str]) -> str:
    """The text with each of the patterns, which must be there, replaced."""
    for pattern, new in changes.items():
        text, count = re.subn(pattern, new.replace("\\", "\\\\"), text)
        assert count, pattern
    return text


def _write_nginx(folder: Path, port: int, upstream: str, cert: Path, key: Path) -> list[str]:
    site = replaced((DEPLOY / "nginx" / "tollkeeper.conf").read_text(), {r"127\.0\.0\.1:8402": upstream})
    return _nginx_with(site, folder, port, cert, key)


def _write_nginx_of_several(folder: Path, port: int, upstream: str, cert: Path, key: Path) -> list[str]:
    places = {rf"gateway-{number}:8402": place for number, place in enumerate(upstream.split(), start=1)}
    site = replaced((DEPLOY / "nginx" / "several.conf").read_text(), places)
    return _nginx_with(site, folder, port, cert, key)


def _nginx_with(site: str, folder: Path, port: int, cert: Path, key: Path) -> list[str]:
    changes = {
        r"listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        r"listen 80;": f"listen 127.0.0.1:{free_port()};",
        r"ssl_certificate /.*;": f"ssl_certificate {cert};",
        r"ssl_certificate_key /.*;": f"ssl_certificate_key {key};",
        r"pay\.example\.org": "localhost",
    }
    (folder / "tollkeeper.conf").write_text(replaced(site, changes))
    return nginx_with_sites(folder)


def nginx_with_sites(folder: Path) -> list[str]:
    """The command line of nginx with the sites that the folder has."""
    (folder / "nginx.cfg").write_text(_NGINX.format(folder=folder))
    program = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
    assert program, "nginx is not installed"
    return [program, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.cfg")]


def _write_caddy(folder: Path, port: int, upstream: str, cert: Path, key: Path) -> list[str]:
    changes = {
        r"127\.0\.0\.1:8402 \{": f"{upstream} {{",
        r"(?m)^pay\.example\.org \{": _CADDY.format(port=port, cert=cert, key=key),
    }
    (folder / "Caddyfile").write_text(replaced((DEPLOY / "caddy" / "Caddyfile").read_text(), changes))
    program = Path(sys.executable).with_name("caddy")
    return [str(program), "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
