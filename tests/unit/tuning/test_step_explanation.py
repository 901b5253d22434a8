# SPDX-License-Identifier: Apache-2.0
"""Which knob the server's figures point at, and what they say about a step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonctl.project.schema import Project
from tritonctl.tuning.outcome import Move, SearchStep
from tritonctl.tuning.space import Knob, SearchSpace
from tritonctl.tuning.step_explanation import explain_step, sort_by_bottleneck
from tritonctl.tuning.trials import TrialRequest, TuningTrial

PROJECT = Project.at(
    Path(),
    {
        "schema": "tritonctl/v1",
        "models": {
            "m": {"checkpoint": "c", "engine": {"builder": "onnxruntime", "precision": "fp32"}}
        },
    },
)


def knob(name: str, model: str, relieves: str) -> Knob:
    return Knob(name, (1, 2, 3), 2, lambda v: {name: v}, model, "", frozenset({relieves}))


SPACE = SearchSpace(
    PROJECT,
    "m",
    (
        knob("memory", "m_engine", "memory"),
        knob("threads", "m_engine", "compute"),
        knob("instances", "m_engine", "queue"),
        knob("others", "m_tokenizer", "queue"),
    ),
    cores=2,
    artefacts={},
)


def figures(queue: float, compute: float, share: float = 0.9) -> dict[str, Any]:
    return {"queue_ms": queue, "compute_ms": compute, "batch_factor": 4.0, "share": share}


def trial(models: Mapping[str, Any], **more: Any) -> TuningTrial:
    asked = TrialRequest({k.name: 2 for k in SPACE.knobs}, 10.0, 5.0)
    return TuningTrial(asked, "met", 0, 0, 0, 50, 5.0, figures={"models": models, **more})


def moves() -> list[Move]:
    return [Move(k.name, value, value > 2, {}) for k in SPACE.knobs for value in (3, 1)]


def first(found: TuningTrial | None) -> tuple[str, bool]:
    move = sort_by_bottleneck(SPACE, found, moves())[0]
    return move.knob, move.upwards


def test_a_queue_asks_for_instances() -> None:
    """Of the model in which requests spend their time."""
    engine, tokenizer = figures(20, 5), figures(3, 1, share=0.1)
    assert first(trial({"m_engine": engine, "m_tokenizer": tokenizer})) == ("instances", True)
    engine, tokenizer = figures(1, 5, share=0.2), figures(30, 1, share=0.8)
    assert first(trial({"m_engine": engine, "m_tokenizer": tokenizer})) == ("others", True)


def test_computing_asks_for_threads() -> None:
    """Nobody waits, the batch itself takes long."""
    assert first(trial({"m_engine": figures(0.1, 40)}))[0] == "threads"


def test_streams_that_wait_in_the_engine_are_a_queue_too() -> None:
    """A text engine takes requests at once; Triton's queue is then always short."""
    waiting = {"streams": {"waiting": 7.0, "active": 32.0}}
    assert first(trial({"m_engine": figures(0.1, 40)}, **waiting)) == ("instances", True)


def test_without_figures_the_order_stays() -> None:
    """And nothing is lost in any case."""
    assert list(sort_by_bottleneck(SPACE, None, moves())) == moves()
    ordered = sort_by_bottleneck(SPACE, trial({"m_engine": figures(20, 5)}), moves())
    assert sorted(map(repr, ordered)) == sorted(map(repr, moves()))


def test_a_step_is_explained_by_what_changed() -> None:
    """Differences of more than a tenth, of the model that the knob is of."""
    old, new = (trial({"m_engine": figures(queue, 5.0)}) for queue in (20, 4))
    step = SearchStep("instances", {}, 10.0, True, new, old)
    assert explain_step(step, SPACE) == "meets the SLO at 10/s; m_engine queue 20 → 4 ms"


def test_refused_settings_are_explained_by_triton() -> None:
    """In its own words."""
    refused = trial({}, refused="Triton does not load m_engine: no")
    step = SearchStep("instances", {}, 10.0, False, refused)
    assert explain_step(step, SPACE) == "refused: Triton does not load m_engine: no"
