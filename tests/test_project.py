"""What holds for every file of the project: no registry's address, no machine's path, no loose end, small files."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tollkeeper
from bench.__main__ import BENCHMARKS

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE_LINES_MAX: Final = 512
FUNCTION_LINES_MAX: Final = 70
FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef
LOCKS: Final = ("run", "sandbox", "postgresql", "dev", "node", "go")

# Written in pieces, so that this file passes its own tests.
REGISTRIES: Final = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"), ("files", "pythonhosted", "org"), ("registry", "npmjs", "org"), ("registry", "npmjs", "com"),
        ("registry", "yarnpkg", "com"), ("static", "crates", "io"), ("index", "crates", "io"),
        ("proxy", "golang", "org"), ("deb", "debian", "org"), ("repo", "maven", "apache", "org"),
    )
)  # fmt: skip
MACHINE_PATH: Final = re.compile(r"(?<![\w./~$}-])/(?:root|work|Users/\w+|home/\w+)(?=/)")
LOOSE_END: Final = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
SUPPRESSION: Final = re.compile(r"#\s*(?:noqa|ruff:\s*noqa|type:\s*ignore)\b")
REASONED: Final = re.compile(
    r"#\s*(?:(?:ruff: )?noqa: [A-Z]+\d+(?:, ?[A-Z]+\d+)*|type: ignore\[[a-z, -]+\])\s*[-#]?\s*\w+"
)


@cache
def project_files() -> dict[str, str]:
    """Every text file that is, or would be, committed: its path from the root, and its text."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607 - git of the PATH
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    texts = {}
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b"\0"
        if b"\0" not in content:
            texts[name] = content.decode("utf-8")
    return texts


def python_sources(*folders: str) -> dict[str, str]:
    return {
        name: text
        for name, text in project_files().items()
        if name.endswith(".py") and name.split("/", 1)[0] in (folders or ("src", "tests", "bench"))
    }


def is_lock(name: str) -> bool:
    return name.endswith("package-lock.json") or (name.endswith(".txt") and "--hash=" in project_files()[name])


def pyproject() -> dict[str, Any]:
    return tomllib.loads(project_files()["pyproject.toml"])


def lock_entries(name: str) -> dict[str, str]:
    """Of one lock, "name==version" for each requirement and the text that belongs to it (marker and hashes)."""
    text = re.sub(r"\\\n\s*", " ", project_files()[f"requirements/{name}.txt"])
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    return {re.split(r"[ ;]", line, maxsplit=1)[0]: line for line in lines}


def test_no_file_names_a_registry() -> None:
    found = [(name, host) for name, text in project_files().items() for host in REGISTRIES if host in text]
    assert found == []


def test_npm_locks_hold_hashes_and_no_address() -> None:
    locks = {name: json.loads(text) for name, text in project_files().items() if name.endswith("package-lock.json")}
    assert locks
    for name, lock in locks.items():
        packages = {path: package for path, package in lock["packages"].items() if path}
        assert packages, name
        assert [path for path, package in packages.items() if "resolved" in package] == [], name
        assert [path for path, package in packages.items() if "integrity" not in package] == [], name


