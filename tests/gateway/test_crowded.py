"""A gateway that can open no more files or connections: paid calls are served all the same, or not charged (A-58)."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import running
from tests.edge.targets import nothing_more_can_be_opened
from tests.edge.test_calls import until
from tests.faults.shop import Shop, url_of
from tests.gateway.recording_target import Received, Writer, recording_target
from tests.gateway.same_bytes import kept, request
from tests.ports import free_port
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

FEW = 160  # descriptors for a whole program
STRANGERS = 200


async def answer_and_close(_request: Received, writer: Writer) -> None:
    """As a target whose connections cannot be kept: each call needs a new one."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
    writer.close()


def is_connected_to(url: str) -> bool:
    """Whether a socket of this machine is still open that is connected to the port."""
    port = f":{urlsplit(url).port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(line[2].endswith(port) and line[9] != "0" for line in lines)  # its other end, its inode


async def test_strangers_who_only_connect_stop_no_paid_call(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    shop = await asyncio.to_thread(Shop, tmp_path / "home", embedded_chain, embedded_chain.url)
    limited = ("sh", "-c", f'ulimit -n {FEW}; exec "$@"', "sh")
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer, AsyncExitStack() as strangers:
        target.answer = answer_and_close
        with shop.serving(under=limited) as program:
            url = url_of(program)
            body = {"targetUrl": target.url, "price": "0.01", "credits": 9}
            gate = (await buyer.ask("POST", f"{url}/api/v1/paygates", body=body)).json()
            gate["accessUrl"] = f"{url}/{gate['slug']}"
            payment = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
            assert (await buyer.call(gate["accessUrl"], payment)).status == 200
            paid, place = request(gate, more=f"X-Payment: {payment}\r\n"), urlsplit(url)
            async with kept(gate) as early:
                for left in ("7", "6"):  # where no connection is to be had, a call as any, and one like one before
                    await until(lambda: not is_connected_to(target.url))  # as the last call's target asked
                    with nothing_more_can_be_opened(program.process.pid):
                        status, headers, said = await early.ask(paid)
                    assert (status, said["error"]["code"]) == (503, "UNAVAILABLE")
                    assert int(headers["x-credits-remaining"]) == int(left) + 1
                    status, headers, _ = await early.ask(paid)
                    assert (status, headers["x-credits-remaining"]) == (200, left)
                for number in range(STRANGERS):
                    _, writer = await asyncio.open_connection(place.hostname, place.port)
                    strangers.callback(writer.close)
                    if number % 10 == 0:
                        assert (await early.ask(request(gate)))[0] == 402
                assert (await early.ask(paid))[0] == 200
            async with kept(gate) as late:
                status, headers, _ = await late.ask(paid)
                assert (status, headers["x-credits-remaining"]) == (200, "4")
            assert "connections_crowded" in {line["event"] for line in program.lines()}
        assert len(target.requests) == 5


async def test_targets_that_hang_at_many_addresses_hold_up_their_owner_s_callers_only(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    hang = asyncio.Event()

    async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await hang.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        writer.close()

    shop = await asyncio.to_thread(Shop, tmp_path / "home", embedded_chain, embedded_chain.url)
    limited = ("sh", "-c", f'ulimit -n {FEW}; exec "$@"', "sh")
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer, AsyncExitStack() as callers:
        targets = [target.url]
        for number in range(12):
            server = await asyncio.start_server(answer_late, f"127.0.0.{number + 2}", 0)
            callers.callback(server.close)
            targets.append("http://{}:{}".format(*server.sockets[0].getsockname()))
        callers.callback(hang.set)
        port = free_port()
        environ = {**shop.environ, "TOLLKEEPER_PUBLIC_URL": f"http://127.0.0.1:{port}"}
        with running("serve", "--config", shop.config, "--port", str(port), environ=environ, under=limited) as program:
            url = url_of(program)
            bearer = await buyer.login(url, derive_wallets().owner.key)

            async def paid(target_url: str, **headers: str) -> tuple[dict[str, str], bytes]:
                body = {"targetUrl": target_url, "price": "0.01", "credits": 1000}
                gate = (await buyer.ask("POST", f"{url}/api/v1/paygates", body=body, headers=headers)).json()
                gate["accessUrl"] = f"{url}/{gate['slug']}"
                payment = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
                return gate, request(gate, more=f"X-Payment: {payment}\r\n")

            gate, good = await paid(targets[0])
            hanging = [await paid(one, Authorization=f"Bearer {bearer}") for one in targets[1:]]
            async with kept(gate) as one:
                assert (await one.ask(good))[0] == 200
            waiting = []
            for number in range(FEW):  # more than there are descriptors for, of callers and of connections to targets
                hanging_gate, asked = hanging[number % len(hanging)]
                waiting.append((await callers.enter_async_context(kept(hanging_gate)), asked))
                waiting[-1][0].writer.write(asked)
                await asyncio.sleep(0.01)
            for _ in range(5):
                async with kept(gate) as one:
                    assert (await one.ask(good))[0] == 200
            hang.set()
            answers = await asyncio.gather(*(each.answer(asked) for each, asked in waiting), return_exceptions=True)
            statuses = Counter(0 if isinstance(said, BaseException) else said[0] for said in answers)
            assert statuses[200] >= 5
            assert statuses[503] >= 5
            left = 0
            for hanging_gate, asked in hanging:
                async with kept(hanging_gate) as one:
                    status, headers, _ = await one.ask(asked)
                    assert status == 200
                    left += int(headers["x-credits-remaining"])
            assert left == 12 * (1000 - 1) - statuses[200], statuses
            assert "share_used_up" in {line["event"] for line in program.lines()}
