"""What holds for the documents: few decisions, short papers, short sentences."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.settlement.states import TRANSITIONS, State, public_status

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
DECISIONS_MAX: Final = 25
DECISION_WORDS_MAX: Final = 400
DECISION_PARTS: Final = ("**Context.**", "**Options.**", "**Outcome.**", "**Consequences.**")
SHORT_PAPERS: Final = ("architecture.md", "performance.md")
SENTENCE_WORDS_MAX: Final = 30
PAPER_LINES_MAX: Final = 250
DOCS_WORDS_MAX: Final = 45_000
# Names in docstrings that are another program's, or an example's.
OF_OTHERS: Final = {
    "personal_sign",
    "my.plan",
    "rpc_url_base_sepolia",
    "is_global",
    "tcpi_bytes_acked",
    "configuration.template",
    "node.url",
}


def decisions() -> dict[str, str]:
    return {path.name[:4]: path.read_text() for path in sorted((DOCS / "decisions").glob("0*.md"))}


def test_decisions_are_few_and_short_and_have_the_same_parts() -> None:
    records = decisions()
    assert 0 < len(records) <= DECISIONS_MAX
    assert {name: count for name, text in records.items() if (count := len(text.split())) > DECISION_WORDS_MAX} == {}
    assert [name for name, text in records.items() if any(text.count(part) != 1 for part in DECISION_PARTS)] == []


def test_every_decision_that_is_cited_is_there() -> None:
    citation = re.compile(r"[Dd]ecisions? (\d{4}(?:(?:, | and )\d{4})*)")
    cited = {
        number
        for folder in ("src", "tests", "bench", "docs")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".sql", ".md"}
        for numbers in citation.findall(path.read_text())
        for number in re.findall(r"\d{4}", numbers)
    }
    assert cited
    assert cited - set(decisions()) == set()


def written(*folders: str) -> str:
    """All that stands in sources, documents and tests of these folders."""
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*")))
    return "\n".join(path.read_text() for path in paths if path.suffix in {".py", ".sql", ".md", ".html", ".js"})


def test_every_section_of_the_contract_that_is_cited_is_there() -> None:
    there = set(re.findall(r"^#+ Contract (\d+(?:\.\d+)?)", (DOCS / "specification.md").read_text(), re.MULTILINE))
    number = r"\d+(?:\.\d+)?"
    citations = re.findall(rf"\b[Cc]ontract ({number}(?:(?:, | and | to ){number})*)", written("src", "tests", "docs"))
    cited = {section for sections in citations for section in re.findall(number, sections)}
    assert cited
    assert cited - there == set()


def test_every_attack_and_fault_that_is_cited_is_there() -> None:
    there = set(re.findall(r"\b(?:A-|[FI])\d+\b", (DOCS / "security.md").read_text()))
    cited = set(re.findall(r"\b(?:A-\d\d|[FI]\d{1,2})\b", "".join(re.findall(r"\([^()]*\)", written("src")))))
    assert cited
    assert cited - there == set()


def test_every_event_that_the_guide_explains_is_one_of_the_program_s() -> None:
    told = (DOCS / "guide-operator.md").read_text().partition("\n## 4. ")[2].partition("\n## 5. ")[0]
    cells = re.findall(r"^\| (`[a-z_]+`(?:, `[^|]+)?) \|", told, re.MULTILINE)
    sources = written("src", "tests")  # some are put together, and a test names them whole
    events = {event for cell in cells for event in re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", cell)}
    assert len(events) > 100
    assert {event for event in events if event not in sources} == set()


def essays() -> dict[str, str]:
    """What each package says of itself."""
    return {
        str(path.parent.relative_to(ROOT / "src")): ast.get_docstring(ast.parse(path.read_text())) or ""
        for path in (ROOT / "src").rglob("__init__.py")
    }


def test_every_package_says_where_to_begin() -> None:
    packages = essays()
    assert len(packages) > 50
    thin = [name for name, said in packages.items() if not 8 <= said.count("\n") <= 30]
    assert thin == []
    assert [name for name, said in packages.items() if not re.search(r"[Bb]egin with|[Rr]ead `\w+` first", said)] == []


def words_of_the_program() -> set[str]:
    """Every name in its code, of a module, of a table or a column, and every word in a text of it."""
    modules = [path for path in (ROOT / "src").rglob("*.py") if path.name != "__init__.py"]
    words = {part for path in modules for part in path.relative_to(ROOT / "src").with_suffix("").parts}
    words |= {folder.name for folder in (ROOT / "src").rglob("*") if folder.is_dir()}
    words |= {word for path in (ROOT / "src").rglob("*.sql") for word in re.findall(r"\w+", path.read_text())}
    for path in modules:
        tree = ast.parse(path.read_text())
        said = {id(node.body[0].value) for node in documented(tree) if isinstance(node.body[0], ast.Expr)}
        for node in ast.walk(tree):
            names = (getattr(node, kind, None) for kind in ("name", "id", "attr", "arg"))
            words |= {name for name in names if isinstance(name, str)}
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
                words |= set(re.findall(r"\w+", node.value))
    return words


def documented(tree: ast.Module) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """What has a docstring."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node):
            yield node


