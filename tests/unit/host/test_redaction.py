# SPDX-License-Identifier: Apache-2.0
"""What is removed from texts: the same as by plain patterns, which take minutes for long names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonctl.host.redaction import REMOVED, Redaction

# The definition. Both are super-quadratic: they start again at each character of a long name.
_NAMED = re.compile(
    r"(?i)\b((?:(?:[\w.-]*[_.-])?(?:api_?key|secret|passw(?:or)?d|token|credentials?|"
    r"authorization|cookie)|[\w.-]+[_-]key)[\"']?\s*[:=]\s*)(?:(?:bearer|basic)\s+)?"
    r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,;\"'}\]]+)"
)
_BETWEEN = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {REMOVED}"),
    (re.compile(r"(://)[^/\s@]+@"), rf"\1{REMOVED}@"),
    (
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL),
        REMOVED,
    ),
)
_PROVIDERS = re.compile(
    r"(?:sk|pk|rk|hf|nvapi|ghp|gho|ghs|glpat|pypi|xox[abpr]|npm)[-_][\w-]{10,}"
    r"|github_pat_\w+|AKIA[0-9A-Z]{12,}|AIza[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*"
)
_RANDOM = re.compile(
    r"(?<![\w+/-])(?=[\w+-]*[a-z])(?=[\w+-]*[A-Z])(?=[\w+-]*\d)[\w+-]{32,}={0,2}(?![\w-])"
)


def by_definition(text: str) -> str:
    text = _NAMED.sub(rf"\1{REMOVED}", text)
    for pattern, replacement in _BETWEEN:
        text = pattern.sub(replacement, text)
    return _RANDOM.sub(REMOVED, _PROVIDERS.sub(REMOVED, text))


_PIECES = st.sampled_from(
    [
        *("key", "KEY", "api_key", "apikey", "secret", "token", "passwd", "credentials", "cookie"),
        *("_", "-", ".", ":", "=", " ", '"', "'", "\n", ",", ";", "}", "]", "@", "://", "+", "/"),
        *("bearer", "Basic ", "a", "max", "é", "ſecret", "0", "x" * 9, "aB3" * 11, "\t"),
        *("sk-", "hf_", "eyJ", "AKIA", "AIza", "github_pat_", "ABCDEFGHIJKL", "--", "eyJabcdefgh"),
        *("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"),
    ]
)


@settings(max_examples=1000, deadline=None)
@given(st.lists(_PIECES, max_size=14).map("".join))
def test_the_same_as_by_definition(text: str) -> None:
    """Whatever the pieces of secrets are next to."""
    assert Redaction()(text) == by_definition(text)


@pytest.mark.parametrize(
    "piece",
    [
        *("a-", "a.b_", "x_key", "token-", "aA1", "a", "aA-", "sk-", "eyJ", "eyJaaaaaaaa.", "-key"),
        *("token:", "token: ", 'token:"', "--key:", "bearer ", "://", "AKIA", "eyJaaaaaaaa.a"),
    ],
)
def test_a_long_text(piece: str) -> None:
    """Half a megabyte takes a moment; by the definition, hours."""
    text = piece * (500_000 // len(piece))
    assert len(Redaction()(text)) <= 2 * len(text)
