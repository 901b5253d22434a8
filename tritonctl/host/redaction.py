# SPDX-License-Identifier: Apache-2.0
"""Removes secrets from text: known ones, and whatever looks like one.

In doubt it removes more: a report survives a missing word, a leaked key is lost.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

REMOVED = "[removed]"
_LEAST_CHARACTERS = 6  # of a known secret: shorter strings occur in every text
_NAME = re.compile(r"(?i)(key|token|secret|passw|credential|auth|cookie|session|dsn)")
_HARMLESS_VALUES = re.compile(r"^(/[\w./-]*|\d+|true|false|yes|no|none)$", re.IGNORECASE)
_PATTERNS = (
    # `password: x`, `api_key=x`, `"admin-key": "x"`; max_tokens, api_key_file, key are other words
    (
        re.compile(
            r"(?i)\b((?:(?:[\w.-]*[_.-])?(?:api_?key|secret|passw(?:or)?d|token|credentials?|"
            r"authorization|cookie)|[\w.-]+[_-]key)[\"']?\s*[:=]\s*)(?:(?:bearer|basic)\s+)?"
            r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,;\"'}\]]+)"
        ),
        rf"\1{REMOVED}",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {REMOVED}"),
    (re.compile(r"(://)[^/\s@]+@"), rf"\1{REMOVED}@"),
    (
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL),
        REMOVED,
    ),
    # Prefixes of providers' keys, anywhere, even in a path.
    (
        re.compile(
            r"(?:sk|pk|rk|hf|nvapi|ghp|gho|ghs|glpat|pypi|xox[abpr]|npm)[-_][\w-]{10,}"
            r"|github_pat_\w+|AKIA[0-9A-Z]{12,}|AIza[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*"
        ),
        REMOVED,
    ),
    # Long and of all kinds of characters: no word, no path, no hexadecimal digest.
    (
        re.compile(
            r"(?<![\w+/-])(?=[\w+-]*[a-z])(?=[\w+-]*[A-Z])(?=[\w+-]*\d)[\w+-]{32,}={0,2}(?![\w-])"
        ),
        REMOVED,
    ),
)


class Redaction:
    """Removes known secrets, and what looks like one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret.strip())}
        # The longest first: one may contain another.
        self._known = sorted(forms, key=len, reverse=True)

    @classmethod
    def of(
        cls, environment: Mapping[str, str], files: Iterable[Path], others: Iterable[str] = ()
    ) -> Redaction:
        """With the values of variables that sound secret, and what is in key files."""
        secrets = [
            value
            for name, value in environment.items()
            if _NAME.search(name) and not _HARMLESS_VALUES.match(value)
        ]
        return cls([*secrets, *others, *(text for file in files for text in _lines(file))])

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        for secret in self._known:
            text = text.replace(secret, REMOVED)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text


def _forms(secret: str) -> set[str]:
    if len(secret) < _LEAST_CHARACTERS:
        return set()
    return {secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode()}


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
