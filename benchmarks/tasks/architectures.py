# SPDX-License-Identifier: Apache-2.0
"""Builds every architecture of every task in every precision: parity, size and rate of each.

    python benchmarks/tasks/architectures.py FOLDER [--only=REGEX] [--engines NAME=FOLDER ...]
        [--write]

Checkpoints are made here with random weights (hidden size 32, 2 layers; images of 64 x 64 pixels):
their parity counts, their sizes and rates compare precisions and architectures with one another.
--engines adds engines of real checkpoints. FOLDER keeps the builds, for the
next run, which makes the absent ones alone. The rate is that of one core: texts of 64 tokens or
images a second of processor time, in ONNX Runtime alone with one thread, at the best of 1, 8 and 32
a run; other work of the machine moves it little. --write: the page
benchmarks/results/architectures.md, else it is printed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
sys.path += [str(HERE.parent), str(HERE.parent / "peers"), str(CHECKOUT)]

from proofs import Proven, proofs  # noqa: E402
from text_servers import builders_python  # noqa: E402

RESULTS = HERE.parent / "results" / "architectures.md"
PRECISIONS = ("fp32", "fp16", "int8")
TEXTS = (
    *("Albert", "Bert", "Camembert", "DebertaV2", "DistilBert", "Electra"),
    *("MPNet", "ModernBert", "Roberta", "XLMRoberta"),
)
IMAGES = ("ConvNext", "ConvNextV2", "DeiT", "Dinov2", "ResNet", "Swin", "ViT")
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "embedding": ("Model", {"steps": [["Pooling", {"pooling_mode": "mean"}], ["Normalize", {}]]}),
    "classification": ("ForSequenceClassification", {"config": {"num_labels": 3}}),
    "rerank": ("ForSequenceClassification", {"config": {"num_labels": 1}}),
    "token_classification": ("ForTokenClassification", {"config": {"num_labels": 5}}),
}
PIXELS = 64
# The measure that a precision is judged by.
PARITY = ("cosine", "score")
INTRODUCTION = """\
# Tasks, architectures, precisions

Made by `python benchmarks/tasks/architectures.py FOLDER --write`: parity with the reference
library (1 − the smallest cosine, or the largest difference of a score, over {cases} inputs),
size of the engine, and items a second of one core's time in ONNX Runtime alone: texts of
{tokens} tokens, images of {pixels} x {pixels} pixels. Bold: real checkpoints. The others have
random weights, hidden size 32 and 2 layers; their sizes and rates only compare precisions and
architectures with each other. –: not built, or [refused](#refused). Every build also saw every
mistake made on purpose.
"""


def wanted() -> Iterator[dict[str, Any]]:
    """Every build: its name, checkpoint and request."""
    for precision in PRECISIONS:
        for task, (head, changes) in TASKS.items():
            for family in TEXTS:
                yield {
                    "name": f"{task}-{family}-{precision}",
                    "checkpoint": {"class": f"{family}{head}", **changes},
                    "request": {"task": task, "precision": precision},
                }
        for family in IMAGES:
            name = f"{family}ForImageClassification"
            yield image(name, "image_classification", family, precision)
            tower = "CLIPVisionModelWithProjection" if family == "ViT" else f"{family}Model"
            if family != "ConvNextV2":
                yield image(tower, "image_embedding", tower.removesuffix("Model"), precision)


def image(name: str, task: str, family: str, precision: str) -> dict[str, Any]:
    """A build of a model of images; its checkpoint is written before."""
    return {
        "name": f"{task}-{family}-{precision}",
        "image": name,
        "request": {"task": task, "precision": precision},
    }


def build(folder: Path, jobs: Sequence[dict[str, Any]]) -> None:
    """Make what is absent, in one process of the builder's environment."""
    python = builders_python()
    absent = [job for job in jobs if not (folder / job["name"] / "S.json").exists()]
    for job in absent:
        if name := job.pop("image", None):
            job["checkpoint"] = str(checkpoint := folder / "checkpoints" / name)
            if not checkpoint.exists():
                script = CHECKOUT / "tests" / "tiny_vision.py"
                subprocess.run([python, script, name, checkpoint, str(PIXELS)], check=True)
    command = [python, CHECKOUT / "tests" / "task_builds.py", folder]
    subprocess.run(command, input=json.dumps(absent), text=True, check=True, stdout=sys.stderr)


def rates(builds: Sequence[Proven]) -> dict[str, float]:
    """Items a second of a core, by the build's folder."""
    command = [builders_python(), HERE / "rate.py", str(PIXELS)]
    graphs = json.dumps([str(one.folder / "engine" / "model.onnx") for one in builds])
    done = subprocess.run(command, input=graphs, text=True, check=True, stdout=subprocess.PIPE)
    found = json.loads(done.stdout)
    return {str(one.folder): rate for one, rate in zip(builds, found["rates"], strict=True)}


def page(builds: Sequence[Proven]) -> Iterator[str]:
    """The introduction, and a table for each task."""
    measured = rates(builds)
    cases = sorted({one.cases for one in builds})
    yield INTRODUCTION.format(cases=f"{cases[0]} to {cases[-1]}", tokens=64, pixels=PIXELS)
    for task in dict.fromkeys(one.task for one in builds):
        yield f"\n## `{task}`\n\n"
        cells = [
            f"{precision} {what}" for what in ("parity", "MB", "rate") for precision in PRECISIONS
        ]
        yield f"| architecture | {' | '.join(cells)} |\n|---|{'---|' * len(cells)}\n"
        of_task = [one for one in builds if one.task == task]
        for name in sorted({_name(one) for one in of_task}):
            some = {one.precision: one for one in of_task if _name(one) == name}
            rows = [some.get(precision) for precision in PRECISIONS]
            shown = [
                *("–" if one is None else parity(one) for one in rows),
                *("–" if one is None else f"{one.megabytes:.2f}" for one in rows),
                *("–" if one is None else f"{measured[str(one.folder)]:.0f}" for one in rows),
            ]
            yield f"| {name} | {' | '.join(shown)} |\n"


def refused(folder: Path) -> Iterator[str]:
    """The builds that ended with a reason, a line each."""
    yield "\n## Refused\n\n"
    for file in sorted(folder.glob("*/S.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        if result["status"] != "ok":
            yield f"- `{file.parent.name}`: {result['problem']}\n"


def _name(build: Proven) -> str:
    """A real one with its folder's name in front."""
    made_here = build.folder.name == "staging"
    return build.architecture if made_here else f"**{build.model}**, {build.architecture}"


def parity(build: Proven) -> str:
    """The measure that the precision is judged by."""
    name = next(name for name in PARITY if name in build.figures)
    value = build.figures[name]
    return f"{max(0.0, 1 - value) if name == 'cosine' else value:.0e}"


def main() -> None:
    """Build, measure, and print the page or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="keeps the builds")
    parser.add_argument("--only", default="", help="builds whose name this expression finds")
    parser.add_argument("--engines", nargs="*", default=[], metavar="NAME=FOLDER", help="real ones")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    build(folder, [job for job in wanted() if re.search(asked.only, job["name"])])
    builds = list(proofs([folder]))
    for real in asked.engines:
        name, _, engines = real.partition("=")
        builds += [replace(one, model=name) for one in proofs([Path(engines)])]
    text = "".join([*page(builds), *refused(folder)])
    if asked.write:
        RESULTS.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
