# SPDX-License-Identifier: Apache-2.0
"""Whether responses are what a model's configuration declares: names, data types, shapes, bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tritonctl.errors import ServerBusyError
from tritonctl.protocol.datatypes import BY_CONFIG_NAME
from tritonctl.protocol.error_map import refusal
from tritonctl.protocol.model_config import Config
from tritonctl.protocol.tensors import infer_response
from tritonctl.server.smoke.recording_client import Answer


def failure_of(answer: Answer, seconds: float) -> str:
    """Why no answer came; "" when one did."""
    if answer.timed_out and answer.responses:
        count = len(answer.responses)
        return f"{count} response{'s' if count != 1 else ''}, and no end within {seconds:g} s"
    if answer.timed_out:
        return f"no answer within {seconds:g} s"
    return answer.error


def is_busy(answer: Answer) -> bool:
    """Whether a queue refused the request, as it should when too many come at once."""
    return bool(answer.error) and isinstance(refusal(answer.error), ServerBusyError)


def faults(
    config: Config, responses: Sequence[Any], *, batch: int, names: Sequence[str] | None = None
) -> list[str]:
    """What is wrong with an answer's outputs, without repetition.

    batch: of the request. names: the outputs that must come, in one response or another; all
    declared ones when None.
    """
    declared = {output["name"]: output for output in config.get("output", ())}
    batches = int(config.get("max_batch_size", 0)) > 0
    problems: dict[str, None] = {}
    present: set[str] = set()
    for response in responses:
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
            present.add(output.name)
            if output.name not in declared:
                problems[f"{output.name} is not an output of the configuration"] = None
                continue
            problems |= dict.fromkeys(
                _tensor_faults(declared[output.name], output, raw, [batch] if batches else [])
            )
    wanted = declared if names is None else names
    missing = [name for name in wanted if name not in present]
    return [*(f"output {name} is missing" for name in missing), *problems]


def _tensor_faults(declared: Any, output: Any, raw: bytes, batch: list[int]) -> Iterator[str]:
    name, shape = output.name, list(output.shape)
    kind = BY_CONFIG_NAME[declared["data_type"]]
    wanted = [*batch, *map(int, declared["dims"])]
    if output.datatype != kind.wire:
        yield f"output {name} is {output.datatype}, declared {kind.wire}"
        return
    fits = len(shape) == len(wanted) and all(
        want in (-1, size) for want, size in zip(wanted, shape, strict=True)
    )
    # NVIDIA's text models, and ours, answer with one text per row and no batch dimension.
    if not fits and not (name == "text_output" and wanted == [*shape, -1]):
        yield f"output {name} has shape {shape}, declared {wanted}"
        return
    if kind.size is not None and len(raw) != kind.size * int(np.prod(shape, dtype=np.int64)):
        yield f"output {name} has {len(raw)} bytes, which are not {shape} of {output.datatype}"


def nan_faults(responses: Sequence[Any]) -> list[str]:
    """Outputs that hold NaN."""
    problems: dict[str, None] = {}
    for response in responses:
        for name, array in infer_response(response).items():
            if array.dtype.kind == "f" and np.isnan(array).any():
                problems[f"output {name} holds NaN"] = None
    return list(problems)


def outputs_of(response: Any) -> str:
    """Names and shapes of a response's outputs."""
    return ", ".join(f"{output.name}{list(output.shape)}" for output in response.outputs)
