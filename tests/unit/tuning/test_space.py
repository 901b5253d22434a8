# SPDX-License-Identifier: Apache-2.0
"""Knobs of a built model: what they write, and that the plan of the repository follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritonctl.project.schema import Project
from tritonctl.tuning.space import (
    DETOKENIZER_DELAY,
    FUSED,
    INLINE,
    INSTANCES,
    THREADS,
    TOKENIZERS,
    Knob,
    SearchSpace,
)


def made(*knobs: Knob, cores: int = 2) -> SearchSpace:
    engine = {"builder": "onnxruntime", "precision": "fp32"}
    serving = {"queue": {"max_queue_size": 4}}
    models = {"m": {"checkpoint": "c", "engine": engine, "serving": serving}}
    project = Project.at(Path(), {"schema": "tritonctl/v1", "models": models})
    return SearchSpace(project, "m", knobs, cores, artefacts={})


def knob(name: str, *values: int | bool) -> Knob:
    return Knob(name, values, values[0], lambda v: {"serving": {"queue": {name: v}}}, "m", "")


def test_todays_settings_write_nothing() -> None:
    """The overlay holds only what differs."""
    space = made(knob("priority_levels", 0, 2), knob("default_timeout_microseconds", 0, 5))
    assert space.overlay(space.base) == {}
    overlay = space.overlay({"priority_levels": 2, "default_timeout_microseconds": 0})
    assert overlay == {"serving": {"queue": {"priority_levels": 2}}}


def test_the_tuned_project_keeps_the_rest() -> None:
    """Merged, as a profile would be."""
    tuned = made(knob("priority_levels", 0, 2)).tuned_project({"priority_levels": 2})
    queue = tuned.models["m"].serving.queue
    assert (queue.priority_levels, queue.max_queue_size) == (2, 4)


@pytest.mark.parametrize(
    ("instances", "threads", "allowed"), [(1, 0, True), (2, 0, True), (4, 1, True), (4, 2, False)]
)
def test_more_threads_than_twice_the_cores_are_not_tried(
    instances: int, threads: int, allowed: bool
) -> None:
    """0 threads is one per core."""
    space = made(knob(INSTANCES, 1, 2, 4), knob(THREADS[0], 0, 1, 2))
    assert space.is_allowed({INSTANCES: instances, THREADS[0]: threads}) is allowed


def test_the_inlined_detokenizer_has_no_queue_of_its_own() -> None:
    """Its knob must then stay where it is."""
    space = made(knob(INLINE, False, True), knob(DETOKENIZER_DELAY, 1500, 0))
    assert space.is_allowed({INLINE: True, DETOKENIZER_DELAY: 1500})
    assert not space.is_allowed({INLINE: True, DETOKENIZER_DELAY: 0})


def test_a_fused_model_has_no_steps_to_tune() -> None:
    """What concerns them must then stay as it is."""
    space = made(knob(FUSED, False, True), knob(INLINE, False, True), knob(TOKENIZERS, 1, 2))
    assert space.is_allowed({FUSED: True, INLINE: False, TOKENIZERS: 1})
    assert space.is_allowed({FUSED: False, INLINE: True, TOKENIZERS: 2})
    assert not space.is_allowed({FUSED: True, INLINE: True, TOKENIZERS: 1})
    assert not space.is_allowed({FUSED: True, INLINE: False, TOKENIZERS: 2})
