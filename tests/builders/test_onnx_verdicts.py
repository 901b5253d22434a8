# SPDX-License-Identifier: Apache-2.0
"""`tritonctl check` on ONNX models against what Triton's ONNX Runtime backend would say of them.

The backend is not in the test server. Its checks are written down here from its source, and given
what a real session of ONNX Runtime says of the graph; the checker sees the files alone.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.unit.checks.repositories import put
from tests.unit.checks.test_tensors import config, tensor
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import ExampleFile
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.rules import RULES

pytestmark = pytest.mark.engine

TESTS = Path(__file__).resolve().parents[1]
CONFIGURATIONS = 1200
MINE = [rule for rule in RULES.values() if rule.id.startswith("TC2")]
SIZES = ("-1", "1", "2", "3", "4", "16", "64")
TYPES = {"float": "FP32", "int64": "INT64", "string": "STRING"}


def refused(session: dict[str, Any], batch: int, declared: dict[str, Any]) -> bool:
    """As ModelInstanceState::ValidateInputs and ValidateOutputs judge."""
    inputs = {one["name"]: one for one in session["inputs"]}
    outputs = {one["name"]: one for one in session["outputs"]}
    if len(declared["inputs"]) != len(inputs):
        return True
    return any(
        name not in there or _differs(there[name], batch, kind, dims, exact=there is outputs)
        for there, side in ((inputs, "inputs"), (outputs, "outputs"))
        for name, (kind, dims) in declared[side].items()
    )


def _differs(one: dict[str, Any], batch: int, kind: str, dims: list[int], *, exact: bool) -> bool:
    """CompareDimsSupported, and the comparison of types before it."""
    if TYPES.get(one["type"].removeprefix("tensor(").removesuffix(")")) != kind:
        return True
    shape = [size if isinstance(size, int) else -1 for size in one["shape"]]
    if not shape:
        return any(size != 1 for size in dims)
    if batch and shape[0] != -1:
        return True
    whole = [-1, *dims] if batch else dims
    return len(shape) != len(whole) or any(
        (exact or size != -1) and size != own for size, own in zip(shape, whole, strict=True)
    )


def drawn(rng: random.Random, session: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """A configuration near the right one: a few things are changed."""
    batch = rng.choice((0, 8))
    declared: dict[str, Any] = {}
    for side in ("inputs", "outputs"):
        declared[side] = {}
        for one in session[side]:
            shape = [size if isinstance(size, int) else -1 for size in one["shape"]]
            dims = shape[1:] if batch and rng.random() < 0.9 else shape
            kind = TYPES[one["type"].removeprefix("tensor(").removesuffix(")")]
            if rng.random() < 0.1:
                dims = [*dims, 3] if rng.random() < 0.5 else dims[1:]
            if dims and rng.random() < 0.15:
                dims[rng.randrange(len(dims))] = int(rng.choice(SIZES))
            if rng.random() < 0.05:
                kind = rng.choice(tuple(TYPES.values()))
            name = one["name"] if rng.random() < 0.96 else one["name"] + "_"
            if rng.random() < 0.97:
                declared[side][name] = (kind, dims or [1])
    return batch, declared


def _written(side: dict[str, Any]) -> str:
    return ", ".join(tensor(n, ", ".join(map(str, d)), k) for n, (k, d) in side.items())


@pytest.fixture(scope="module")
def sessions(
    onnxruntime_environment: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[Path, dict[str, Any]]:
    """The graphs of the builders' tests that can be served, and what sessions say of them."""
    folder = tmp_path_factory.mktemp("graphs")
    for script, arguments in (
        ("onnx_graphs.py", [folder]),
        ("onnx_description.py", [folder, folder / "result.json"]),
    ):
        subprocess.run([onnxruntime_environment, TESTS / script, *arguments], check=True)
    found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    usable = {folder / name: one["runtime"] for name, one in found.items() if one["runtime"]}
    return {
        path: one for path, one in usable.items() if _known(one) and "external" not in str(path)
    }


def _known(session: dict[str, Any]) -> bool:
    """Whether Triton has all its types, and the file all its shapes."""
    both = session["inputs"] + session["outputs"]
    return all(one["type"].split("(")[1][:-1] in TYPES and one["shape"] for one in both)


def test_verdicts(sessions: dict[Path, dict[str, Any]], tmp_path: Path) -> None:
    """No error where the backend would load the model; none missed but what only a session sees."""
    rng = random.Random(21)  # noqa: S311
    verdicts: Counter[tuple[bool, str]] = Counter()
    for number in range(CONFIGURATIONS):
        path = rng.choice(sorted(sessions))
        batch, declared = drawn(rng, sessions[path])
        if not declared["inputs"] or not declared["outputs"]:
            continue
        text = config(_written(declared["inputs"]), _written(declared["outputs"]), batch)
        folder = tmp_path / str(number)
        put(folder, {"m/config.pbtxt": text, "m/1/model.onnx": ExampleFile(path.read_bytes())})
        report = check_repository(folder, CheckTarget("2.51.0"), rules=MINE)
        said = "error" if report.failed else "warning" if report.findings else "nothing"
        expected = refused(sessions[path], batch, declared)
        verdicts[expected, said] += 1
        assert not (said == "error" and not expected), (path, text, report.findings)
        # Only a session works out that what the file calls "batch" is 1, and ranks that it lacks.
        if path.parent.name not in ("summed", "open_ranks"):
            assert not (said == "nothing" and expected), (path, text, sessions[path])
    assert verdicts[True, "error"] > CONFIGURATIONS // 4
    assert verdicts[False, "nothing"] > CONFIGURATIONS // 10
