"""`backup` copies one state beside a running server; `restore` puts it in place and spoils nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import configured, finished
from tests.cli.program import Scene, scene


async def command(site_config: Path, *words: str | Path) -> CompletedProcess[str]:
    return await asyncio.to_thread(finished, *words, "--config", site_config)


async def titles(where: Scene) -> set[str]:
    rows = where.site.rows("SELECT title FROM paygates")
    return {title for (title,) in rows}


def content(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


async def test_a_backup_beside_a_busy_server_is_one_state_and_comes_back(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    copy, home = tmp_path / "copy.db", tmp_path / "home"
    before = os.umask(0)
    try:
        async with scene(home, embedded_chain) as town:
            sold = await town.gate(title="sold", credits=5)
            payment, _ = await town.buy(sold)
            is_over = asyncio.Event()

            async def keep_calling() -> None:
                while not is_over.is_set():
                    await town.buyer.call(sold["url"], payment)
                    await town.gate(title="another")

            calling = asyncio.create_task(keep_calling())
            try:
                done = await command(town.site.config, "backup", copy)
            finally:
                is_over.set()
                await calling
            assert done.returncode == 0, done.stderr
            await town.gate(title="later")
            again = await command(town.site.config, "backup", copy)
            assert (again.returncode, "written over nothing" in again.stderr) == (3, True)
            running = await command(town.site.config, "restore", copy)
            assert (running.returncode, "is in use by process" in running.stderr) == (3, True)
            town.program.process.process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(town.program.process.process.wait)
            log = town.site.database.with_name(town.site.database.name + "-wal")
            assert log.stat().st_size > 0
            assert "later" in await titles(town)
            restored = await command(town.site.config, "restore", copy)
            assert restored.returncode == 0, restored.stderr
    finally:
        os.umask(before)
    assert sorted(os.listdir(tmp_path)) == ["copy.db", "home"]  # noqa: PTH208
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    data = town.site.database.parent
    assert sorted(path.name for path in data.iterdir() if path.name.startswith("tollkeeper.db-")) == []
    (aside,) = (path for path in data.iterdir() if ".before-" in path.name)
    assert {"tollkeeper.db", "tollkeeper.db-wal"} <= {path.name for path in aside.iterdir()}
    assert stat.S_IMODE(aside.stat().st_mode) == 0o700
    assert stat.S_IMODE(town.site.database.stat().st_mode) == 0o600
    assert "db check --chain" in restored.stdout
    assert (await command(town.site.config, "db", "check", "--no-chain")).stdout == "the books agree\n"
    assert {"sold"} <= await titles(town) <= {"sold", "another"}
    with town.site.serving() as program:
        assert (await asyncio.to_thread(program.process.wait_for_event, "serving"))["url"] == program.url


def test_what_is_no_backup_of_this_version_changes_nothing(tmp_path: Path) -> None:
    config = configured(tmp_path / "home", "http://127.0.0.1:9")
    copy, newer, damaged, foreign = (tmp_path / name for name in ("copy.db", "newer.db", "damaged.db", "foreign.db"))
    absent = finished("db", "backup", copy, "--config", config)
    assert (absent.returncode, "is not there" in absent.stderr) == (3, True)
    assert finished("db", "migrate", "--config", config).returncode == 0
    assert finished("db", "backup", copy, "--config", config).returncode == 0
    with closing(sqlite3.connect(newer)) as made, closing(sqlite3.connect(copy)) as known:
        known.backup(made)
        made.execute("INSERT INTO schema_migrations VALUES (9999, 'of_tomorrow', 1, 'x')")
        made.commit()
    damaged.write_bytes(copy.read_bytes()[:20_000])
    with closing(sqlite3.connect(foreign)) as other:
        other.execute("CREATE TABLE things (name TEXT)")
        other.commit()
    before = content(config.parent)
    for wrong in (newer, damaged, foreign, config, tmp_path / "nowhere.db", tmp_path):
        refused = finished("db", "restore", wrong, "--config", config)
        assert (refused.returncode, "Traceback" in refused.stderr) == (3, False), (wrong, refused)
        assert content(config.parent) == before, wrong
    unwritable = finished("db", "backup", tmp_path / "no" / "such" / "copy.db", "--config", config)
    assert (unwritable.returncode, "cannot be written" in unwritable.stderr) == (3, True)


def test_a_backup_is_put_where_no_database_is_yet(tmp_path: Path) -> None:
    config = configured(tmp_path / "home", "http://127.0.0.1:9")
    assert finished("db", "migrate", "--config", config).returncode == 0
    copy = tmp_path / "copy.db"
    assert finished("db", "backup", copy, "--config", config).returncode == 0
    shutil.rmtree(config.parent / "data")
    done = finished("db", "restore", copy, "--config", config)
    assert (done.returncode, "what was there" in done.stdout) == (0, False)
    assert finished("db", "check", "--no-chain", "--config", config).stdout == "the books agree\n"
    assert stat.S_IMODE((config.parent / "data").stat().st_mode) == 0o700
