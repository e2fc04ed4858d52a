"""Documents point at things that exist: links, paths in code marks, and the names of the glossary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts import wrap_markdown

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "orbitmq"
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)[^)]*\)")
# `store/maintenance/flush.py`, `tests/apache/`, `docs/formats/record.md`: a slash or a known ending makes it a path.
PATH = re.compile(r"`((?:[\w.-]+/)*[\w.-]+(?:\.(?:py|md|sh|toml|txt)|/))`")
GLOSSARY_NAMES = re.compile(r"`((?:[\w.]+/)*\w+\.py)`((?: `[\w.]+`,?)+)")


def documents() -> list[Path]:
    folders = [path for folder in ("docs", "src") for path in sorted((ROOT / folder).rglob("*.md"))]
    return sorted(ROOT.glob("*.md")) + folders


def broken_links(document: Path) -> Iterator[str]:
    for target in LINK.findall(document.read_text("utf-8")):
        if "://" not in target and not (document.parent / target).exists():
            yield f"dead-link: {document.relative_to(ROOT)}: {target}"


def long_lines(document: Path) -> Iterator[str]:
    """Prose of more than 120 characters in a line. Tables and code cannot be broken anywhere."""
    text = document.read_text("utf-8")
    if wrap_markdown.wrapped(text) != text:
        yield f"long-line: {document.relative_to(ROOT)}: run `python scripts/wrap_markdown.py {document.name}`"


def missing_paths(document: Path) -> Iterator[str]:
    for name in PATH.findall(document.read_text("utf-8")):
        if not any((base / name).exists() for base in (ROOT, PACKAGE, document.parent)):
            yield f"dead-path: {document.relative_to(ROOT)}: {name}"


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_every_document_lead_somewhere(document: Path) -> None:
    assert list(broken_links(document)) == []


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_of_every_document_fit_120_columns(document: Path) -> None:
    assert list(long_lines(document)) == []


NAMING_PATHS = [
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/glossary.md", "docs/index.md"),
    *sorted(str(path.relative_to(ROOT)) for path in PACKAGE.rglob("README.md")),
]


@pytest.mark.parametrize("name", NAMING_PATHS)
def test_paths_named_in_a_document_exist(name: str) -> None:
    assert list(missing_paths(ROOT / name)) == []


def test_names_of_the_glossary_exist_in_their_modules() -> None:
    found = GLOSSARY_NAMES.findall((ROOT / "docs" / "glossary.md").read_text("utf-8"))
    assert len(found) > 20
    for path, names in found:
        source = (PACKAGE / path).read_text("utf-8")
        for name in re.findall(r"[\w.]+", names):
            last = name.rpartition(".")[2]
            assert re.search(rf"\b(?:class|def) {last}\b", source), f"dead-name: {path} has no {name}"


def test_checks_of_documents_find_what_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    document = tmp_path / "a.md"
    document.write_text("[x](gone.md) and [y](https://example.org/z) and `store/gone.py` and `a.md`")
    assert list(broken_links(document)) == ["dead-link: a.md: gone.md"]
    assert list(missing_paths(document)) == ["dead-path: a.md: store/gone.py"]
    assert list(long_lines(document)) == []
    document.write_text(f"{'word ' * 30}\n\n| {'cell ' * 40} |\n\n```\n{'code ' * 40}\n```\n")
    assert list(long_lines(document)) == ["long-line: a.md: run `python scripts/wrap_markdown.py a.md`"]
    document.write_text(wrap_markdown.wrapped(document.read_text()))
    assert list(long_lines(document)) == []
