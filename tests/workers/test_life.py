"""Start, stop and the deaths of single processes: who is started anew, what callers see, how all of it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import finished, running
from tests.gateway.recording_target import Received, Writer, answer_ok, recording_target
from tests.workers.program import Scene, Site, is_alive, lines_to_all, scene
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets


async def waiting_call(shop: Scene, url: str, payment: str) -> tuple[asyncio.Task[Answer], asyncio.Event]:
    """A call whose target answers once the event is set; returns when the target has it."""
    reached, release = asyncio.Event(), asyncio.Event()

    async def answer_later(request: Received, writer: Writer) -> None:
        reached.set()
        await release.wait()
        await answer_ok(request, writer)

    shop.target.answer = answer_later
    call = asyncio.create_task(shop.buyer.call(url, payment))
    await reached.wait()
    shop.target.answer = answer_ok
    return call, release


@pytest.mark.parametrize("said", [signal.SIGTERM, signal.SIGHUP])
async def test_a_stop_finishes_what_was_accepted_and_the_ledger_ends_last(
    said: signal.Signals, tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate(credits=3)
        payment, _ = await shop.buy(gate)
        call, release = await waiting_call(shop, gate["url"], payment)
        everybody = list(shop.program.children().values())
        os.kill(shop.program.parent, said)
        for pid in everybody:  # as a service manager does, or a terminal; only the parent's word counts
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, said)
        host, port = shop.program.url.removeprefix("http://").split(":")

        def is_refused() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex((host, int(port))) != 0

        await shop.until(is_refused)
        assert not call.done()
        release.set()
        assert (await call).status == 200
        assert await asyncio.to_thread(shop.program.process.exit_code) == 0
        assert not any(is_alive(pid) for pid in everybody)
        assert shop.program.process.lines()[-1]["event"] == "stopped"
        assert "ledger_process_died" not in shop.program.process.wrote
    assert shop.site.rows("SELECT count(*) FROM calls WHERE state = 'DONE'") == [(2,)]


@pytest.mark.parametrize("apart_seconds", [0.0, 0.5])
async def test_a_second_signal_ends_the_waiting(
    apart_seconds: float, tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate(credits=3)
        payment, _ = await shop.buy(gate)
        call, _ = await waiting_call(shop, gate["url"], payment)
        everybody = list(shop.program.children().values())
        os.kill(shop.program.parent, signal.SIGINT)
        await asyncio.sleep(apart_seconds)
        assert shop.program.process.process.poll() is None
        os.kill(shop.program.parent, signal.SIGTERM)
        assert await asyncio.to_thread(shop.program.process.exit_code) == 0
        assert not any(is_alive(pid) for pid in everybody)
        with contextlib.suppress(aiohttp.ClientError):
            await call


@contextlib.asynccontextmanager
async def ten_calls_at_the_target(
    shop: Scene, url: str, payment: str
) -> AsyncIterator[tuple[list[asyncio.Task[Answer]], asyncio.Event]]:
    """On both workers, where one call was served before; the target answers once the event is set."""
    release = asyncio.Event()

    async def answer_later(request: Received, writer: Writer) -> None:
        await release.wait()
        await answer_ok(request, writer)

    shop.target.answer = answer_later
    async with lines_to_all(shop.program.url + "/readyz", 2, count=10) as lines:
        calls = [asyncio.create_task(line.post(url, X_Payment=payment)) for line in lines]
        await shop.until(lambda: len(shop.target.requests) == 1 + len(lines))
        yield calls, release


@pytest.mark.parametrize("victim", ["worker 2", "hub"])
async def test_a_stop_right_behind_a_death_finishes_what_the_others_accepted(
    tmp_path: Path, embedded_chain: ChainUnderTest, victim: str
) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate(credits=200, method="GET, POST")
        payment, _ = await shop.buy(gate)
        async with ten_calls_at_the_target(shop, gate["url"], payment) as (calls, release):
            shop.program.kill(victim)
            await shop.until(lambda: "process_died" in shop.program.process.wrote)
            os.kill(shop.program.parent, signal.SIGTERM)
            await asyncio.sleep(0.5)
            release.set()
            answers = await asyncio.gather(*calls, return_exceptions=True)
        assert await asyncio.to_thread(shop.program.process.exit_code) == 0
    told = {answer.status if isinstance(answer, Answer) else 0 for answer in answers}
    assert told == ({0, 200} if victim != "hub" else {200})


async def test_a_dead_worker_is_replaced_and_only_its_own_calls_are_interrupted(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate(credits=200, method="GET, POST")
        payment, _ = await shop.buy(gate)
        await shop.until(lambda: bool(shop.site.rows("SELECT 1 FROM calls WHERE state = 'DONE'")))
        async with ten_calls_at_the_target(shop, gate["url"], payment) as (calls, release):
            shop.program.kill("worker 1")
            await shop.until(lambda: "calls_interrupted" in shop.program.process.wrote)
            release.set()
            answers = await asyncio.gather(*calls, return_exceptions=True)
        served = {answer.headers["x-request-id"] for answer in answers if isinstance(answer, Answer)}
        lost = [answer for answer in answers if isinstance(answer, aiohttp.ClientError)]
        assert served
        assert lost
        assert len(served) + len(lost) == len(answers)
        await shop.until(lambda: not shop.site.rows("SELECT 1 FROM calls WHERE state = 'DISPATCHED'"))
        done = {name for (name,) in shop.site.rows("SELECT id FROM calls WHERE state = 'DONE'")}
        assert served <= done
        assert shop.site.rows("SELECT count(*) FROM calls WHERE state = 'INTERRUPTED'") == [(len(lost),)]
        await shop.until(lambda: len(shop.program.children()) == 4)
        async with lines_to_all(shop.program.url + "/readyz", 2):
            pass  # both answer again


async def test_of_a_dead_worker_the_uploads_are_cut_and_no_others(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    fields = form % (b"price", b"", b"1") + form % (b"resourceType", b"", b"file")
    release = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield fields + form % (b"file", b'; filename="x"', bytes(300_000))
        await release.wait()
        yield b"--b--\r\n"

    async with scene(tmp_path / "home", embedded_chain) as shop, aiohttp.ClientSession() as http:
        headers = {
            "Authorization": f"Bearer {await shop.buyer.login(shop.program.url)}",
            "Content-Type": "multipart/form-data; boundary=b",
        }

        async def upload() -> int:
            url = shop.program.url + "/api/v1/paygates"
            async with http.post(url, data=body(), headers={**headers, "Connection": "close"}) as answer:
                return answer.status

        sent = [asyncio.create_task(upload()) for _ in range(12)]
        await shop.until(lambda: shop.site.rows("SELECT count(*) FROM uploads") == [(len(sent),)])
        shop.program.kill("worker 2")
        await shop.until(lambda: bool(shop.site.rows("SELECT 1 FROM uploads WHERE is_cut = 1")))
        release.set()
        answers = await asyncio.gather(*sent, return_exceptions=True)
        lost = [answer for answer in answers if isinstance(answer, aiohttp.ClientError)]
        assert {answer for answer in answers if answer not in lost} == {201}
        assert shop.site.rows("SELECT count(*), min(is_cut) FROM uploads") == [(len(lost), 1)]
        assert shop.site.rows("SELECT count(*) FROM files") == [(len(sent) - len(lost),)]


async def test_a_dead_ledger_refuses_or_serves_and_is_replaced(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate(credits=100_000)
        payment, _ = await shop.buy(gate)
        seen: list[Answer] = []
        is_over = False

        async def call_on() -> None:
            while not is_over:
                seen.append(await shop.buyer.call(gate["url"], payment))
                await asyncio.sleep(0.01)

        callers = [asyncio.create_task(call_on()) for _ in range(4)]
        await asyncio.sleep(0.5)
        before = shop.program.children()["ledger"]
        shop.program.kill("ledger")
        await shop.until(lambda: shop.program.children().get("ledger", before) != before)
        count = len(seen)
        await shop.until(lambda: len(seen) > count + 40 and seen[-1].status == 200)
        is_over = True
        await asyncio.gather(*callers)
        assert {answer.status for answer in seen} <= {200, 503}
        assert all("retry-after" in answer.headers for answer in seen if answer.status == 503)
        assert seen[-1].status == 200
        served = {answer.headers["x-request-id"] for answer in seen if answer.status == 200}
        charged = {name for (name,) in shop.site.rows("SELECT id FROM calls")}
        assert served <= charged
        # What was under way when the ledger died was asked again: nobody was charged for nothing.
        assert len(charged) == 1 + len(served)


async def test_a_dead_hub_is_replaced(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate()
        before = shop.program.children()["hub"]
        shop.program.kill("hub")
        await shop.until(lambda: shop.program.children().get("hub", before) != before)
        for _ in range(100):
            if (await shop.buyer.ask("GET", shop.program.url + "/hub/readyz")).status == 200:
                break
            await asyncio.sleep(0.1)
        _, answer = await shop.buy(gate)
        assert answer.status == 200


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_hanging_hub_is_replaced(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        before = shop.program.children()
        os.kill(before["hub"], signal.SIGSTOP)
        await shop.until(lambda: not is_alive(before["hub"]), seconds=120)
        await shop.until(lambda: len(shop.program.children()) == 4)
        assert {name: shop.program.children()[name] for name in ("worker 1", "worker 2", "ledger")} == {
            name: pid for name, pid in before.items() if name != "hub"
        }
        _, answer = await shop.buy(await shop.gate())
        assert answer.status == 200


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("hanging", ["worker 2", "hub"])
async def test_whoever_hangs_when_it_is_to_stop_holds_up_no_stop_for_ever(
    tmp_path: Path, embedded_chain: ChainUnderTest, hanging: str
) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        os.kill(shop.program.children()[hanging], signal.SIGSTOP)
        os.kill(shop.program.parent, signal.SIGTERM)
        await shop.until(lambda: "process_hangs" in shop.program.process.wrote, seconds=120)
        assert await asyncio.to_thread(shop.program.process.exit_code) == 0


async def hung_at_its_start(shop: Scene, name: str) -> int:
    """Kills it and stops its successor in the first moments of its life; returns that one's id."""
    before = shop.program.children()[name]
    shop.program.kill(name)
    await shop.until(lambda: shop.program.children().get(name, before) != before)
    successor = shop.program.children()[name]
    os.kill(successor, signal.SIGSTOP)
    return successor


