# SPDX-License-Identifier: Apache-2.0
"""What a plan of a task needs besides its graph. Standard library only."""

from typing import Any

from buildlib.request import Limits, Request
from network import Network
from profiles import token_profiles
from taskproof.figures import INT8_STATIC
from taskproof.parts import TaskParts, read_parts

# Tokens of the run that a profile is fastest at, where engine.max_num_tokens does not say it.
_TOKENS = 4096
_LIBRARIES = (
    "Build with runner container or venv, which bring them; or install them here: "
    "`pip install -r builders/tensorrt/requirements.txt`."
)
_BETTER = {
    "fp32": "Report it, with build.log.",
    "fp16": "Set engine.precision to fp32.",
    "int8": "Set engine.precision to fp16, or give more and better engine.calibration.data.",
}


def parts_of(request: Request) -> TaskParts | None:
    """The parts of a task; None for a graph of its own tensors.

    Raises:
        BuildError: the stage before has left none, or the proof could not run.
    """
    return None if request.task is None else read_parts(request, remedy=_LIBRARIES)


def column(precision: str) -> str:
    """Of the bounds: int8 here is always calibrated."""
    return INT8_STATIC if precision == "int8" else precision


def remedy_for(precision: str) -> str:
    """What to do about a plan that is too far from its reference."""
    return f"{_BETTER[precision]} Or move a bound with engine.options.bounds."


def profiles_of(network: Network, parts: TaskParts | None, limits: Limits) -> list[dict[str, Any]]:
    """Profiles where the project gives none: of texts by their tokens, of images by the batch."""
    if parts is None or parts.text is None:
        return []
    names = [tensor.name for tensor in network.inputs]
    tokens = limits.max_num_tokens or _TOKENS
    return token_profiles(names, limits.max_batch_size, parts.text["max_seq_len"], tokens)
