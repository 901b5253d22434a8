# SPDX-License-Identifier: Apache-2.0
"""A hook of MkDocs: links that leave docs/ lead to the repository, where these files are.

The pages themselves have relative links, which work in a checkout and on the repository's site.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(\]\()(\.\.?/[^)\s]+)(\))")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """The page with links to files outside of docs/ made absolute."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def replaced(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        if target.startswith("docs/"):
            return link[0]
        return f"{link[1]}{config.extra['social'][0]['link']}/blob/main/{target}{link[3]}"

    return _LINK.sub(replaced, markdown)
