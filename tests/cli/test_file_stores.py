"""`config check` says whether the files that are sold can be kept where the settings say (contract 4.8)."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cli.processes import configured, finished
from tests.storage.s3_server import access_to, refusing, s3_server
from tollkeeper.serving.config.file_stores import judge_file_store
from tollkeeper.settings.model import FileSettings
from tollkeeper.storage.files.s3 import S3Files


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with s3_server("files") as url:
        yield url


@pytest.fixture(scope="module")
def silent_url() -> Iterator[str]:
    """It takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def lines_told(tmp_path: Path, role: str = "gateway", **environ: str) -> list[str]:
    """The lines about `files`."""
    configured(tmp_path)
    named = {f"TOLLKEEPER_{name.upper()}": value for name, value in environ.items() if not name.startswith("AWS_")}
    named |= {name: value for name, value in environ.items() if name.startswith("AWS_")}
    named["TOLLKEEPER_HUB_URL"] = "http://127.0.0.1:9"
    check = finished("config", "check", "--for", role, "--config", tmp_path / "tollkeeper.toml", environ=named)
    assert "Traceback" not in check.stdout + check.stderr
    return [line for line in check.stdout.splitlines() if line.startswith(("error: files", "warning: files"))]


def told(tmp_path: Path, role: str = "gateway", **environ: str) -> list[str]:
    """The same of what keeps nothing from starting."""
    lines = lines_told(tmp_path, role, **environ)
    assert [line for line in lines if line.startswith("error: ")] == []
    return lines


def told_to_nobody(place: Path) -> list[str]:
    """The same of a directory, to a user who is nobody in particular."""
    ours = os.getuid()
    if ours == 0:  # who may do everything everywhere
        os.setresuid(65_534, 65_534, 0)
    try:
        found = judge_file_store(FileSettings(place, 0))
    finally:
        os.setresuid(ours, ours, -1)
    assert found.errors == []
    return [one.problem for one in found.warnings]


@pytest.fixture
def shared_path() -> Iterator[Path]:
    """A directory that everybody may look at, as he may not at `tmp_path`."""
    with TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def test_a_directory_that_can_be_used_is_nothing_to_tell_and_is_not_made(tmp_path: Path) -> None:
    place = tmp_path / "sold" / "files"
    assert told(tmp_path, files=str(place)) == []
    assert not place.parent.exists()


def test_what_is_no_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "sold").write_text("a file")
    (line,) = told(tmp_path, files=str(tmp_path / "sold" / "files"))
    assert f"{tmp_path / 'sold'} is no directory" in line


def test_a_disk_with_too_little_room_is_told(tmp_path: Path) -> None:
    (line,) = told(tmp_path, files=str(tmp_path / "files"), files_min_free_mb="900000000")
    assert "less than files_min_free_mb" in line


def test_a_directory_that_may_not_be_written_to_is_told(shared_path: Path) -> None:
    place = shared_path / "files"
    place.mkdir(mode=0o500)
    assert told_to_nobody(place) == [f"{place} cannot be used: this user may not read and write in {place}"]


def test_a_link_to_a_database_that_is_yet_to_be_made_is_followed(tmp_path: Path) -> None:
    link, path = tmp_path / "gateway.db", tmp_path / "disk" / "of" / "its" / "own.db"
    link.symlink_to(path)
    config = configured(tmp_path)
    names = {"TOLLKEEPER_HUB_URL": "http://127.0.0.1:9", "TOLLKEEPER_DATABASE_URL": f"sqlite:///{link}"}
    for command in ("config check", "db migrate"):
        done = finished(*command.split(), "--for", "gateway", "--config", config, environ=names)
        assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(found.name for found in path.parent.iterdir()) == ["own.db", "own.db.lock"]


def test_a_database_that_could_not_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = configured(tmp_path)
    names = {
        "TOLLKEEPER_HUB_URL": "http://127.0.0.1:9",
        "TOLLKEEPER_DATABASE_URL": f"sqlite:///{tmp_path}/file/x/gateway.db",
    }
    check = finished("config", "check", "--for", "gateway", "--config", config, environ=names)
    assert check.returncode == 3
    assert f"error: database_url: {tmp_path}/file is no directory" in check.stdout
    assert "can start with this" not in check.stdout


