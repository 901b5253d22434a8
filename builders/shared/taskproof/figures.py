# SPDX-License-Identifier: Apache-2.0
"""Measures of a proof, the bounds of each precision, and what is reported. Standard library only.

The bounds of fp32 decide on conventions (pooling, activation, order of a pair); those of other
precisions on what the conversion has cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from buildlib.problems import BuildError, nearest

FP32, FP16, BF16 = "fp32", "fp16", "bf16"
INT8, INT8_STATIC = "int8", "int8 static"
HIGHER, LOWER = "higher", "lower"

# By measure: which way is better, then the bound of each precision.
# tokens: share of inputs with the reference's token ids. pixels: the largest difference between
# pixel values. cosine: the smallest between vectors. length: the largest difference between their
# lengths, as a share. score: the largest
# difference between scores, of probabilities or as a share of the largest score. label, order:
# shares with the same best label, of pairs in the same order, ties within `score` apart.
# entities: share of texts with the same ones. batch: the smallest cosine, or the
# largest difference of scores, between an input alone and in a padded batch.
# Measured on all-MiniLM-L6-v2: cosine 1, 0.999999, 0.983, and 0.964 calibrated on six texts; batch
# cosine 1, 1, 0.975 (dynamic int8 has one scale for a batch's activations), 1.
_BOUNDS: dict[str, tuple[str, float, float, float, float, float]] = {
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
# What the user may move, with engine.options.bounds: not whether tokens and pixels are the same.
MOVABLE = tuple(name for name in _BOUNDS if name not in ("tokens", "pixels"))


@dataclass(frozen=True)
class Figure:
    """A measure and the bound it has to keep."""

    name: str
    value: float
    bound: float
    better: str

    @property
    def kept(self) -> bool:
        """Whether it keeps the bound; what is no number does not."""
        if self.better == HIGHER:
            return self.value >= self.bound
        return self.value <= self.bound


@dataclass(frozen=True)
class Control:
    """A mistake made on purpose: the measure that showed it, and its value."""

    name: str
    figure: str
    value: float


def figure(
    name: str, value: float, precision: str, moved: Mapping[str, float] | None = None
) -> Figure:
    """The measure with its bound; `moved`: bounds of the user's own."""
    better, *_ = row = _BOUNDS[name]
    bound = (moved or {}).get(name, row[_COLUMNS[precision]])
    return Figure(name, float(value), float(bound), better)


def check_bounds(bounds: Mapping[str, Any]) -> None:
    """Raise BuildError for bounds of measures that are not there, or that are no numbers."""
    for name, value in bounds.items():
        if name not in MOVABLE:
            raise BuildError(
                f"engine.options.bounds has the unknown measure {name!r}{nearest(name, MOVABLE)}",
                remedy=f"Use only: {', '.join(MOVABLE)}.",
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BuildError(f"engine.options.bounds.{name} is {value!r}", remedy="Use a number.")


def require(figures: Sequence[Figure], precision: str, reference: str, *, remedy: str) -> None:
    """Check that all bounds are kept.

    Raises:
        BuildError: the first that is not, with its value.
    """
    for one in figures:
        if not one.kept:
            least = "at least" if one.better == HIGHER else "at most"
            raise BuildError(
                f"the {precision} engine does not answer as {reference}: {one.name} is "
                f"{one.value:.6g}, and {least} {one.bound:.6g} is wanted",
                remedy=remedy,
            )


def caught(name: str, figures: Sequence[Figure]) -> Control:
    """The control, by the first bound that the mistake broke.

    Raises:
        BuildError: it broke none, so the proof could not have told the mistake.
    """
    broken = next((one for one in figures if not one.kept), None)
    if broken is None:
        seen = ", ".join(f"{one.name} {one.value:.6g}" for one in figures)
        raise BuildError(
            f"the proof is blind: with {name} on purpose it finds nothing wrong ({seen})",
            remedy="The checkpoint's weights are most likely damaged or were never trained; load "
            "it with its own library and look at its answers. Else report this.",
        )
    return Control(name, broken.name, broken.value)


def report(
    task: str,
    reference: str,
    cases: int,
    figures: Sequence[Figure],
    controls: Sequence[Control],
    evaluation: dict[str, Any] | None,
) -> dict[str, Any]:
    """The `proof` object of the build result."""
    return {
        "task": task,
        "reference": reference,
        "cases": cases,
        "figures": [asdict(one) for one in figures],
        "controls": [asdict(one) for one in controls],
        "evaluation": evaluation,
    }
