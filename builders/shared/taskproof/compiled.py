# SPDX-License-Identifier: Apache-2.0
"""The proof of what is compiled of an exported task: the same cases, the kept answers.

What the stage before found out stands: that the graph answers as the reference library does, and
that mistakes would be seen. Needs numpy, tokenizers and Pillow, and no reference library.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasklib import task_file
from tasklib.image_settings import ImageSettings

from buildlib import artefact
from buildlib.problems import BuildError
from buildlib.program import say
from buildlib.request import Request
from taskcompile.image_task import IMAGE_TASKS, INPUT
from taskcompile.task import Task, Text
from taskproof import image_evaluation
from taskproof.evaluation import evaluate
from taskproof.figures import Figure, require
from taskproof.image_cases import image_cases
from taskproof.image_scene import Reference, Scene, graph_figures, served_pixels
from taskproof.image_scene import write_cases as write_image_cases
from taskproof.inputs import Inputs, figures_of, read_cases, write_cases
from taskproof.kept import kept_answers, kept_report, kept_vectors
from taskproof.served import Run, served

_DROPPED = ("entities", "either_side")


@dataclass(frozen=True)
class Compiled:
    """What is proven. `source`: the artefact of the export; `engine`: the graph's inputs by name to
    its only output; `precision`: a column of figures.py; `bounds`: the user's own.
    """

    request: Request
    source: Path
    precision: str
    engine: Run
    bounds: dict[str, float]


def prove_compiled(subject: Compiled, folder: Path, *, remedy: str) -> dict[str, Any]:
    """The `proof` of the build result; its cases are written into `folder`.

    Raises:
        BuildError: the engine does not answer as the reference does.
    """
    record = task_file.read_task(subject.source / artefact.TASK)
    before = kept_report(subject.source / artefact.PROOF)
    if record.task in IMAGE_TASKS:
        figures, own = _images(subject, record, before, folder, remedy)
    else:
        figures, own = _texts(subject, record, before, folder, remedy)
    kept = {key: value for key, value in before.items() if key not in _DROPPED}
    return kept | {"figures": [vars(one) for one in figures], "evaluation": own}


def _texts(
    subject: Compiled,
    record: task_file.Task,
    before: dict[str, Any],
    folder: Path,
    remedy: str,
) -> tuple[list[Figure], dict[str, Any] | None]:
    task = task_of(record)
    steps = served(task, subject.source / artefact.TOKENIZER)
    cases, rows = read_cases(steps)
    inputs = Inputs(steps, cases, rows, kept_answers(subject.source / artefact.PROOF))
    figures = figures_of(
        inputs,
        subject.engine,
        subject.precision,
        subject.bounds,
        either_side=bool(before["either_side"]),
    )
    _require(figures, subject, before, remedy)
    own = evaluate(subject.request, task, steps, _score(before), subject.engine)
    write_cases(folder, inputs, figures)
    return figures, own


def _images(
    subject: Compiled,
    record: task_file.Task,
    before: dict[str, Any],
    folder: Path,
    remedy: str,
) -> tuple[list[Figure], dict[str, Any] | None]:
    settings = ImageSettings(**(record.image or {}))
    cases = image_cases()
    pixels = served_pixels(settings, [case.encoded for case in cases])
    answers = kept_vectors(subject.source / artefact.PROOF)
    scene = Scene(
        task=record.task,
        labels=record.labels,
        settings=settings,
        cases=cases,
        pixels=pixels,
        expected=Reference(pixels, answers),  # the same pixels, as the stage before has found
    )

    def graph(pixels: Any) -> Any:
        return subject.engine({INPUT: pixels})

    figures = graph_figures(scene, graph, subject.precision, subject.bounds)
    _require(figures, subject, before, remedy)
    own = image_evaluation.evaluate(
        subject.request, record.task, record.labels, settings, _score(before), graph
    )
    write_image_cases(folder, scene, figures)
    return figures, own


def _require(figures: list[Figure], subject: Compiled, before: dict[str, Any], remedy: str) -> None:
    said = ", ".join(f"{one.name} {one.value:.6g}" for one in figures)
    say(f"{said}; as {before['reference']}")
    require(figures, subject.precision, str(before["reference"]), remedy=remedy)


def _score(before: dict[str, Any]) -> float:
    """The reference's, of the user's own set; any number where there is none."""
    own = before["evaluation"]
    return float(own["reference"]) if own else 0.0


def task_of(record: task_file.Task) -> Task:
    """As far as it is served: nothing here changes the graph."""
    text = task_file.text_settings(record)
    values = {name: getattr(text, name) for name in text.__dataclass_fields__}
    if "library" not in record.reference or "class" not in record.reference:
        raise BuildError(
            f"{task_file.FILE} of the exported task does not say its reference",
            remedy="Make it again: tritonctl build --force.",
        )
    return Task(
        name=record.task,
        text=Text(**values | {"inputs": tuple(text.inputs)}),
        library=record.reference["library"],
        reference=record.reference["class"],
        labels=tuple(record.labels),
        activation=record.activation,
    )
