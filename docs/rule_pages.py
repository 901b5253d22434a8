# SPDX-License-Identifier: Apache-2.0
"""A hook of MkDocs: a page for each rule of `tritonctl check`, made from the rule itself.

The repository holds their index alone; `tritonctl check --explain TC101` prints the same text.
"""

from __future__ import annotations

import re
from typing import Any

from mkdocs.structure.files import File, Files

from tritonctl.checks.report.pages import rule_pages

_FOLDER = "reference/check-rules"
_RULE_CELL = re.compile(r"^\| `(TC\d+)` \|", re.MULTILINE)


def on_files(files: Files, *, config: Any, **_: Any) -> Files:
    """The files of the site, and the pages of the rules."""
    for name, text in rule_pages().items():
        files.append(File.generated(config, f"{_FOLDER}/{name}", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The index with a link to the page of each rule."""
    if page.file.src_uri != f"{_FOLDER}/README.md":
        return markdown
    return _RULE_CELL.sub(r"| [\1](\1.md) |", markdown)
