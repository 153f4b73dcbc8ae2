"""A file larger than memory passes through the program, both ways, at constant memory (contract 4.8)."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import finished, running
from tests.storage.s3_server import s3_server
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

MIB = 1024 * 1024
GROWTH_MB = 40  # over what the program takes at rest


def resident_mb(pid: int) -> float:
    """What the process holds in memory, in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def pass_through(home: Path, chain: ChainUnderTest, size_mib: int, **more: str) -> tuple[float, float]:
    """Resident memory at rest, and the most of it while a file of that size is uploaded and downloaded."""
    assert finished("init", "--dir", home, "--rpc-url", chain.url).returncode == 0
    (home / "keys" / "signer.key").write_text(derive_wallets().relayer.private_key_hex + "\n")
    environ = {"TOLLKEEPER_ASSET_NAME_BASE_SEPOLIA": chain.token_name, "TOLLKEEPER_LOG_FORMAT": "json", **more}
    with running("serve", "--config", home / "tollkeeper.toml", "--port", "0", environ=environ) as program:
        url, pid = program.wait_for_event("serving")["url"], program.process.pid
        rest_mb = most_mb = resident_mb(pid)
        chunk = os.urandom(MIB)
        sent, received = hashlib.sha256(), hashlib.sha256()

        async def content() -> AsyncIterator[bytes]:
            nonlocal most_mb
            for number in range(size_mib):
                part = number.to_bytes(8, "big") + chunk[8:]
                sent.update(part)
                most_mb = max(most_mb, resident_mb(pid))
                yield part

        async with Buyer(derive_wallets().buyer) as buyer:
            bearer = {"Authorization": f"Bearer {await buyer.login(url)}"}
            form = aiohttp.FormData({"price": "0.01", "resourceType": "file"})
            form.add_field("file", content(), filename="large.bin", content_type="application/octet-stream")
            timeout = aiohttp.ClientTimeout(total=None)
            async with aiohttp.ClientSession(timeout=timeout) as http:
                async with http.post(f"{url}/api/v1/paygates", data=form, headers=bearer) as created:
                    gate = await created.json()
                    assert created.status == 201, gate
                assert (gate["fileSize"], gate["sha256"]) == (size_mib * MIB, sent.hexdigest())
                gate_url = f"{url}/{gate['slug']}"  # the configured public URL names another port
                bought = await buyer.call(gate_url, buyer.sign((await buyer.ask("GET", gate_url)).json()))
                assert bought.status == 200, bought.body
                link = URL(bought.json()["downloadUrl"], encoded=True)
                async with http.get(URL(url).join(link.relative())) as download:
                    async for data in download.content.iter_chunked(MIB):
                        received.update(data)
                        most_mb = max(most_mb, resident_mb(pid))
        assert received.hexdigest() == sent.hexdigest()
    return rest_mb, most_mb


async def test_a_file_passes_at_constant_memory(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    rest_mb, most_mb = await pass_through(tmp_path / "home", embedded_chain, 150)
    assert most_mb < rest_mb + GROWTH_MB


async def test_a_file_passes_to_and_from_a_bucket_at_constant_memory(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    with s3_server("files") as url:
        bucket = {"TOLLKEEPER_FILES": "s3://files/sold", "AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1"}
        access = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
        rest_mb, most_mb = await pass_through(tmp_path / "home", embedded_chain, 250, **bucket, **access)
    logging.getLogger(__name__).warning("%.0f MB at rest, %.0f at most", rest_mb, most_mb)
    assert most_mb < rest_mb + GROWTH_MB


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_five_gigabytes_pass_at_constant_memory(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    started = time.monotonic()
    rest_mb, most_mb = await pass_through(tmp_path / "home", embedded_chain, 5 * 1024)
    seconds = time.monotonic() - started
    logging.getLogger(__name__).warning("5 GiB in %.0f s: %.0f MB at rest, %.0f at most", seconds, rest_mb, most_mb)
    assert most_mb < rest_mb + GROWTH_MB
