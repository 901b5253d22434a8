# SPDX-License-Identifier: Apache-2.0
"""Reads `<family>/<rule>.yaml`: the files of a bad repository and of a good one.

`both` holds what the two share. A file is its text, or a mapping: `shared` (a file of shared.yaml),
`onnx` (arguments of `onnx_file`), `bytes`, `zeros` (a length), `text` with a `mode`, or `link`.
`target` is the server that they are checked for. `tritonctl check` itself never reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tritonctl.checks.examples.onnx import TYPES, X, Y, onnx_file
from tritonctl.checks.repository import OpenAi, Target

TESTED = Target("2.51.0")
_HERE = Path(__file__).parent


class File(NamedTuple):
    """A file of an example that is more than text. link: what it is a symbolic link to."""

    content: bytes = b""
    mode: int | None = None
    link: str | None = None


# Files of a small repository, by path: "m/config.pbtxt", "m/1/model.py".
Example = Mapping[str, str | File]


class Examples(NamedTuple):
    """A repository with a rule's mistake, the same without it, and the server they are for."""

    bad: Example
    good: Example
    target: Target


@cache
def examples_of(family: str, rule: str) -> Examples:
    """The examples of a rule by its family and id. Raises OSError where there is no such file."""
    record = _read(f"{family}/{rule}.yaml")
    target = record.get("target", {})
    if "gpus" in target:
        target["gpus"] = tuple(target["gpus"])
    if "openai" in target:
        target["openai"] = OpenAi(**target["openai"])
    both = _files(record.get("both", {}))
    return Examples(
        bad=_files(record.get("bad", {})) | both,
        good=_files(record.get("good", {})) | both,
        target=replace(TESTED, **target),
    )


def _read(name: str) -> dict[str, Any]:
    import yaml  # slow to import

    record: dict[str, Any] = yaml.safe_load((_HERE / name).read_text(encoding="utf-8"))
    return record


@cache
def _shared() -> dict[str, Any]:
    return _read("shared.yaml")


def _files(record: Mapping[str, Any]) -> dict[str, str | File]:
    return {path: _file(value) for path, value in record.items()}


def _file(value: str | Mapping[str, Any]) -> str | File:
    if isinstance(value, str):
        return value
    if "shared" in value:
        return str(_shared()[value["shared"]])
    content = value.get("bytes", bytes(value.get("zeros", 0)))
    if "text" in value:
        content = value["text"].encode()
    if "onnx" in value:
        content = _onnx(value["onnx"])
    return File(content, value.get("mode"), value.get("link"))


def _onnx(graph: Mapping[str, Any]) -> bytes:
    tensors = {
        side: {name: (TYPES[dtype], shape) for name, (dtype, shape) in graph[side].items()}
        for side in ("inputs", "outputs")
        if side in graph
    }
    return onnx_file(
        tensors.get("inputs", X),
        tensors.get("outputs", Y),
        defaults=graph.get("defaults", ()),
        sequences=graph.get("sequences", ()),
        external=graph.get("external"),
    )
