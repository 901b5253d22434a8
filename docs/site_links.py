# SPDX-License-Identifier: Apache-2.0
"""A hook of MkDocs: links from docs/ to other files of the repository.

The pages have relative links, which work in a checkout. The site has no such files: the links lead
to the repository that REPOSITORY_URL names (https://HOST/OWNER/NAME), or become plain text.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import Any

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((\.\.?/[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page with its links to files outside docs/ replaced."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")
    repository = os.environ.get("REPOSITORY_URL", "").rstrip("/")

    def replaced(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[3]))
        if target.startswith("docs/"):
            return link[0]
        return f"{link[1]}[{link[2]}]({repository}/blob/main/{target})" if repository else link[2]

    return _LINK.sub(replaced, markdown)
