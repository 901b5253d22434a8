# SPDX-License-Identifier: Apache-2.0
"""Read `<family>/<rule>.yaml`: the files of a bad and a good repository.

`both` holds their common files. A file is its text, or a mapping: `shared` (a file of shared.yaml),
`onnx` (arguments of `onnx_file`), `bytes`, `zeros` (a length), `text` with a `mode`, or `link`.
`target` describes the server of the check. `tritonctl check` itself never reads these files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tritonctl.checks.examples.onnx import TYPES, X, Y, onnx_file
from tritonctl.checks.repository import CheckTarget, OpenAi

TESTED_TARGET = CheckTarget("2.51.0")
_FOLDER = Path(__file__).parent


class ExampleFile(NamedTuple):
    """A file of an example that is more than text."""

    content: bytes = b""
    mode: int | None = None
    link: str | None = None  # the target, if the file is a symbolic link


# Files of a small repository, by path: "m/config.pbtxt", "m/1/model.py".
Example = Mapping[str, str | ExampleFile]


class Examples(NamedTuple):
    """A repository with a rule's mistake, the same without it, and their target server."""

    bad: Example
    good: Example
    target: CheckTarget


@cache
def examples_of(family: str, rule: str) -> Examples:
    """Return the examples of a rule. Raises OSError if it has no file."""
    record = _read(f"{family}/{rule}.yaml")
    common = files_of(record.get("both", {}))
    return Examples(
        bad=files_of(record.get("bad", {})) | common,
        good=files_of(record.get("good", {})) | common,
        target=target_of(record.get("target", {})),
    )


def target_of(record: Mapping[str, Any]) -> CheckTarget:
    """Return the server that a record describes; what it leaves out is TESTED_TARGET's."""
    values = dict(record)
    if "gpus" in values:
        values["gpus"] = tuple(values["gpus"])
    if "backends" in values:
        values["backends"] = frozenset(values["backends"])
    if "openai" in values:
        values["openai"] = OpenAi(**values["openai"])
    return replace(TESTED_TARGET, **values)


def _read(name: str) -> dict[str, Any]:
    import yaml  # slow to import

    record: dict[str, Any] = yaml.safe_load((_FOLDER / name).read_text(encoding="utf-8"))
    return record


@cache
def _shared() -> dict[str, Any]:
    return _read("shared.yaml")


def files_of(record: Mapping[str, Any]) -> dict[str, str | ExampleFile]:
    """Return the files that a record describes, by path."""
    return {path: _file(value) for path, value in record.items()}


def _file(value: str | Mapping[str, Any]) -> str | ExampleFile:
    if isinstance(value, str):
        return value
    if "shared" in value:
        return str(_shared()[value["shared"]])
    content = value.get("bytes", bytes(value.get("zeros", 0)))
    if "text" in value:
        content = value["text"].encode()
    if "onnx" in value:
        content = _onnx(value["onnx"])
    return ExampleFile(content, value.get("mode"), value.get("link"))


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
