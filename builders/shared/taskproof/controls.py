# SPDX-License-Identifier: Apache-2.0
"""Deliberate mistakes. Each must break a bound, else the proof would miss it. Needs numpy."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tasklib.text_encoding import EncodedText

from buildlib.program import print_line
from buildlib.result_types import BoundedFigure, ProofControl
from taskcompile.task import (
    EMBEDDING,
    RERANK,
    TAGGING,
    Dense,
    EmbeddingStep,
    Normalize,
    Pooling,
    TextTask,
)
from taskproof.answers import CaseAnswer, batching_figure, compare_answers, tokens_figure
from taskproof.feeds import Feed
from taskproof.figures import FP32, detect_mistake
from taskproof.text_cases import TextCase
from taskproof.text_pipeline import TextGraph, TextPipeline, text_pipeline

# Mistakes in the graph show on texts of up to so many tokens.
_TOKENS = 96
_SWAPPED = {"softmax": "none", "sigmoid": "none", "none": "sigmoid"}
_MASKS = ("attention_mask", "pooling_mask")
_SPECIAL = -1  # both offsets of a token without text

Mistake = tuple[str, list[BoundedFigure]]


@dataclass(frozen=True)
class ControlContext:
    """The parts that the controls change."""

    task: TextTask
    folder: Path  # of the tokenizer
    pipeline: TextPipeline
    cases: Sequence[TextCase]
    rows: Sequence[EncodedText]
    expected: Sequence[CaseAnswer]
    fp32_graph: TextGraph
    graph_for_task: Callable[[TextTask], TextGraph]  # another task on the same weights

    def with_short_texts(self) -> "ControlContext":
        """Return the context with short texts only, or itself if all texts are long."""
        positions = [at for at, row in enumerate(self.rows) if row.num_input_tokens <= _TOKENS]
        if not positions:
            return self
        return replace(
            self,
            cases=[self.cases[at] for at in positions],
            rows=[self.rows[at] for at in positions],
            expected=[self.expected[at] for at in positions],
        )

    def answers(self, graph: TextGraph) -> list[CaseAnswer]:
        """Return the answers of the pipeline with another graph."""
        return self.pipeline.answers(self.rows, self.cases, graph)

    def figures(self, actual: Sequence[CaseAnswer]) -> list[BoundedFigure]:
        """Return the figures of answers, with the bounds of fp32."""
        return compare_answers(self.task, self.expected, actual, FP32)


def run_controls(context: ControlContext) -> list[ProofControl]:
    """Make every mistake that is possible with the task and return the broken figures.

    Raises:
        BuildError: the proof misses a mistake.
    """
    controls = []
    for name, figures in _mistakes(context, context.with_short_texts()):
        controls.append(detect_mistake(name, figures))
        print_line(f"seen: {name} ({controls[-1].figure} {controls[-1].value:.6g})")
    return controls


def _mistakes(context: ControlContext, short: ControlContext) -> Iterator[Mistake]:
    text = context.task.text
    early = {"max_seq_len": text.max_seq_len - 1}
    yield "texts cut one token too early", [_figure_with_settings(context, early)]
    if any(text.prompts.values()):
        empty = {"prompts": dict.fromkeys(text.prompts, "")}
        yield "prompts left out", [_figure_with_settings(context, empty)]
    if text.lower_case:
        yield "capital letters kept", [_figure_with_settings(context, {"lower_case": False})]
    if any(case.pair for case in context.cases):
        swapped = [
            replace(case, text=case.pair or "", pair=case.text)
            for case in context.cases
            if case.pair
        ]
        selected = [bool(case.pair) for case in context.cases]
        yield (
            "the two texts of a pair exchanged",
            [_tokens_figure(context, context.pipeline, swapped, selected)],
        )
        if "token_type_ids" in text.inputs:
            yield "all tokens of the first type", [_figure_without_types(context)]
    yield "padding not masked", [_figure_without_mask(short)]
    if context.task.name == EMBEDDING:
        yield from _vector_mistakes(short)
    else:
        yield from _score_mistakes(short)


def _figure_with_settings(context: ControlContext, changes: dict[str, Any]) -> BoundedFigure:
    pipeline = text_pipeline(context.task, context.folder, **changes)
    return _tokens_figure(context, pipeline, context.cases, [True] * len(context.cases))


def _tokens_figure(
    context: ControlContext,
    pipeline: TextPipeline,
    cases: Sequence[TextCase],
    selected: Sequence[bool],
) -> BoundedFigure:
    """Return the share of selected cases that the pipeline tokenises like the reference."""
    expected = [answer for answer, chosen in zip(context.expected, selected, strict=True) if chosen]
    actual = [
        CaseAnswer((), None, None) if row is None else _token_answer(row)
        for row in pipeline.encode(cases)
    ]
    return tokens_figure(expected, actual)


def _token_answer(row: EncodedText) -> CaseAnswer:
    types = None if row.type_ids is None else tuple(row.type_ids.tolist())
    return CaseAnswer(tuple(row.ids.tolist()), types, None)


def _figure_without_types(context: ControlContext) -> BoundedFigure:
    actual = [
        replace(_token_answer(row), types=(0,) * row.num_input_tokens) for row in context.rows
    ]
    return tokens_figure(context.expected, actual)


def _figure_without_mask(context: ControlContext) -> BoundedFigure:
    def unmasked_graph(feed: Feed) -> Any:
        ones = {name: np.ones_like(feed[name]) for name in _MASKS if name in feed}
        return context.fp32_graph(feed | ones)

    single = [answer.values for answer in context.answers(context.fp32_graph)]
    batched = context.pipeline.batched_values(context.rows, unmasked_graph)
    return batching_figure(context.task, single, batched, FP32)


def _vector_mistakes(context: ControlContext) -> Iterator[Mistake]:
    task, steps = context.task, context.task.steps

    def with_steps(*changed: EmbeddingStep) -> list[BoundedFigure]:
        return context.figures(
            context.answers(context.graph_for_task(replace(task, steps=changed)))
        )

    for at, step in enumerate(steps):
        previous, following = steps[:at], steps[at + 1 :]
        if isinstance(step, Pooling):
            # Both means have one direction: Normalize would hide the difference.
            is_mean = step.modes[0] in ("mean", "mean_sqrt_len_tokens")
            wrong_mode = "cls" if is_mean else "mean"
            swapped = replace(step, modes=(wrong_mode, *step.modes[1:]))
            yield (
                f"{wrong_mode} for {step.modes[0]} pooling",
                with_steps(*previous, swapped, *following),
            )
            if not step.include_prompt:
                pooled = replace(task, text=replace(task.text, include_prompt=True))
                yield (
                    "the prompt pooled",
                    context.figures(context.answers(context.graph_for_task(pooled))),
                )
        elif isinstance(step, Dense):
            if step.activation != "Identity":
                linear = replace(step, activation="Identity")
                yield "the activation of Dense dropped", with_steps(*previous, linear, *following)
            if step.in_features == step.out_features:
                yield "Dense dropped", with_steps(*previous, *following)
    if task.normalized:
        yield "Normalize dropped", with_steps(*steps[:-1])
    else:
        yield "Normalize added", with_steps(*steps, Normalize())


def _score_mistakes(context: ControlContext) -> Iterator[Mistake]:
    task = context.task
    wrong_activation = _SWAPPED[task.activation]
    changed = context.graph_for_task(replace(task, activation=wrong_activation))
    yield (
        f"{wrong_activation} for the activation {task.activation}",
        context.figures(context.answers(changed)),
    )
    if task.name != RERANK and len(task.labels) > 1:
        reversed_labels = context.answers(lambda feed: context.fp32_graph(feed)[..., ::-1])
        yield "labels in reverse order", context.figures(reversed_labels)
    if task.name == TAGGING and _has_multibyte_entity(context):
        yield "offsets in bytes", context.figures(_answers_with_byte_offsets(context))


def _has_multibyte_entity(context: ControlContext) -> bool:
    """Whether an entity ends after a character of several bytes."""
    return any(
        not case.text[:end].isascii()
        for case, answer in zip(context.cases, context.expected, strict=True)
        for _, _, end in answer.entities
    )


def _answers_with_byte_offsets(context: ControlContext) -> list[CaseAnswer]:
    rows = [
        replace(row, offsets=_byte_offsets(case.text, row.offsets))
        for case, row in zip(context.cases, context.rows, strict=True)
    ]
    return context.pipeline.answers(rows, context.cases, context.fp32_graph)


def _byte_offsets(text: str, offsets: Any) -> Any:
    count = [len(text[:at].encode()) for at in range(len(text) + 1)]
    return np.array(
        [[at if at == _SPECIAL else count[at] for at in pair] for pair in offsets], dtype=np.int32
    ).reshape(-1, 2)
