# SPDX-License-Identifier: Apache-2.0
"""Mistakes made on purpose. Each must break a bound, or the proof would not see it. Needs numpy."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tasklib.text_encoding import EncodedText

from buildlib.program import say
from taskcompile.task import (
    EMBEDDING,
    RERANK,
    TAGGING,
    Dense,
    Normalize,
    Pooling,
    Step,
    Task,
)
from taskproof.answers import Answer, alone_and_together, compared, read_alike
from taskproof.cases import Case
from taskproof.figures import FP32, Control, Figure, caught
from taskproof.served import Feed, Run, Served, served

# What a graph answers is looked at for texts of so many tokens: mistakes show there as well.
_TOKENS = 96
_SWAPPED = {"softmax": "none", "sigmoid": "none", "none": "sigmoid"}
_MASKS = ("attention_mask", "pooling_mask")
_SPECIAL = -1  # both offsets of a token that stands for no text

Mistake = tuple[str, list[Figure]]


@dataclass(frozen=True)
class Scene:
    """What mistakes are made with. `plain`: the graph in fp32; `changed`: that of another task on
    the same weights; `folder`: of the tokenizer.
    """

    task: Task
    folder: Path
    steps: Served
    cases: Sequence[Case]
    rows: Sequence[EncodedText]
    expected: Sequence[Answer]
    plain: Run
    changed: Callable[[Task], Run]

    def short(self) -> "Scene":
        """With the texts of few tokens alone; all where none has so few."""
        kept = [at for at, row in enumerate(self.rows) if row.num_input_tokens <= _TOKENS]
        if not kept:
            return self
        return replace(
            self,
            cases=[self.cases[at] for at in kept],
            rows=[self.rows[at] for at in kept],
            expected=[self.expected[at] for at in kept],
        )

    def run(self, run: Run) -> list[Answer]:
        """The answers of the served steps around another graph."""
        return self.steps.answers(self.rows, self.cases, run)

    def judged(self, got: Sequence[Answer]) -> list[Figure]:
        """The figures of answers, with the bounds of fp32."""
        return compared(self.task, self.expected, got, FP32)


def controls(scene: Scene) -> list[Control]:
    """Every mistake that is possible with the task, each seen.

    Raises:
        BuildError: one is not.
    """
    made = []
    for name, figures in _mistakes(scene, scene.short()):
        made.append(caught(name, figures))
        say(f"seen: {name} ({made[-1].figure} {made[-1].value:.6g})")
    return made


def _mistakes(scene: Scene, short: Scene) -> Iterator[Mistake]:
    text = scene.task.text
    early = {"max_seq_len": text.max_seq_len - 1}
    yield "texts cut one token too early", [_read_otherwise(scene, early)]
    if any(text.prompts.values()):
        empty = {"prompts": dict.fromkeys(text.prompts, "")}
        yield "prompts left out", [_read_otherwise(scene, empty)]
    if text.lower_case:
        yield "capital letters kept", [_read_otherwise(scene, {"lower_case": False})]
    if any(one.pair for one in scene.cases):
        turned = [
            replace(one, text=one.pair or "", pair=one.text) for one in scene.cases if one.pair
        ]
        at = [bool(one.pair) for one in scene.cases]
        yield "the two texts of a pair exchanged", [_read(scene, scene.steps, turned, at)]
        if "token_type_ids" in text.inputs:
            yield "all tokens of the first type", [_without_types(scene)]
    yield "padding not masked", [_unmasked(short)]
    if scene.task.name == EMBEDDING:
        yield from _of_vectors(short)
    else:
        yield from _of_scores(short)


def _read_otherwise(scene: Scene, changes: dict[str, Any]) -> Figure:
    steps = served(scene.task, scene.folder, **changes)
    return _read(scene, steps, scene.cases, [True] * len(scene.cases))


def _read(scene: Scene, steps: Served, cases: Sequence[Case], at: Sequence[bool]) -> Figure:
    """The share of cases, of those marked in `at`, that are still read as the reference does."""
    expected = [one for one, chosen in zip(scene.expected, at, strict=True) if chosen]
    got = [Answer((), None, None) if row is None else _as_read(row) for row in steps.rows(cases)]
    return read_alike(expected, got)


def _as_read(row: EncodedText) -> Answer:
    types = None if row.type_ids is None else tuple(row.type_ids.tolist())
    return Answer(tuple(row.ids.tolist()), types, None)


def _without_types(scene: Scene) -> Figure:
    got = [replace(_as_read(row), types=(0,) * row.num_input_tokens) for row in scene.rows]
    return read_alike(scene.expected, got)


def _unmasked(scene: Scene) -> Figure:
    def run(feed: Feed) -> Any:
        ones = {name: np.ones_like(feed[name]) for name in _MASKS if name in feed}
        return scene.plain(feed | ones)

    alone = [one.values for one in scene.run(scene.plain)]
    together = scene.steps.together(scene.rows, run)
    return alone_and_together(scene.task, alone, together, FP32)


def _of_vectors(scene: Scene) -> Iterator[Mistake]:
    task, steps = scene.task, scene.task.steps

    def with_steps(*changed: Step) -> list[Figure]:
        return scene.judged(scene.run(scene.changed(replace(task, steps=changed))))

    for at, step in enumerate(steps):
        before, after = steps[:at], steps[at + 1 :]
        if isinstance(step, Pooling):
            # The two means have one direction: Normalize would hide the other.
            means = step.modes[0] in ("mean", "mean_sqrt_len_tokens")
            other = "cls" if means else "mean"
            swapped = replace(step, modes=(other, *step.modes[1:]))
            yield f"{other} for {step.modes[0]} pooling", with_steps(*before, swapped, *after)
            if not step.include_prompt:
                pooled = replace(task, text=replace(task.text, include_prompt=True))
                yield "the prompt pooled", scene.judged(scene.run(scene.changed(pooled)))
        elif isinstance(step, Dense):
            if step.activation != "Identity":
                linear = replace(step, activation="Identity")
                yield "the activation of Dense dropped", with_steps(*before, linear, *after)
            if step.in_features == step.out_features:
                yield "Dense dropped", with_steps(*before, *after)
    if task.normalized:
        yield "Normalize dropped", with_steps(*steps[:-1])
    else:
        yield "Normalize added", with_steps(*steps, Normalize())


def _of_scores(scene: Scene) -> Iterator[Mistake]:
    task = scene.task
    other = _SWAPPED[task.activation]
    changed = scene.changed(replace(task, activation=other))
    yield f"{other} for the activation {task.activation}", scene.judged(scene.run(changed))
    if task.name != RERANK and len(task.labels) > 1:
        turned = scene.run(lambda feed: scene.plain(feed)[..., ::-1])
        yield "labels in reverse order", scene.judged(turned)
    if task.name == TAGGING and _beyond_ascii(scene):
        yield "offsets in bytes", scene.judged(_in_bytes(scene))


def _beyond_ascii(scene: Scene) -> bool:
    """Whether an entity ends behind a character of several bytes."""
    return any(
        not case.text[:end].isascii()
        for case, answer in zip(scene.cases, scene.expected, strict=True)
        for _, _, end in answer.entities
    )


def _in_bytes(scene: Scene) -> list[Answer]:
    rows = [
        replace(row, offsets=_byte_offsets(case.text, row.offsets))
        for case, row in zip(scene.cases, scene.rows, strict=True)
    ]
    return scene.steps.answers(rows, scene.cases, scene.plain)


def _byte_offsets(text: str, offsets: Any) -> Any:
    count = [len(text[:at].encode()) for at in range(len(text) + 1)]
    return np.array(
        [[at if at == _SPECIAL else count[at] for at in pair] for pair in offsets], dtype=np.int32
    ).reshape(-1, 2)
