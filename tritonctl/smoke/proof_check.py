# SPDX-License-Identifier: Apache-2.0
"""Check that a live model answers like the reference library did during its engine's build.

The build stores inputs and the reference's answers in the artefact (`proof/cases.json`), with the
bounds of the engine's precision: builders/shared/taskproof.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tritonctl.engines.builds.engine import built_engines
from tritonctl.errors import TritonctlError
from tritonctl.project.schema import Project
from tritonctl.protocol.tensors import infer_response
from tritonctl.smoke.answer_checks import answer_failure
from tritonctl.smoke.inputs import Arrays
from tritonctl.smoke.model_under_test import ModelUnderTest, SmokeRequest
from tritonctl.smoke.outcomes import SmokeOutcome

CHECK = "reference"
_FILE = Path("proof", "cases.json")
_DATA_URL = "data:image/*;base64,"
# For these measures the bound is a share of the answers; otherwise every answer must meet it.
_SHARE_MEASURES = ("label", "entities")


@dataclass(frozen=True)
class Cases:
    """The cases of a proof, by the public tensors' names, and its bounds."""

    reference: str
    bounds: Mapping[str, float]
    cases: Sequence[Mapping[str, Any]]


def cases_of(project: Project | None, model: str) -> Cases | str | None:
    """Return a model's proof, a str with the reason if it is unreadable, or None without one."""
    entry = project.models.get(model) if project else None
    if project is None or entry is None or entry.task == "tensors":
        return None
    try:
        artefact = built_engines(project.only([model]))[model]
        proof = artefact.manifest.result.proof
        if proof is None:
            return None
        record = json.loads((artefact.folder / _FILE).read_text(encoding="utf-8"))
    except TritonctlError as error:
        return error.problem
    except (OSError, ValueError) as error:
        return f"{_FILE} of its engine cannot be read: {error}"
    if record["task"] != entry.task:  # the user's own steps may answer differently
        return None
    return Cases(proof.reference, record["bounds"], record["cases"])


def reference_check(subject: ModelUnderTest, proof: Cases) -> SmokeOutcome:
    """Send every case, alone and batched, and compare the answers.

    For labels and entities, the bound is the required share of equal answers.
    """
    compared: Counter[str] = Counter()
    wrong: dict[str, list[str]] = {}
    request = None
    for group in _groups(proof.cases, int(subject.config.get("max_batch_size", 0))):
        batch_request = _request(subject, group)
        [answer] = subject.client.send_all(batch_request.message, stream=False)
        if problem := answer_failure(answer, subject.client.seconds):
            return subject.fail_outcome(
                CHECK, f"a request of {len(group)}: {problem}", batch_request
            )
        outputs = infer_response(answer.responses[0])
        for measure, problem in _differences(outputs, group, proof.bounds):
            compared[measure] += 1
            if problem:
                wrong.setdefault(measure, []).append(problem)
                request = request or batch_request
    exceeded = [
        f"{problems[0]}{f', and {len(problems) - 1} more' if len(problems) > 1 else ''}"
        for measure, problems in wrong.items()
        if len(problems) > (1 - _share(measure, proof.bounds)) * compared[measure]
    ]
    success_detail = (
        f"{len(proof.cases)} answers equal to {proof.reference}'s, alone and in batches"
    )
    return subject.verdict_outcome(CHECK, exceeded, success_detail, request or batch_request)


def _share(measure: str, bounds: Mapping[str, float]) -> float:
    return bounds.get(measure, 1.0) if measure in _SHARE_MEASURES else 1.0


def _groups(
    cases: Sequence[Mapping[str, Any]], max_batch_size: int
) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yield each case alone, then batches of cases with the same inputs."""
    for case in cases:
        yield [case]
    by_inputs: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for case in cases:
        by_inputs.setdefault(tuple(case["input"]), []).append(case)
    for group in by_inputs.values():
        for start in range(0, len(group) if max_batch_size > 1 else 0, max_batch_size):
            yield group[start : start + max_batch_size]


def _request(subject: ModelUnderTest, cases: Sequence[Mapping[str, Any]]) -> SmokeRequest:
    batches = int(subject.config.get("max_batch_size", 0)) > 0
    arrays: Arrays = {}
    for name in cases[0]["input"]:
        values = np.array([_bytes(case["input"][name]) for case in cases], dtype=object)
        arrays[name] = values.reshape(-1, 1) if batches else values
    return subject.request(arrays)


def _bytes(value: str) -> bytes:
    if value.startswith(_DATA_URL):
        return base64.b64decode(value.removeprefix(_DATA_URL))
    return value.encode()


def _differences(
    outputs: Mapping[str, Any], cases: Sequence[Mapping[str, Any]], bounds: Mapping[str, float]
) -> Iterator[tuple[str, str]]:
    """Yield tensor name and problem, "" without one, for each tensor of each case."""
    for row, case in enumerate(cases):
        text = " ".join(str(value) for value in case["input"].values())
        input_text = "an image" if text.startswith(_DATA_URL) else repr(text[:30])
        for name in case["expected"]:
            if name not in outputs:
                yield name, f"no output {name}"
                continue
            actual = outputs[name].reshape(len(cases), -1)[row]
            problem = _difference(name, case["expected"], actual, bounds)
            yield name, problem and f"{input_text}: {problem}"


def _difference(
    name: str, expected: Mapping[str, Any], actual: Any, bounds: Mapping[str, float]
) -> str:
    """Return the problem of a tensor; "" if it meets the bounds."""
    reference = expected[name]
    match name:
        case "embedding":
            similar = _cosine(np.asarray(reference, dtype=np.float64), actual.astype(np.float64))
            min_cosine = bounds["cosine"]
            return "" if similar >= min_cosine else f"cosine {similar:.6f}, at least {min_cosine:g}"
        case "score":
            return _score_difference(
                np.asarray(reference, dtype=np.float64).reshape(-1), actual, bounds
            )
        case "label":
            best = actual[0].decode("utf-8", "replace")
            scores = dict(zip(reference, expected["score"], strict=True))
            as_good = best in scores and scores[best] >= expected["score"][0] - bounds["score"]
            return "" if as_good else f"label {best}, not {reference[0]}"
        case "entities":
            actual_spans = [
                (entity["label"], entity["start"], entity["end"])
                for entity in json.loads(actual[0])
            ]
            spans = [(entity["label"], entity["start"], entity["end"]) for entity in reference]
            return (
                ""
                if actual_spans == spans
                else f"{len(actual_spans)} entities {actual_spans[:2]}, not {spans[:2]}"
            )
        case _:
            value = actual[0].item()
            return "" if value == reference else f"{name} {value}, not {reference}"


def _score_difference(expected: Any, actual: Any, bounds: Mapping[str, float]) -> str:
    if expected.shape != actual.shape:
        return f"{len(actual)} scores, not {len(expected)}"
    tolerance = bounds["score"] * max(1.0, float(np.abs(expected).max(initial=0.0)))
    error = float(np.abs(expected - actual).max(initial=0.0))
    return "" if error <= tolerance else f"a score differs by {error:.6g}, at most {tolerance:.6g}"


def _cosine(first: Any, second: Any) -> float:
    """Return the cosine; 0 for different sizes or a zero vector."""
    if first.shape != second.shape:
        return 0.0
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / lengths if lengths else 0.0