@pytest.mark.parametrize("pattern", [MACHINE_PATH, LOOSE_END], ids=["path of a machine", "loose end"])
def test_no_file_holds(pattern: re.Pattern[str]) -> None:
    found = [
        f"{name}:{number}: {line.strip()[:80]}"
        for name, text in project_files().items()
        if not is_lock(name)
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []


def test_source_files_are_small() -> None:
    lines = {name: text.count("\n") for name, text in python_sources("src").items()}
    assert {name: count for name, count in lines.items() if count > SOURCE_LINES_MAX} == {}


def test_functions_fit_on_a_screen() -> None:
    long = [
        f"{name}:{node.lineno} {node.name}"
        for name, text in python_sources("src").items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


def test_every_module_says_what_it_does() -> None:
    assert [name for name, text in python_sources("src").items() if not ast.get_docstring(ast.parse(text))] == []


def test_every_suppression_names_its_rule_and_a_reason() -> None:
    found = [
        f"{name}:{token.start[0]}: {token.string}"
        for name, text in python_sources().items()
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and SUPPRESSION.search(token.string) and not REASONED.search(token.string)
    ]
    assert found == []


def test_every_ruff_ignore_has_a_reason() -> None:
    entry = re.compile(r'^\s*"[A-Z]+[0-9]+",(.*)$')
    rules = [line for line in project_files()["pyproject.toml"].splitlines() if entry.match(line)]
    lint = pyproject()["tool"]["ruff"]["lint"]
    assert lint["select"] == ["ALL"]
    ignored = lint["ignore"] + [rule for rules in lint["per-file-ignores"].values() for rule in rules]
    assert len(rules) == len(ignored)  # one a line, and no other way to ignore
    assert [line for line in rules if not re.search(r"# \w+,? \S+", line)] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_is_exact_and_hashed(lock: str) -> None:
    entries = lock_entries(lock)
    assert entries
    assert [name for name, line in entries.items() if "==" not in name or "--hash=sha256:" not in line] == []


@pytest.mark.parametrize("lock", ["run", "sandbox", "postgresql", "dev"])
def test_extras_that_locked_packages_want_of_each_other_are_locked(lock: str) -> None:
    """An older pip looks for the newest release of a package whose extra is wanted and not locked: it has no hash."""
    locked = {canonicalize_name(one.name): one for one in map(Requirement, lock_entries(lock))}
    installed = {canonicalize_name(one.name): one for one in metadata.distributions()}
    missing = []
    for name in locked.keys() & installed.keys():
        for text in installed[name].requires or ():
            wanted = Requirement(text)
            part = locked.get(canonicalize_name(wanted.name))
            applies = wanted.marker is None or any(
                wanted.marker.evaluate({"extra": extra}) for extra in ("", *locked[name].extras)
            )
            if part is not None and applies and wanted.extras - part.extras:
                missing.append(f"{name} wants {wanted}")
    assert missing == []


@pytest.mark.parametrize(("smaller", "larger"), [("run", "sandbox"), ("sandbox", "postgresql"), ("postgresql", "dev")])
def test_one_environment_can_hold_all_locks(smaller: str, larger: str) -> None:
    assert lock_entries(smaller).keys() - lock_entries(larger).keys() == set()


def test_package_depends_on_what_the_lock_is_made_from() -> None:
    def names(lines: list[str]) -> list[str]:
        return sorted(re.split(r"[<>=; ]", line, maxsplit=1)[0] for line in lines if line and not line.startswith("#"))

    wanted = project_files()["requirements/run.in"].splitlines()
    assert names(pyproject()["project"]["dependencies"]) == names(wanted)
    chains = [line for line in project_files()["requirements/sandbox.in"].splitlines() if line[0] not in "#-"]
    assert pyproject()["project"]["optional-dependencies"]["sandbox"] == chains


def test_changelog_has_this_version() -> None:
    assert re.search(
        rf"^## \[(?:{re.escape(tollkeeper.__version__)}|Unreleased)\]", project_files()["CHANGELOG.md"], re.MULTILINE
    )


def test_readme_names_every_command_of_the_makefile() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", project_files()["Makefile"], re.MULTILINE)
    assert phony
    readme = project_files()["README.md"]
    assert [target for target in phony[1].split() if f"make {target}" not in readme and target != "interop-setup"] == []


def test_performance_says_of_every_benchmark_beside_what_it_is_measured() -> None:
    rows = re.findall(
        r"^\| `(?:make bench NAME=)?([\w-]+)` \| [^|]+\| [^|]+\|", project_files()["docs/performance.md"], re.MULTILINE
    )
    assert sorted(set(BENCHMARKS) - set(rows)) == []


def test_links_between_documents_lead_somewhere() -> None:
    link = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)\s]*)?\)")
    broken = [
        f"{name}: {target}"
        for name, text in project_files().items()
        if name.endswith(".md")
        for target in link.findall(text)
        if not (ROOT / name).parent.joinpath(target).exists()
    ]
    assert broken == []


def test_the_operators_guide_explains_every_event_and_metric_that_wants_attention() -> None:
    guide, told = project_files()["docs/guide-operator.md"], set[str]()
    for name, text in python_sources("src").items():
        if name.startswith("src/tollkeeper/sandbox/"):
            continue
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and node.args):
            is_event = isinstance(call.func, ast.Attribute) and call.func.attr in {"warning", "error", "exception"}
            for part in ast.walk(call.args[0]):
                words = part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else ""
                if words and (is_event or re.fullmatch(r"tollkeeper_[a-z_]+", words)):
                    told.add(words.partition("%")[0].rstrip(": "))
    assert {"sale_held", "file_missing", "tollkeeper_differences", "the disk still takes no writes"} <= told
    assert sorted(words for words in told if f"`{words}" not in guide) == []


def test_each_attack_fault_and_invariant_names_tests_that_exist() -> None:
    tests = {
        node.name
        for source in python_sources("tests").values()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    rows = re.findall(r"^\| ((?:[AFI]-?\d+(?:, )?)+) \|(.*)$", project_files()["docs/security.md"], re.MULTILINE)
    named = {name: set(re.findall(r"`(test_\w+)`", row)) for names, row in rows for name in names.split(", ")}
    assert len(named) == sum(len(names.split(", ")) for names, _ in rows)  # none is there twice
    assert not [name for name, wanted in named.items() if not wanted or wanted - tests]
    everything = [f"A-{n:02}" for n in range(1, 37)] + [f"F{n}" for n in range(1, 27)] + [f"I{n}" for n in range(1, 15)]
    assert set(everything) <= set(named)


def test_each_rule_of_the_contract_is_where_the_architecture_says() -> None:
    section = project_files()["docs/architecture.md"].partition("\n## 5. ")[2].partition("\n## 6. ")[0]
    rows = re.findall(r"^\| (\d[\d.]*) \|[^|]*\|(.*)\|$", section, re.MULTILINE)
    sources = python_sources("src")
    absent: list[str] = []
    for _, places in rows:
        for name, symbols in re.findall(r"`([\w/]+\.py)`(?: \(([^)]*)\))?", places):
            names = set(re.findall(r"`([\w.]+)`", symbols))
            tree = ast.parse(sources.get(f"src/tollkeeper/{name}", ""))
            if not tree.body or names - set(defined_in(tree)):
                absent.append(f"{name} {sorted(names)}")
    assert absent == []
    assert {f"4.{part}" for part in range(1, 9)} <= {number for number, _ in rows}


def defined_in(tree: ast.Module) -> Iterator[str]:
    """Classes, functions and constants; methods under their own name and behind their class's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, FUNCTIONS))
        if isinstance(node, ast.ClassDef | FUNCTIONS):
            yield node.name
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_few_annotations_say_any() -> None:
    used = sum(
        isinstance(node, ast.Name) and node.id == "Any"
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    )
    assert used < 200
