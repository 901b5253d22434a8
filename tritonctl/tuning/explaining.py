# SPDX-License-Identifier: Apache-2.0
"""Reads the server's own figures: which knob to turn first, and why a step helped or did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tritonctl.tuning.outcome import Move, Step
from tritonctl.tuning.space import Knob, Space
from tritonctl.tuning.trials import Trial

_SMALL_BATCH = 1.5
_CHANGED = 0.1
_COMPARED = {
    "queue_ms": ("queue", " ms"),
    "compute_ms": ("compute", " ms"),
    "batch_factor": ("batch", ""),
}


def by_bottleneck(space: Space, trial: Trial | None, moves: Sequence[Move]) -> Sequence[Move]:
    """The moves, the most promising first; equal ones, or all without figures, keep their order."""
    models = (trial.figures.get("models") if trial else None) or {}
    knobs = {knob.name: knob for knob in space.knobs}
    waiting = ((trial.figures.get("streams") or {}).get("waiting") or 0.0) if trial else 0.0
    return sorted(moves, key=lambda move: -_promise(knobs[move.knob], move, models, waiting))


def _promise(knob: Knob, move: Move, models: Mapping[str, Any], waiting: float) -> float:
    model = models.get(knob.model)
    if model is None:
        return 0.0
    weight = float(model.get("share") or 0.0)
    queue, compute = float(model["queue_ms"] or 0), float(model["compute_ms"] or 0)
    queued = queue > compute or waiting >= 1
    score = 0.0
    if "queue" in knob.relieves and queued:
        score = 2.0 if move.upwards else 0.0
    elif "compute" in knob.relieves and not queued:
        score = 1.5
    elif "batch" in knob.relieves and (model.get("batch_factor") or 1.0) < _SMALL_BATCH:
        score = 1.0 if queued == move.upwards else 0.2
    elif {"overload", "memory"} & knob.relieves:
        score = -1.0
    return score * (0.25 + weight)


def explained(step: Step, space: Space) -> str:
    """Why a step won or lost, from the differences of the server's figures."""
    if step.trial.figures.get("refused"):
        return f"refused: {step.trial.figures['refused']}"
    word = "meets" if step.won else "misses"
    begin = f"{word} the SLO at {step.rate:.4g}/s"
    if not step.won and step.trial.figures.get("stopped"):
        begin += f" (ended early: {step.trial.figures['stopped']})"
    knob = next((knob for knob in space.knobs if knob.name == step.knob), None)
    deltas = _deltas(step, [knob.model] if knob else [])
    return f"{begin}; {'; '.join(deltas)}" if deltas else begin


def _deltas(step: Step, models: Sequence[str]) -> list[str]:
    old = (step.against.figures if step.against else {}).get("models") or {}
    new = step.trial.figures.get("models") or {}
    deltas = []
    for name in models or sorted(new):
        for key, (word, unit) in _COMPARED.items():
            before, after = (figures.get(name, {}).get(key) for figures in (old, new))
            if before and after and abs(after / before - 1) > _CHANGED:
                deltas.append(f"{name} {word} {before:.3g} → {after:.3g}{unit}")
    return deltas
