# SPDX-License-Identifier: Apache-2.0
"""The tolerance of each precision against its source. Standard library only."""

from buildlib.problems import BuildError
from options import OnnxRuntimeOptions
from taskproof.figures import FP16, FP32, INT8, INT8_STATIC

# By precision: the tolerance as a share of the source's largest output value, and the remedy.
# Measured on a MiniLM sentence encoder: fp32 0.000001, fp16 0.001, int8 0.08, int8 with static
# calibration 0.2.
_TOLERANCES: dict[str, tuple[float, str]] = {
    FP32: (0.0001, "fp32 should be equal: please report it, with build.log."),
    FP16: (0.01, "Set engine.precision to fp32."),
    INT8: (0.2, "Set engine.precision to fp16."),
    INT8_STATIC: (0.4, "Use `calibration: dynamic`, more and better calibration data, or fp16."),
}


def precision_column(precision: str, options: OnnxRuntimeOptions) -> str:
    """Return the precision's name in tables. Static int8 has a column."""
    static = (precision, options.calibration) == (INT8, "static")
    return INT8_STATIC if static else precision


def remedy_for(precision: str, options: OnnxRuntimeOptions) -> str:
    """Return the remedy for a task engine that is too far from its reference."""
    _, remedy = _TOLERANCES[precision_column(precision, options)]
    return f"{remedy} Or move a bound with engine.options.bounds."


def check_error(precision: str, options: OnnxRuntimeOptions, *, error: float, peak: float) -> None:
    """Raise BuildError for an engine that is too far from its source.

    `error`: largest difference between their outputs. `peak`: largest output of the source. The
    limit is options.max_abs_error or, without one, the tolerance of the precision.
    """
    share, remedy = _TOLERANCES[precision_column(precision, options)]
    tolerance = share * peak if options.max_abs_error is None else options.max_abs_error
    if not error <= tolerance:  # refuses NaN too
        raise BuildError(
            f"the {precision} engine's outputs differ by up to {error:.6g} from the source's, "
            f"whose largest is {peak:.6g}; allowed are {tolerance:.6g}",
            remedy=f"{remedy} Or allow more with engine.options.max_abs_error.",
        )
