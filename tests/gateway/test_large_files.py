"""A file larger than memory passes through the program, both ways, at constant memory (contract 4.8)."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import configured, running
from tests.ports import free_port
from tests.storage.s3_server import access_to, s3_server
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

log = logging.getLogger(__name__)

MIB = 1024 * 1024
RESIDENT_MB = 104  # of 10^6 bytes, at most, with all that is in memory at rest


def forget_peak(pid: int) -> None:
    """From now on the kernel counts anew what the process holds at most."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mb(pid: int) -> float:
    """The most that the process has had in memory since, as the kernel counted it."""
    (found,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found) * 1024 / 10**6


async def pass_through(home: Path, chain: ChainUnderTest, size_mib: int, **more: str) -> None:
    """Upload a file of that size and download it; the process never holds more than it may."""
    configured(home, chain.url)
    (home / "keys" / "signer.key").write_text(derive_wallets().relayer.private_key_hex + "\n")
    port = str(free_port())
    environ = {
        "TOLLKEEPER_ASSET_NAME_BASE_SEPOLIA": chain.token_name,
        "TOLLKEEPER_LOG_FORMAT": "json",
        "TOLLKEEPER_PUBLIC_URL": f"http://127.0.0.1:{port}",
        **more,
    }
    with running(
        "serve", "--config", home / "tollkeeper.toml", "--port", port, environ=environ, is_forked=False
    ) as program:
        url, pid = program.wait_for_event("serving")["url"], program.process.pid
        forget_peak(pid)
        rest_mb = peak_mb(pid)
        chunk = os.urandom(MIB)
        sent, received = hashlib.sha256(), hashlib.sha256()

        async def content() -> AsyncIterator[bytes]:
            for number in range(size_mib):
                part = number.to_bytes(8, "big") + chunk[8:]
                sent.update(part)
                yield part

        async with Buyer(derive_wallets().buyer) as buyer:
            bearer = {"Authorization": f"Bearer {await buyer.login(url)}"}
            form = aiohttp.FormData({"price": "0.01", "resourceType": "file"})
            form.add_field("file", content(), filename="large.bin", content_type="application/octet-stream")
            timeout = aiohttp.ClientTimeout(total=None)
            started = time.monotonic()
            async with aiohttp.ClientSession(timeout=timeout) as http:
                async with http.post(f"{url}/api/v1/paygates", data=form, headers=bearer) as created:
                    gate = await created.json()
                    assert created.status == 201, gate
                up_mb, up_seconds = peak_mb(pid), time.monotonic() - started
                assert (gate["fileSize"], gate["sha256"]) == (size_mib * MIB, sent.hexdigest())
                gate_url = f"{url}/{gate['slug']}"  # the configured public URL names another port
                bought = await buyer.call(gate_url, buyer.sign((await buyer.ask("GET", gate_url)).json()))
                assert bought.status == 200, bought.body
                link = URL(bought.json()["downloadUrl"], encoded=True)
                async with http.get(URL(url).join(link.relative())) as download:
                    async for data in download.content.iter_chunked(MIB):
                        received.update(data)
        assert received.hexdigest() == sent.hexdigest()
        most_mb, seconds = peak_mb(pid), time.monotonic() - started
    measured = f"{rest_mb:.0f} MB at rest, {up_mb:.0f} at most on the way in, {most_mb:.0f} both ways"
    log.warning("%d MiB in %.0f s and %.0f s: %s", size_mib, up_seconds, seconds - up_seconds, measured)
    assert most_mb < RESIDENT_MB


@contextmanager
def bucket() -> Iterator[dict[str, str]]:
    """What tells the program of a bucket."""
    with s3_server("files") as url:
        yield {"TOLLKEEPER_FILES": "s3://files/sold", **access_to(url)}


async def test_a_file_passes_within_104_megabytes(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    await pass_through(tmp_path / "home", embedded_chain, 250)


async def test_a_file_passes_to_and_from_a_bucket_within_104_megabytes(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    with bucket() as environ:
        await pass_through(tmp_path / "home", embedded_chain, 250, **environ)


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_five_gigabytes_pass_within_104_megabytes(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    await pass_through(tmp_path / "home", embedded_chain, 5 * 1024)


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_five_gigabytes_pass_to_and_from_a_bucket_within_104_megabytes(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """The server of the bucket holds them in the memory of this test's own process."""
    with bucket() as environ:
        await pass_through(tmp_path / "home", embedded_chain, 5 * 1024, **environ)
