"""nginx as target and as reference: installed where it is missing, started with a configuration of the benchmark's own.

Each instance is one process that listens on loopback addresses only, keeps its files in a directory that is handed to
it, and is stopped by its process id. Nothing of the machine's own nginx is read, changed or stopped.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.measuring import pinned, say
from bench.processes import STOP_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

_START_TIMEOUT_SECONDS: Final = 10

# No log and no limit on requests per connection: what is left is what nginx does for each request.
_CONFIGURATION: Final = """\
daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log stderr error;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    server_tokens off;
    tcp_nopush on;
    tcp_nodelay on;
    open_file_cache max=100 inactive=600s;
    keepalive_requests 1000000000;
    keepalive_timeout 600s;
    large_client_header_buffers 8 32k;
    client_max_body_size 10m;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
{http}
}}
"""


# By default glibc gives the buffers of large answers back to the system, and takes them again page by page, in one run
# and not in the next: 750 us for an answer of 1 MiB or 400. Here it is always the latter.
_HEAP: Final = {"MALLOC_TRIM_THRESHOLD_": "67108864", "MALLOC_TOP_PAD_": "1048576"}


def tool(name: str) -> str:
    """The path of nginx or wrk, installed with apt-get where it is missing. Raises: RuntimeError."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if path is not None:
        return path
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        raise RuntimeError(f"{name} is not installed; as root: apt-get install --yes {name}")
    say(f"installing {name}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = [apt, "install", "--yes", "--no-install-recommends", name]
    if subprocess.run(install, env=quiet, stdout=subprocess.DEVNULL, check=False).returncode != 0:
        subprocess.run([apt, "update"], env=quiet, stdout=subprocess.DEVNULL, check=True)
        subprocess.run(install, env=quiet, stdout=subprocess.DEVNULL, check=True)
    return tool(name)


@contextmanager
def nginx(http: str, port: int, core: int, directory: Path) -> Iterator[int]:
    """An nginx with these lines in its `http` block, listening on `port`, until the block ends. Gives its process id.

    Raises: RuntimeError when it does not start.
    """
    directory.mkdir()
    configuration = directory / "nginx.conf"
    configuration.write_text(_CONFIGURATION.format(directory=directory, http=http))
    command = [tool("nginx"), "-p", str(directory), "-e", "stderr", "-c", str(configuration)]
    with pinned(core):
        process = subprocess.Popen(command, env={**os.environ, **_HEAP})
    with process:
        try:
            wait_for_listener(port, process, "nginx")
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for_listener(port: int, process: subprocess.Popen[bytes], name: str) -> None:
    """Until somebody listens on the port. Raises: RuntimeError where the process ends, or takes too long."""
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise RuntimeError(f"{name} does not listen (exit code {process.poll()})")
