# SPDX-License-Identifier: Apache-2.0
"""What a misspelt name was meant to be, and how a remedy says it."""

from __future__ import annotations

import pytest

from tritonctl.errors import choices, suggest


@pytest.mark.parametrize(
    ("word", "nearest"),
    [("grcp_port", "grpc_port"), ("http_prot", "http_port"), ("nonsense", None), ("", None)],
)
def test_the_nearest_name(word: str, nearest: str | None) -> None:
    """One that is like it, or none."""
    assert suggest(word, iter(["http_port", "grpc_port"])) == nearest


def test_a_likeness_that_is_evidence() -> None:
    """What may well be another word is not taken for a misspelt one."""
    assert suggest("grpc", ["grpc_port"]) == "grpc_port"
    assert suggest("grpc", ["grpc_port"], cutoff=0.8) is None


def test_the_nearest_of_very_many() -> None:
    """Found among thousands by how a name begins or ends."""
    names = [f"model_{number}" for number in range(5_000)] + ["tokenizer"]
    assert suggest("tokenizr", names) == "tokenizer"
    assert suggest("nothing like it", names) is None


def test_a_remedy() -> None:
    """The nearest first, then all of them; none is said to be none."""
    assert choices("int9", ["fp32", "int8"], "one of") == "did you mean `int8`? one of fp32, int8"
    assert choices("x", ["fp32", "int8"], "one of") == "one of fp32, int8"
    assert choices("x", [], "models:") == "models: none"
