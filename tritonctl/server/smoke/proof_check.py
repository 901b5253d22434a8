# SPDX-License-Identifier: Apache-2.0
"""Whether a served model answers as the reference library did when its engine was built.

The build kept inputs and the reference's answers in the artefact (`proof/cases.json`), with the
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

from tritonctl.engines.build.engine import built_engines
from tritonctl.errors import TritonctlError
from tritonctl.project.schema import Project
from tritonctl.protocol.tensors import infer_response
from tritonctl.server.smoke.answers import failure_of
from tritonctl.server.smoke.inputs import Arrays
from tritonctl.server.smoke.outcomes import Outcome
from tritonctl.server.smoke.subject import Request, Subject

CHECK = "reference"
_FILE = Path("proof", "cases.json")
_DATA_URL = "data:image/*;base64,"
# Of these the bound is a share of the answers; of the others each has to keep it.
_SHARES = ("label", "entities")


@dataclass(frozen=True)
class Cases:
    """A proof's inputs and answers, by the names of the public tensors, and its bounds."""

    reference: str
    bounds: Mapping[str, float]
    cases: Sequence[Mapping[str, Any]]


def cases_of(project: Project | None, model: str) -> Cases | str | None:
    """The proof of a project's model, or why it cannot be read; None where its task has none."""
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
    if record["task"] != entry.task:  # steps of the user's own may answer otherwise
        return None
    return Cases(proof.reference, record["bounds"], record["cases"])


def reference_check(subject: Subject, proof: Cases) -> Outcome:
    """Ask every case, alone and several in a request, and compare the answers.

    Of labels and entities the bound says which share of the answers has to be the same.
    """
    compared: Counter[str] = Counter()
    wrong: dict[str, list[str]] = {}
    request = None
    for group in _groups(proof.cases, int(subject.config.get("max_batch_size", 0))):
        asked = _request(subject, group)
        [answer] = subject.client.ask(asked.message, stream=False)
        if problem := failure_of(answer, subject.client.seconds):
            return subject.failed(CHECK, f"a request of {len(group)}: {problem}", asked)
        answered = infer_response(answer.responses[0])
        for measure, problem in _differences(answered, group, proof.bounds):
            compared[measure] += 1
            if problem:
                wrong.setdefault(measure, []).append(problem)
                request = request or asked
    too_many = [
        f"{problems[0]}{f', and {len(problems) - 1} more' if len(problems) > 1 else ''}"
        for measure, problems in wrong.items()
        if len(problems) > (1 - _share(measure, proof.bounds)) * compared[measure]
    ]
    right = f"{len(proof.cases)} answers as {proof.reference} gives them, alone and in batches"
    return subject.judged(CHECK, too_many, right, request or asked)


def _share(measure: str, bounds: Mapping[str, float]) -> float:
    return bounds.get(measure, 1.0) if measure in _SHARES else 1.0


def _groups(
    cases: Sequence[Mapping[str, Any]], largest: int
) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Each case alone; then those with the same inputs together."""
    for case in cases:
        yield [case]
    alike: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for case in cases:
        alike.setdefault(tuple(case["input"]), []).append(case)
    for group in alike.values():
        for at in range(0, len(group) if largest > 1 else 0, largest):
            yield group[at : at + largest]


def _request(subject: Subject, cases: Sequence[Mapping[str, Any]]) -> Request:
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
    answered: Mapping[str, Any], cases: Sequence[Mapping[str, Any]], bounds: Mapping[str, float]
) -> Iterator[tuple[str, str]]:
    """The tensor and what is wrong with it, "" if nothing, for each tensor of each case."""
    for row, case in enumerate(cases):
        text = " ".join(str(value) for value in case["input"].values())
        shown = "an image" if text.startswith(_DATA_URL) else repr(text[:30])
        for name in case["expected"]:
            if name not in answered:
                yield name, f"no output {name}"
                continue
            got = answered[name].reshape(len(cases), -1)[row]
            problem = _difference(name, case["expected"], got, bounds)
            yield name, problem and f"{shown}: {problem}"


def _difference(
    name: str, expected: Mapping[str, Any], got: Any, bounds: Mapping[str, float]
) -> str:
    """What is wrong; "" where the answer is as good as the expected one."""
    wanted = expected[name]
    match name:
        case "embedding":
            similar = _cosine(np.asarray(wanted, dtype=np.float64), got.astype(np.float64))
            least = bounds["cosine"]
            return "" if similar >= least else f"cosine {similar:.6f}, at least {least:g}"
        case "score":
            return _score_difference(np.asarray(wanted, dtype=np.float64).reshape(-1), got, bounds)
        case "label":
            best = got[0].decode("utf-8", "replace")
            scores = dict(zip(wanted, expected["score"], strict=True))
            as_good = best in scores and scores[best] >= expected["score"][0] - bounds["score"]
            return "" if as_good else f"label {best}, not {wanted[0]}"
        case "entities":
            made = [(one["label"], one["start"], one["end"]) for one in json.loads(got[0])]
            spans = [(one["label"], one["start"], one["end"]) for one in wanted]
            return "" if made == spans else f"{len(made)} entities {made[:2]}, not {spans[:2]}"
        case _:
            value = got[0].item()
            return "" if value == wanted else f"{name} {value}, not {wanted}"


def _score_difference(expected: Any, got: Any, bounds: Mapping[str, float]) -> str:
    if expected.shape != got.shape:
        return f"{len(got)} scores, not {len(expected)}"
    most = bounds["score"] * max(1.0, float(np.abs(expected).max(initial=0.0)))
    error = float(np.abs(expected - got).max(initial=0.0))
    return "" if error <= most else f"a score differs by {error:.6g}, at most {most:.6g}"


def _cosine(left: Any, right: Any) -> float:
    """0 where the sizes differ, or one has no direction."""
    if left.shape != right.shape:
        return 0.0
    lengths = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / lengths if lengths else 0.0
