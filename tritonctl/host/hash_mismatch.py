# SPDX-License-Identifier: Apache-2.0
"""Explains a package whose hash is not in the lock, from the output of uv or pip."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_UV_PACKAGE = re.compile(r"Hash mismatch for `([^`]+)`")
_UV_HASH = re.compile(r"Computed:\s+sha256:([0-9a-f]{64})")
_PIP_PACKAGE = re.compile(r"DO NOT MATCH THE HASHES[^\n]*\n\s+(\S+)(?: from (\S+))?")
_PIP_HASH = re.compile(r"\n\s+Got\s+([0-9a-f]{64})")


@dataclass(frozen=True)
class HashMismatch:
    """A file that the installer refused."""

    package: str  # NAME==VERSION
    sha256: str  # of the file; "" if the output does not have it
    sources: tuple[str, ...]  # the file's URL, or the folders and indexes that were searched

    def problem(self, locks: Iterable[Path]) -> str:
        """Return the sentence of the error."""
        digest = f" (SHA-256 {self.sha256})" if self.sha256 else ""
        return (
            f"the file of {self.package}{digest} from {', '.join(self.sources)} is not one of "
            f"those in {', '.join(dict.fromkeys(map(str, locks)))}"
        )

    @property
    def remedy(self) -> str:
        """The likely causes and the next step."""
        return (
            "probably a mirror that rebuilds packages, or a wheel of your own: use an index with "
            "the original file (PIP_INDEX_URL), or remove that wheel (PIP_FIND_LINKS), then run "
            "the command again; otherwise the file may be forged: do not install it"
        )


def hash_mismatch(output: str, sources: Iterable[str] = ()) -> HashMismatch | None:
    """Return the file that uv or pip refused, or None if the output has no such error.

    sources: the folders and indexes that uv searched; pip names the file's URL.
    """
    if package := _UV_PACKAGE.search(output):
        digest = _UV_HASH.search(output, package.end())
        return HashMismatch(package[1], digest[1] if digest else "", tuple(sources))
    if package := _PIP_PACKAGE.search(output):
        digest = _PIP_HASH.search(output, package.end())
        url = (package[2],) if package[2] else tuple(sources)
        return HashMismatch(package[1], digest[1] if digest else "", url)
    return None
