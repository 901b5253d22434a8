# SPDX-License-Identifier: Apache-2.0
"""`python tests/release_version.py TAG`: fails unless the tag is `v` and the package's version.

The changelog has to have a section for it. Standard library only: it runs before anything is built.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def problems(tag: str, version_file: str, changelog: str) -> list[str]:
    """What forbids that this tag is released."""
    found = re.search(r'__version__ = "([^"]+)"', version_file)
    version = found[1] if found else "unknown"
    problems = []
    if tag != f"v{version}":
        problems.append(f"the tag is {tag}, the package's version {version}: tag v{version}")
    if not re.search(rf"^## {re.escape(version)}\b", changelog, re.MULTILINE):
        problems.append(f"CHANGELOG.md has no section `## {version}`: rename `## Unreleased`")
    return problems


if __name__ == "__main__":
    version_file = ROOT / "tritonctl" / "host" / "version.py"
    found = problems(
        sys.argv[1],
        version_file.read_text(encoding="utf-8"),
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
    )
    sys.exit("\n".join(found) or 0)
