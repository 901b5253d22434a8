# SPDX-License-Identifier: Apache-2.0
"""Check responses against a model's configuration: names, data types, shapes, bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tritonctl.errors import ServerBusyError
from tritonctl.protocol.datatypes import BY_CONFIG_NAME
from tritonctl.protocol.error_map import from_message
from tritonctl.protocol.model_config import Config
from tritonctl.protocol.tensors import infer_response
from tritonctl.smoke.recording_client import RecordedAnswer


def answer_failure(answer: RecordedAnswer, seconds: float) -> str:
    """Return why no complete answer arrived; "" if one did."""
    if answer.timed_out and answer.responses:
        count = len(answer.responses)
        return f"{count} response{'s' if count != 1 else ''}, and no end within {seconds:g} s"
    if answer.timed_out:
        return f"no answer within {seconds:g} s"
    return answer.error


def is_busy(answer: RecordedAnswer) -> bool:
    """Whether a full queue rejected the request, as it should under too many requests."""
    return bool(answer.error) and isinstance(from_message(answer.error), ServerBusyError)


def output_faults(
    config: Config, responses: Sequence[Any], *, batch: int, names: Sequence[str] | None = None
) -> list[str]:
    """Return the distinct problems of an answer's outputs.

    batch: size of the request's batch. names: outputs that some response must have; None: all
    declared ones.
    """
    declared = {output["name"]: output for output in config.get("output", ())}
    batches = int(config.get("max_batch_size", 0)) > 0
    problems: dict[str, None] = {}
    returned: set[str] = set()
    for response in responses:
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
            returned.add(output.name)
            if output.name not in declared:
                problems[f"{output.name} is not an output of the configuration"] = None
                continue
            problems |= dict.fromkeys(
                _tensor_faults(declared[output.name], output, raw, [batch] if batches else [])
            )
    expected = declared if names is None else names
    missing = [name for name in expected if name not in returned]
    return [*(f"output {name} is missing" for name in missing), *problems]


def _tensor_faults(declared: Any, output: Any, raw: bytes, batch: list[int]) -> Iterator[str]:
    name, shape = output.name, list(output.shape)
    kind = BY_CONFIG_NAME[declared["data_type"]]
    expected = [*batch, *map(int, declared["dims"])]
    if output.datatype != kind.wire:
        yield f"output {name} is {output.datatype}, declared {kind.wire}"
        return
    matches = len(shape) == len(expected) and all(
        expected_size in (-1, size) for expected_size, size in zip(expected, shape, strict=True)
    )
    # NVIDIA's and tritonctl's text models return one text per row without a batch dimension.
    if not matches and not (name == "text_output" and expected == [*shape, -1]):
        yield f"output {name} has shape {shape}, declared {expected}"
        return
    if kind.size is not None and len(raw) != kind.size * int(np.prod(shape, dtype=np.int64)):
        yield f"output {name} has {len(raw)} bytes, which are not {shape} of {output.datatype}"


def nan_faults(responses: Sequence[Any]) -> list[str]:
    """Return a problem for each output with NaN."""
    problems: dict[str, None] = {}
    for response in responses:
        for name, array in infer_response(response).items():
            if array.dtype.kind == "f" and np.isnan(array).any():
                problems[f"output {name} holds NaN"] = None
    return list(problems)


def outputs_of(response: Any) -> str:
    """Return names and shapes of a response's outputs."""
    return ", ".join(f"{output.name}{list(output.shape)}" for output in response.outputs)
