# SPDX-License-Identifier: Apache-2.0
"""Helpers for the plan of a task: its export, profiles and remedies. Standard library only."""

from typing import Any

from buildlib.request_types import BuilderRequest, RequestedLimits
from network import Network
from profiles import token_profiles
from taskproof.exported_task import ExportedTask, read_exported_task
from taskproof.figures import INT8_STATIC

# Tokens of the run that a profile is fastest at, without engine.max_num_tokens.
_DEFAULT_RUN_TOKENS = 4096
_LIBRARIES = (
    "Build with runner container or venv, which have them; or install them here: "
    "`pip install -r builders/tensorrt/requirements.txt`."
)
_REMEDIES = {
    "fp32": "Report it, with build.log.",
    "fp16": "Set engine.precision to fp32.",
    "int8": "Set engine.precision to fp16, or give more and better engine.calibration.data.",
}


def exported_task_for(request: BuilderRequest) -> ExportedTask | None:
    """Return the exported task, or None for a given graph.

    Raises:
        BuildError: the export stage has left no task, or the proof cannot run.
    """
    return None if request.task is None else read_exported_task(request, remedy=_LIBRARIES)


def precision_column(precision: str) -> str:
    """Return the precision's column in the bounds. int8 is always calibrated here."""
    return INT8_STATIC if precision == "int8" else precision


def remedy_for(precision: str) -> str:
    """Return the remedy for a plan that is too far from its reference."""
    return f"{_REMEDIES[precision]} Or move a bound with engine.options.bounds."


def default_profiles(
    network: Network, exported: ExportedTask | None, limits: RequestedLimits
) -> list[dict[str, Any]]:
    """Return profiles for a project without any: texts by their tokens, images by the batch."""
    if exported is None or exported.text is None:
        return []
    names = [tensor.name for tensor in network.inputs]
    tokens = limits.max_num_tokens or _DEFAULT_RUN_TOKENS
    return token_profiles(names, limits.max_batch_size, exported.text["max_seq_len"], tokens)
