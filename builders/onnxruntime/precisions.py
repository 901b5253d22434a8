# SPDX-License-Identifier: Apache-2.0
"""How far each precision may be from its source. Standard library only."""

from buildlib.problems import BuildError
from options import Options

# Shares of the largest value that the source's output has. Measured on a MiniLM sentence encoder:
# fp32 0.000001, fp16 0.001, int8 0.08, int8 with static calibration 0.2.
_TOLERANCES = {"fp32": 0.0001, "fp16": 0.01, "int8": 0.2, "int8 static": 0.4}

_BETTER = {
    "fp32": "fp32 should be equal: please report it, with build.log.",
    "fp16": "Set engine.precision to fp32.",
    "int8": "Set engine.precision to fp16.",
    "int8 static": "Use `calibration: dynamic`, more and better calibration data, or fp16.",
}


def column(precision: str, options: Options) -> str:
    """The precision's name in tables: static int8 is measured by itself."""
    static = (precision, options.calibration) == ("int8", "static")
    return "int8 static" if static else precision


def remedy_for(precision: str, options: Options) -> str:
    """What to do about an engine of a task that is too far from its reference."""
    return f"{_BETTER[column(precision, options)]} Or move a bound with engine.options.bounds."


def check_error(precision: str, options: Options, *, error: float, peak: float) -> None:
    """Refuse an engine too far from its source.

    `error` is the largest difference between their outputs, `peak` the largest value of the
    source's.

    Raises:
        BuildError: the difference is above options.max_abs_error or, without one, the tolerance
            of the precision.
    """
    kind = column(precision, options)
    tolerance = options.max_abs_error
    if tolerance is None:
        tolerance = _TOLERANCES[kind] * peak
    if not error <= tolerance:  # a difference that is not a number is refused, too
        raise BuildError(
            f"the {precision} engine's outputs differ by up to {error:.6g} from the source's, "
            f"whose largest is {peak:.6g}; allowed are {tolerance:.6g}",
            remedy=f"{_BETTER[kind]} Or allow more with engine.options.max_abs_error.",
        )