def test_a_directory_that_may_not_even_be_looked_at_is_told(shared_path: Path) -> None:
    locked = shared_path / "locked"
    (locked / "files").mkdir(parents=True)
    locked.chmod(0)
    for place in (locked / "files", locked / "other" / "files"):
        assert told_to_nobody(place) == [f"{place} cannot be used: this user may not read and write in {locked}"]


def test_a_directory_in_which_another_user_s_files_lie_is_told(shared_path: Path) -> None:
    """As they are where a backup was restored by root."""
    place = shared_path / "files"
    (place / "objects").mkdir(parents=True)
    (place / "objects").chmod(0o500)
    place.chmod(0o777)
    assert told_to_nobody(place) == [f"{place} cannot be used: this user may not read and write in {place / 'objects'}"]


def test_a_link_to_nowhere_is_told(tmp_path: Path) -> None:
    place = tmp_path / "files"
    place.symlink_to(tmp_path / "nowhere")
    (line,) = told(tmp_path, files=str(place))
    assert f"{place} is no directory" in line


def test_a_bucket_that_can_be_used_is_nothing_to_tell(tmp_path: Path, s3_url: str) -> None:
    assert told(tmp_path, files="s3://files/sold", **access_to(s3_url)) == []


def test_a_bucket_that_is_not_there_is_told(tmp_path: Path, s3_url: str) -> None:
    (line,) = told(tmp_path, files="s3://other/sold", **access_to(s3_url))
    told_so = "warning: files: s3://other/sold cannot be used: objects in the bucket cannot be written (NoSuchBucket)"
    assert line.startswith(told_so)


@pytest.mark.parametrize(
    ("method", "told_of_it"),
    [("PUT", "written"), ("LIST", "listed"), ("HEAD", "read"), ("GET", "read"), ("POST", "deleted")],
)
async def test_a_bucket_that_withholds_a_right_is_told_and_keeps_nothing_that_may_be_deleted(
    tmp_path: Path, s3_url: str, method: str, told_of_it: str
) -> None:
    prefix = os.urandom(4).hex()
    async with refusing(s3_url, method) as url:
        (line,) = await asyncio.to_thread(told, tmp_path, files=f"s3://files/{prefix}", **access_to(url))
    assert f"objects in the bucket cannot be {told_of_it} (" in line
    store = S3Files("files", prefix, endpoint=s3_url, access_key_id="x", secret_access_key="y", region="us-east-1")
    assert len([found async for found in store.listed()]) == (method == "POST")


def test_a_store_that_says_nothing_is_told_soon(tmp_path: Path, silent_url: str) -> None:
    (line,) = told(tmp_path, files="s3://files/sold", **access_to(silent_url))
    assert "it did not answer within 10 s" in line


@pytest.mark.parametrize("url", ["127.0.0.1:9000", "http://127.0.0.1:99999"])
def test_an_address_that_is_none_is_told(tmp_path: Path, url: str) -> None:
    """The library panics of it."""
    (line,) = told(tmp_path, files="s3://files/sold", **access_to(url))
    assert line.startswith("warning: files: s3://files/sold cannot be used: ")


def test_half_of_the_credentials_are_told_and_nothing_starts_with_them(tmp_path: Path) -> None:
    half = access_to("http://127.0.0.1:9")
    del half["AWS_SECRET_ACCESS_KEY"]
    (line,) = lines_told(tmp_path, files="s3://files/sold", **half)
    assert line.startswith("error: files: s3://files/sold cannot be used: ")
    assert "SecretAccessKey" in line


def test_a_hub_keeps_no_files(tmp_path: Path) -> None:
    (tmp_path / "sold").write_text("a file")
    assert told(tmp_path, "hub", files=str(tmp_path / "sold" / "files")) == []
