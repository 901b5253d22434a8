# SPDX-License-Identifier: Apache-2.0
"""What builds have proven: read from the manifests of engines, or the results of bare builds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Proven:
    """A build with its proof. `figures`: value by measure; `megabytes`: of the engine's files."""

    folder: Path
    model: str
    task: str
    architecture: str
    precision: str
    reference: str
    cases: int
    figures: dict[str, float]
    controls: list[dict[str, Any]]
    megabytes: float
    runtime: dict[str, Any]


def proofs(folders: Sequence[Path]) -> Iterator[Proven]:
    """Of every manifest.json and S.json (tests/task_builds.py) below the folders."""
    for folder in folders:
        for file in sorted(folder.rglob("manifest.json")):
            record = json.loads(file.read_text(encoding="utf-8"))
            yield from _of(file.parent, record["request"], record["result"])
        for file in sorted(folder.rglob("S.json")):
            request = json.loads(file.with_name("R.json").read_text(encoding="utf-8"))
            result = json.loads(file.read_text(encoding="utf-8"))
            yield from _of(file.parent / "staging", request, result)


def _of(folder: Path, request: dict[str, Any], result: dict[str, Any]) -> Iterator[Proven]:
    proof = result.get("proof")
    if not proof:
        return
    engine = (one["size"] for one in result["files"] if one["path"].startswith("engine/"))
    yield Proven(
        folder,
        request["model"],
        proof["task"],
        result["runtime"]["architecture"],
        request["precision"],
        proof["reference"],
        proof["cases"],
        {one["name"]: one["value"] for one in proof["figures"]},
        proof["controls"],
        sum(engine) / 1e6,
        result["runtime"],
    )
