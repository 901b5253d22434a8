# SPDX-License-Identifier: Apache-2.0
"""The measures of a proof, their bounds per precision and the report. Standard library only.

The bounds of fp32 test conventions (pooling, activation, order of a pair). The bounds of other
precisions limit the loss of the conversion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from buildlib.problems import BuildError, did_you_mean
from buildlib.result_types import BoundedFigure, ProofControl

FP32, FP16, BF16 = "fp32", "fp16", "bf16"
INT8, INT8_STATIC = "int8", "int8 static"
HIGHER: Literal["higher"] = "higher"
LOWER: Literal["lower"] = "lower"

# By measure: the better direction, then the bound of each precision.
# tokens: share of inputs with the reference's token ids. pixels: largest difference between pixel
# values. cosine: smallest between vectors. length: largest difference between their lengths, as a
# share. score: largest difference between probabilities, or between logits as a share of the
# largest. label: share with the same best label. order: share of pairs in the same order; both
# ignore ties within `score`. entities: share of texts with the same entities. batch: smallest
# cosine or largest score difference between an input alone and in a padded batch.
# Measured on all-MiniLM-L6-v2: cosine 1, 0.999999, 0.983, and 0.964 calibrated on six texts; batch
# cosine 1, 1, 0.975 (dynamic int8 has one scale for a batch's activations), 1.
_BOUNDS: dict[str, tuple[Literal["higher", "lower"], float, float, float, float, float]] = {
    "tokens": (HIGHER, 1.0, 1.0, 1.0, 1.0, 1.0),
    "pixels": (LOWER, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6),
    "cosine": (HIGHER, 0.99999, 0.999, 0.999, 0.95, 0.85),
    "length": (LOWER, 0.0001, 0.005, 0.01, 0.1, 0.2),
    "score": (LOWER, 0.0001, 0.01, 0.02, 0.2, 0.4),
    "label": (HIGHER, 1.0, 1.0, 1.0, 0.9, 0.8),
    "order": (HIGHER, 1.0, 1.0, 1.0, 0.9, 0.8),
    "entities": (HIGHER, 1.0, 0.95, 0.9, 0.5, 0.3),
    "batch cosine": (HIGHER, 0.99999, 0.9999, 0.999, 0.95, 0.99),
    "batch score": (LOWER, 0.0001, 0.005, 0.01, 0.1, 0.1),
}
_COLUMNS = {FP32: 1, FP16: 2, BF16: 3, INT8: 4, INT8_STATIC: 5}
# The measures that engine.options.bounds may set. Tokens and pixels must always be equal.
OVERRIDABLE = tuple(name for name in _BOUNDS if name not in ("tokens", "pixels"))


def is_within_bound(figure: BoundedFigure) -> bool:
    """Whether the value keeps the bound. NaN does not."""
    if figure.better == HIGHER:
        return figure.value >= figure.bound
    return figure.value <= figure.bound


def bounded_figure(
    name: str, value: float, precision: str, bound_overrides: Mapping[str, float] | None = None
) -> BoundedFigure:
    """Return a measure with its bound. `bound_overrides`: bounds from the project."""
    better, *_ = row = _BOUNDS[name]
    bound = (bound_overrides or {}).get(name, row[_COLUMNS[precision]])
    return BoundedFigure(name, float(value), float(bound), better)


def check_bounds(bounds: Mapping[str, Any]) -> None:
    """Raise BuildError for a bound of an unknown measure, or one that is not a number."""
    for name, value in bounds.items():
        if name not in OVERRIDABLE:
            raise BuildError(
                "engine.options.bounds has the unknown measure "
                f"{name!r}{did_you_mean(name, OVERRIDABLE)}",
                remedy=f"Use only: {', '.join(OVERRIDABLE)}.",
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BuildError(f"engine.options.bounds.{name} is {value!r}", remedy="Use a number.")


def require_figures(
    figures: Sequence[BoundedFigure], precision: str, reference: str, *, remedy: str
) -> None:
    """Check that every figure is within its bound.

    Raises:
        BuildError: the first figure that is not, with its value.
    """
    for figure in figures:
        if not is_within_bound(figure):
            relation = "at least" if figure.better == HIGHER else "at most"
            raise BuildError(
                f"the {precision} engine does not answer as {reference}: {figure.name} is "
                f"{figure.value:.6g}, and {relation} {figure.bound:.6g} is required",
                remedy=remedy,
            )


def detect_mistake(name: str, figures: Sequence[BoundedFigure]) -> ProofControl:
    """Return the control with the first bound that the mistake broke.

    Raises:
        BuildError: the mistake broke no bound, so the proof would miss it.
    """
    broken = next((figure for figure in figures if not is_within_bound(figure)), None)
    if broken is None:
        seen = ", ".join(f"{figure.name} {figure.value:.6g}" for figure in figures)
        raise BuildError(
            f"the proof is blind: it does not detect the deliberate mistake {name!r} ({seen})",
            remedy="The checkpoint's weights are most likely damaged or untrained: load it with "
            "its own library and look at its answers. Else report this.",
        )
    return ProofControl(name, broken.name, broken.value)


def saturation_remedy(activation: str, scores: Sequence[float], *, is_ranking: bool) -> str | None:
    """Return the remedy for scores that are all exactly 0 or 1; None for others.

    FP32 has no other value for logits above 17: equal scores hide every mistake.
    """
    if activation == "none" or not scores or any(score not in (0.0, 1.0) for score in scores):
        return None
    remedy = (
        f"All {len(scores)} scores of the checkpoint are exactly 0 or 1: its {activation} "
        "saturates in FP32, and equal scores hide every mistake."
    )
    if not is_ranking:
        return remedy
    return (
        f'{remedy} Serve raw scores, which also rank better: "sentence_transformers": '
        '{"activation_fn": "torch.nn.modules.linear.Identity"} in config.json.'
    )


def proof_report(
    task: str,
    reference: str,
    cases: int,
    figures: Sequence[BoundedFigure],
    controls: Sequence[ProofControl],
    evaluation: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return the `proof` object of the build result."""
    return {
        "task": task,
        "reference": reference,
        "cases": cases,
        "figures": [asdict(entry) for entry in figures],
        "controls": [asdict(entry) for entry in controls],
        "evaluation": evaluation,
    }
