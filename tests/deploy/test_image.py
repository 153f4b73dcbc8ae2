"""What the Dockerfile makes: a file system whose own `tollkeeper` plays the demo and serves, as nobody special."""

from __future__ import annotations

import json

import pytest

from tests.deploy.image import Stage, build

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # what is installed is installed anew, for minutes
OWN = ("/etc/tollkeeper", "/var/lib/tollkeeper")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    folder = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)
    for parent in folder.parents[:2]:
        parent.chmod(0o755)
    return build(folder)


def test_the_images_own_program_plays_the_demo_without_a_network(image: Stage) -> None:
    played = image.run(*image.said["ENTRYPOINT"], "demo")
    assert (played.returncode, played.stderr) == (0, ""), played.stdout + played.stderr
    assert played.stdout.rstrip().endswith("Every check was met.")


def test_it_runs_as_a_user_who_can_write_to_two_folders_alone(image: Stage) -> None:
    assert image.run("id", "-u").stdout == "10001\n"
    found = image.run("find", "/", "-xdev", "-writable", "!", "-type", "l", "-not", "-path", "/proc/*").stdout.split()
    assert sorted(path for path in found if not path.startswith((*OWN, "/tmp", "/var/tmp"))) == []  # noqa: S108
    assert set(OWN) <= set(found)
    assert image.said["VOLUME"] == list(OWN)


def test_it_holds_what_runs_and_nothing_that_builds(image: Stage) -> None:
    assert image.run("python3", "-c", "import tollkeeper, solders, asyncpg").returncode == 0
    assert image.run("python3", "-m", "pip", "--version").returncode == 1
    assert image.run("python3", "-c", "import pytest").returncode == 1
    assert not image.inside("/build").exists()


def test_it_serves_what_init_wrote_is_healthy_and_stops(image: Stage) -> None:
    """Start, health check and stop happen in one network of their own: the ports are the image's."""
    made = image.run(
        *image.said["ENTRYPOINT"], "init", "--rpc-url", "http://127.0.0.1:9", "--public-url", "http://localhost:8402"
    )
    assert made.returncode == 0, made.stderr
    health = json.dumps(image.said["HEALTHCHECK"])
    program = image.run("python3", "-c", SERVED, json.dumps([*image.said["ENTRYPOINT"], *image.said["CMD"]]), health)
    assert (program.returncode, program.stdout.split()) == (0, ["1", "0", "0"]), program.stdout + program.stderr


# Prints how the health check ends before the start, how it ends once it has been well, and how the program ends.
SERVED = """\
import json, subprocess, sys, time
command, health = map(json.loads, sys.argv[1:])
well = lambda: subprocess.run(health, stderr=subprocess.DEVNULL).returncode
print(well())
program = subprocess.Popen(command)
deadline = time.monotonic() + 120
while (found := well()) and program.poll() is None and time.monotonic() < deadline:
    time.sleep(0.2)
print(found)
program.terminate()
print(program.wait(60))
"""
