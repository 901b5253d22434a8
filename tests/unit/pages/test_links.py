# SPDX-License-Identifier: Apache-2.0
"""Every relative link in every Markdown file leads to a file, and its anchor to a heading."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
_FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1`*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)")
_ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:")
_ID = re.compile(r'<a id="([^"]+)"></a>')
_HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)


class Link(NamedTuple):
    """A relative link: where it stands, and where it leads."""

    page: Path
    target: Path
    anchor: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.target}#{self.anchor}"


def markdown_pages() -> list[Path]:
    """Every Markdown file that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    pages = [ROOT / name for name in filter(None, listing.stdout.split("\0"))]
    return sorted(page for page in pages if page.is_file())


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links_of(page: Path, text: str) -> list[Link]:
    """The relative links of this text."""
    found = []
    # Code spans hold brackets that are no links.
    for address in _LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
        if not _ELSEWHERE.match(address):
            path, _, anchor = address.partition("#")
            found.append(Link(page, (page.parent / path).resolve() if path else page, anchor))
    return found


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of its headings, as GitHub and the site's generator make them, and its ids."""
    slugs: dict[str, int] = {}
    for heading in _HEADING.findall(prose(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = slugs.get(slug, -1) + 1
        slugs[slug] = number
        if number:
            slugs[f"{slug}-{number}"] = 0
    return frozenset({*slugs, *_ID.findall(prose(page))})


def broken(link: Link) -> bool:
    """Whether it leads nowhere."""
    if not link.target.exists():
        return True
    return bool(link.anchor) and link.anchor not in anchors(link.target)


def test_every_relative_link_leads_somewhere() -> None:
    """Files, and headings of files."""
    links = [link for page in markdown_pages() for link in links_of(page, prose(page))]
    assert len(links) > 400
    assert [str(link) for link in links if broken(link)] == []


def test_pages_of_the_documentation_can_be_found() -> None:
    """Each is linked from another one: the index, or a page that the index names."""
    links = [link for page in markdown_pages() for link in links_of(page, prose(page))]
    linked = {link.target for link in links if link.target != link.page}
    pages = {page for page in markdown_pages() if page.is_relative_to(ROOT / "docs")}
    assert sorted(str(page) for page in pages - linked) == []


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("[a](b.md)", True),
        ("[a](c.md)", False),
        ("[a](b.md#two-words)", True),
        ("[a](b.md#two-words-1)", True),
        ("[a](b.md#two-words-2)", False),
        ("[a](#own)", True),
        ("[a](b.md#row)", True),
        ("[a](#other)", False),
        ("[a](https://nowhere.invalid/x.md)", True),
        ("`[a](c.md)`", True),
    ],
)
def test_what_is_broken(tmp_path: Path, text: str, good: bool) -> None:
    """Files that are not there, anchors without a heading."""
    (tmp_path / "b.md").write_text(
        '# Two `words`\n\n## Two words\n\n```\n# Own\n```\n<a id="row"></a>\n'
    )
    page = tmp_path / "page.md"
    page.write_text(f"# Own\n\n{text}\n\n```\n[a](nowhere.md)\n```\n")
    assert any(broken(link) for link in links_of(page, prose(page))) is not good
