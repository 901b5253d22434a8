# SPDX-License-Identifier: Apache-2.0
"""Use the server's figures to order the knobs and to explain steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tritonctl.tuning.outcome import Move, SearchStep
from tritonctl.tuning.space import Knob, SearchSpace
from tritonctl.tuning.trials import TuningTrial

_SMALL_BATCH = 1.5
_MIN_CHANGE = 0.1
_COMPARED_FIGURES = {
    "queue_ms": ("queue", " ms"),
    "compute_ms": ("compute", " ms"),
    "batch_factor": ("batch", ""),
}


def sort_by_bottleneck(
    space: SearchSpace, trial: TuningTrial | None, moves: Sequence[Move]
) -> Sequence[Move]:
    """Sort the moves by promise; equal ones, or all without figures, keep their order."""
    models = (trial.figures.get("models") if trial else None) or {}
    knobs = {knob.name: knob for knob in space.knobs}
    waiting = ((trial.figures.get("streams") or {}).get("waiting") or 0.0) if trial else 0.0
    return sorted(moves, key=lambda move: -_move_score(knobs[move.knob], move, models, waiting))


def _move_score(knob: Knob, move: Move, models: Mapping[str, Any], waiting: float) -> float:
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


def explain_step(step: SearchStep, space: SearchSpace) -> str:
    """Explain why a step won or lost, from the changes in the server's figures."""
    if step.trial.figures.get("refused"):
        return f"refused: {step.trial.figures['refused']}"
    word = "meets" if step.won else "misses"
    verdict_text = f"{word} the SLO at {step.rate:.4g}/s"
    if not step.won and step.trial.figures.get("stopped"):
        verdict_text += f" (ended early: {step.trial.figures['stopped']})"
    knob = next((knob for knob in space.knobs if knob.name == step.knob), None)
    deltas = _figure_changes(step, [knob.model] if knob else [])
    return f"{verdict_text}; {'; '.join(deltas)}" if deltas else verdict_text


def _figure_changes(step: SearchStep, models: Sequence[str]) -> list[str]:
    old = (step.champion_trial.figures if step.champion_trial else {}).get("models") or {}
    new = step.trial.figures.get("models") or {}
    deltas = []
    for name in models or sorted(new):
        for key, (word, unit) in _COMPARED_FIGURES.items():
            old_value, new_value = (figures.get(name, {}).get(key) for figures in (old, new))
            if old_value and new_value and abs(new_value / old_value - 1) > _MIN_CHANGE:
                deltas.append(f"{name} {word} {old_value:.3g} → {new_value:.3g}{unit}")
    return deltas
