# SPDX-License-Identifier: Apache-2.0
"""Removes secrets from text: known secrets and strings that look like one.

In doubt it removes more: a missing word is harmless, a leaked key is not.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

REMOVED = "[removed]"
_MIN_CHARACTERS = 6  # minimum length of a known secret: shorter strings occur in every text
_NAME = re.compile(r"(?i)(key|token|secret|passw|credential|auth|cookie|session|dsn)")
_HARMLESS_VALUES = re.compile(r"^(/[\w./-]*|\d+|true|false|yes|no|none)$", re.IGNORECASE)
# `password: x`, `api_key=x`, `"admin-key": "x"`, but not max_tokens, api_key_file or key. The name
# is found by its end: from each of its possible starts, a long name would be read again.
_SECRET_NAME = re.compile(
    r"(?i)(?:(?<![^\W_])(?:api_?key|secret|passw(?:or)?d|token|credentials?|authorization|cookie)"
    r"|(?<=[_-])(?P<key>key))[\"']?\s*[:=]\s*"
)
_SECRET_VALUE = re.compile(r"(?i)(?:(?:bearer|basic)\s+)?(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,;\"'}\]]+)")
_WORD = re.compile(r"\w")
# Prefixes of providers' keys, anywhere, even in a path; the start of a JSON Web Token.
_PROVIDER_KEY = re.compile(
    r"(?:sk|pk|rk|hf|nvapi|ghp|gho|ghs|glpat|pypi|xox[abpr]|npm)[-_][\w-]{10,}"
    r"|github_pat_\w+|AKIA[0-9A-Z]{12,}|AIza[\w-]{20,}|(?P<jwt>eyJ)(?=[\w-]{8})"
)
_JWT_PART = re.compile(r"[\w-]+")
_JWT_REST = re.compile(r"\.[\w-]+\.[\w-]*")
_MIN_JWT_HEADER = 11  # characters, eyJ included
_PATTERNS = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {REMOVED}"),
    (re.compile(r"(://)[^/\s@]+@"), rf"\1{REMOVED}@"),
    (
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL),
        REMOVED,
    ),
)
# Long strings with all kinds of characters: not words, paths or hexadecimal digests.
_RANDOM = re.compile(
    r"(?<![\w+/-])(?=[\w+-]*[a-z])(?=[\w+-]*[A-Z])(?=[\w+-]*\d)[\w+-]{32,}={0,2}(?![\w-])"
)


class Redaction:
    """Removes known secrets and strings that look like one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret.strip())}
        # The longest first: one may contain another.
        self._secrets = sorted(forms, key=len, reverse=True)

    @classmethod
    def of(
        cls,
        environment: Mapping[str, str],
        files: Iterable[Path],
        further_secrets: Iterable[str] = (),
    ) -> Redaction:
        """Redact variables with secret-like names and the content of key files."""
        secrets = [
            value
            for name, value in environment.items()
            if _NAME.search(name) and not _HARMLESS_VALUES.match(value)
        ]
        return cls([*secrets, *further_secrets, *(text for file in files for text in _lines(file))])

    def __call__(self, text: str) -> str:
        """Return the text without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, REMOVED)
        text = _without_named_secrets(text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return _RANDOM.sub(REMOVED, _without_provider_keys(text))


def _without_named_secrets(text: str) -> str:
    """Replace the values of names such as `api_key`, in time linear in the text's length."""
    parts, copied, position = [], 0, 0
    while match := _SECRET_NAME.search(text, position):
        position = match.end()
        if match["key"] and not _is_suffix(text, match.start()):
            continue
        if value := _SECRET_VALUE.match(text, position):
            parts += [text[copied:position], REMOVED]
            copied = position = value.end()
    return "".join([*parts, text[copied:]])


def _is_suffix(text: str, start: int) -> bool:
    """Whether a word precedes the `_key` or `-key` at `start`, dots and hyphens aside."""
    index = start - 2
    while index >= 0 and text[index] in ".-":
        index -= 1
    return index >= 0 and _WORD.match(text[index]) is not None


def _without_provider_keys(text: str) -> str:
    """Replace keys with a known form, in time linear in the text's length."""
    parts, copied, position, header_end = [], 0, 0, -1
    rest: re.Match[str] | None = None
    while match := _PROVIDER_KEY.search(text, position):
        end = match.end()
        if match["jwt"]:
            # Read a run of characters once, however many of its positions could start a token.
            if match.start() >= header_end and (part := _JWT_PART.match(text, match.start())):
                header_end = part.end()
                rest = _JWT_REST.match(text, header_end)
            if rest is None or header_end - match.start() < _MIN_JWT_HEADER:
                position = match.start() + 1
                continue
            end = rest.end()
        parts += [text[copied : match.start()], REMOVED]
        copied = position = end
    return "".join([*parts, text[copied:]])


def _forms(secret: str) -> set[str]:
    if len(secret) < _MIN_CHARACTERS:
        return set()
    return {secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode()}


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