def test_every_name_in_a_docstring_is_there() -> None:
    words = words_of_the_program()
    any_name, long_name = r"`([A-Za-z_]\w*(?:\.\w+)*)`", r"`([a-z_]\w*(?:[._]\w+)+)`"  # `x` alone may be anything
    named = {
        (str(path.relative_to(ROOT / "src/tollkeeper")), name)
        for path in (ROOT / "src").rglob("*.py")
        for node in documented(ast.parse(path.read_text()))
        for name in re.findall(any_name if path.name == "__init__.py" else long_name, ast.get_docstring(node) or "")
    }
    assert len(named) > 100
    gone = {(path, name) for path, name in named if name not in OF_OTHERS and not set(name.split(".")) <= words}
    assert gone == set()


def prose(path: Path) -> str:
    """The docstrings and the comments of a module."""
    source = path.read_text()
    said = [ast.get_docstring(node) or "" for node in documented(ast.parse(source))]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join([*said, *(token.string for token in tokens if token.type == tokenize.COMMENT)])


def names_by_module() -> dict[tuple[str, ...], set[str]]:
    """What stands in each module, under each way to name it: `a.b.c`, `b.c` and `c`."""
    there: dict[tuple[str, ...], set[str]] = {}
    for path in (ROOT / "src/tollkeeper").rglob("*.py"):
        parts = path.relative_to(ROOT / "src/tollkeeper").with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        nodes = list(ast.walk(ast.parse(path.read_text())))
        names = {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
        names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        names |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
        for start in range(len(parts)):
            there.setdefault(parts[start:], set()).update(names)
            there.setdefault(parts[start:-1], set()).add(parts[-1])
    return there


def test_what_docstrings_and_comments_name_in_a_module_stands_there() -> None:
    there, gone, seen = names_by_module(), set(), 0
    for path in (ROOT / "src").rglob("*.py"):
        for name in set(re.findall(r"`([a-z_]\w*(?:\.\w+)+)`", prose(path))) - OF_OTHERS:
            parts = tuple(name.split("."))
            ends = [end for end in range(len(parts), 0, -1) if parts[:end] in there]
            seen += bool(ends)
            if ends and not set(parts[ends[0] :]) <= there[parts[: ends[0]]]:
                gone.add((str(path.relative_to(ROOT / "src/tollkeeper")), name))
    assert seen > 100
    assert gone == set()


@pytest.mark.parametrize("guide", ["guide-owner.md", "guide-operator.md"])
def test_guides_name_every_network(guide: str) -> None:
    text = (DOCS / guide).read_text()
    assert [name for name in NETWORKS if name not in text] == []


def test_documents_are_short() -> None:
    assert sum(len(path.read_text().split()) for path in DOCS.rglob("*.md")) <= DOCS_WORDS_MAX


@pytest.mark.parametrize("name", SHORT_PAPERS)
def test_papers_for_developers_are_short(name: str) -> None:
    assert (DOCS / name).read_text().count("\n") <= PAPER_LINES_MAX


def test_every_file_that_the_architecture_names_is_there() -> None:
    named = re.findall(r"`([\w/]+(?:\.py|/))`", (DOCS / "architecture.md").read_text())
    roots = (ROOT / "src/tollkeeper", ROOT)
    assert named
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


def test_what_the_architecture_names_in_a_file_stands_there() -> None:
    named = re.findall(r"`([A-Za-z_][\w.]*)` (?:in|of) `([\w/]+\.py)`", (DOCS / "architecture.md").read_text())
    assert len(named) > 5
    texts = {path: (ROOT / "src/tollkeeper" / path).read_text() for _, path in named}
    gone = [
        (name, path)
        for name, path in named
        if not all(re.search(rf"\b{part}\b", texts[path]) for part in name.split("."))
    ]
    assert gone == []


def sentences(text: str) -> Iterator[str]:
    """Split prose into sentences: code is left out; a paragraph, an item and a cell of a table each end one."""
    text = re.sub(r"^```.*?^```$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^    .*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"``[^`]*``|`[^`]*`", "code", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-|#]|\d+\.) ?)", text):
        for cell in paragraph.split("|"):
            yield from re.split(r"(?<=[.!?])\**\s+", " ".join(cell.split()))


@pytest.mark.parametrize("path", sorted(DOCS.glob("guide-*.md")), ids=lambda path: path.name)
def test_sentences_of_guides_are_short(path: Path) -> None:
    long = [sentence for sentence in sentences(path.read_text()) if len(sentence.split()) > SENTENCE_WORDS_MAX]
    assert long == []


def test_the_life_of_a_settlement_is_drawn_from_its_table() -> None:
    row = re.compile(r"^\| ([A-Z]+) \| (\w+) \| [^|]+ \| ([A-Z, ]+) \|$", re.MULTILINE)
    wanted = [
        (state.value, public_status(state).value, ", ".join(new for new in State if new in TRANSITIONS[state]))
        for state in State
    ]
    assert row.findall((DOCS / "architecture.md").read_text()) == wanted