@pytest.mark.parametrize("name", ["worker 2", "hub"])
async def test_whoever_is_still_starting_holds_up_no_stop(
    tmp_path: Path, embedded_chain: ChainUnderTest, name: str
) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        successor = await hung_at_its_start(shop, name)
        os.kill(shop.program.parent, signal.SIGTERM)
        assert await asyncio.to_thread(shop.program.process.exit_code) == 0
        assert not is_alive(successor)


async def test_a_worker_that_waits_for_a_ledger_that_cannot_start_holds_up_no_stop(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        shop.site.database.write_bytes(b"this is no database at all" * 1000)
        shop.program.kill("ledger")
        await shop.until(lambda: "ledger_process_does_not_start" in shop.program.process.wrote)
        before = shop.program.children()["worker 2"]
        shop.program.kill("worker 2")
        await shop.until(lambda: shop.program.children().get("worker 2", before) != before)
        os.kill(shop.program.parent, signal.SIGTERM)
        assert await asyncio.to_thread(shop.program.process.exit_code) == 0


async def test_a_second_signal_ends_a_first_start_that_hangs(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    site = await asyncio.to_thread(Site, tmp_path / "home", embedded_chain)
    with running("serve", "--config", site.config, "--port", "0", "--workers", "2", environ=site.environ) as program:
        hub: list[int] = []
        while not hub:
            hub = [line["pid"] for line in program.lines() if line.get("process") == "hub"]
            await asyncio.sleep(0.002)
        os.kill(hub[0], signal.SIGSTOP)
        os.kill(program.process.pid, signal.SIGTERM)
        await asyncio.sleep(0.5)
        os.kill(program.process.pid, signal.SIGTERM)
        assert await asyncio.to_thread(program.exit_code) == 0
        assert not is_alive(hub[0])


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_worker_that_hangs_at_its_start_is_replaced(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        successor = await hung_at_its_start(shop, "worker 2")
        await shop.until(lambda: not is_alive(successor), seconds=120)
        await shop.until(lambda: len(shop.program.children()) == 4)
        async with lines_to_all(shop.program.url + "/readyz", 2):
            pass


async def test_nothing_that_is_being_started_survives_its_parent(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        before = shop.program.children()
        for name in before:
            shop.program.kill(name)
        await shop.until(lambda: shop.program.process.wrote.count("process_started") > len(before))
        os.kill(shop.program.parent, signal.SIGKILL)
        everybody = [line["pid"] for line in shop.program.process.lines() if line["event"] == "process_started"]
        await shop.until(lambda: not any(is_alive(pid) for pid in everybody))


async def test_nothing_survives_its_parent(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        everybody = list(shop.program.children().values())
        assert len(everybody) == 4
        os.kill(shop.program.parent, signal.SIGKILL)
        await shop.until(lambda: not any(is_alive(pid) for pid in everybody))
        with shop.site.serving():
            pass


def seen_of(pid: int) -> bytes:
    """A process's environment and command line."""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline"))


def memory_of(pid: int) -> Iterator[bytes]:
    """Everything that a process may have written, a region at a time."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for region in maps:
            place, rights = region.split()[:2]
            start, end = (int(one, 16) for one in place.split("-"))
            if rights.startswith("rw"):
                with contextlib.suppress(OSError, OverflowError):
                    memory.seek(start)
                    yield memory.read(end - start)


async def test_a_signer_key_of_the_environment_is_in_no_other_process_no_line_and_no_answer(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """Only the hub's process has it, in its memory; the parent was given it by whoever started it."""
    site = await asyncio.to_thread(Site, tmp_path / "home", embedded_chain)
    key = bytes.fromhex(site.key.removeprefix("0x"))
    (site.home / "keys" / "signer.key").write_text("no key\n")
    site.config.write_text("\n".join(one for one in site.config.read_text().splitlines() if "signer_key" not in one))
    site.environ["TOLLKEEPER_SIGNER_KEY"] = site.key
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        with site.serving() as program:
            shop = Scene(site, program, target, buyer, embedded_chain)
            gate = await shop.gate()
            _, sold = await shop.buy(gate)
            assert sold.status == 200
            program.kill("hub")
            _, failed = await shop.buy(gate)  # an error of the hub's, or the new hub's answer
            answers = [sold.body, failed.body]
            paths = ("/healthz", "/hub/readyz", "/hub/supported", "/hub/nowhere")
            answers += [(await buyer.ask("GET", program.url + path)).body for path in paths]
            everybody = program.children()
            assert {"ledger", "worker 1", "worker 2"} <= set(everybody)
            for name, pid in everybody.items():
                assert b"TOLLKEEPER_" not in seen_of(pid)
                assert key.hex().encode() not in seen_of(pid)
                if name != "hub":
                    regions = await asyncio.to_thread(list, memory_of(pid))
                    assert sum(map(len, regions)) > 1 << 20
                    assert not any(key in region or key.hex().encode() in region for region in regions), name
            assert not any(key.hex().encode() in answer or key in answer for answer in answers)
            told = program.process.wrote
    assert key.hex() not in told
    for file in site.home.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert key not in content
            assert key.hex().encode() not in content


async def test_keys_are_where_they_are_needed(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        for pid in shop.program.children().values():
            shown = seen_of(pid)
            assert b"TOLLKEEPER_" not in shown
            assert shop.site.key.removeprefix("0x").encode() not in shown


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_taken_port_is_told(tmp_path: Path, embedded_chain: ChainUnderTest, workers: int) -> None:
    site = await asyncio.to_thread(Site, tmp_path / "home", embedded_chain)
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = taken.getsockname()[1]
        arguments = ("serve", "--config", site.config, "--port", str(port), "--workers", str(workers))
        refused = await asyncio.to_thread(finished, *arguments, environ=site.environ)
    assert refused.returncode == 3
    assert f"127.0.0.1:{port} cannot be listened on" in refused.stderr
    assert "Traceback" not in refused.stderr


async def test_a_database_in_use_is_told(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        arguments = ("serve", "--config", shop.site.config, "--port", "0", "--workers", "2")
        refused = await asyncio.to_thread(finished, *arguments, environ=shop.site.environ)
        assert refused.returncode == 3
        assert "is in use" in refused.stderr
        assert "Traceback" not in refused.stderr
