# SPDX-License-Identifier: Apache-2.0
"""Whether responses are what a model's configuration declares: names, data types, shapes, bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tritonctl.errors import ServerBusyError
from tritonctl.protocol.datatypes import BY_CONFIG_NAME, TABLE
from tritonctl.protocol.error_map import refusal
from tritonctl.protocol.tensors import infer_response
from tritonctl.smoke.inputs import Config
from tritonctl.smoke.recording_client import Answer

_SIZES = {row.wire: row.size for row in TABLE}


def how_it_failed(answer: Answer, seconds: float) -> str:
    """Why there is no answer; "" when there is one."""
    if answer.timed_out and answer.responses:
        count = len(answer.responses)
        return f"{count} response{'s' if count != 1 else ''}, and no end within {seconds:g} s"
    if answer.timed_out:
        return f"no answer within {seconds:g} s"
    return answer.error


def is_busy(answer: Answer) -> bool:
    """Whether a queue refused it, as it is meant to when too many come at once."""
    return bool(answer.error) and isinstance(refusal(answer.error), ServerBusyError)


def faults(
    config: Config, responses: Sequence[Any], *, batch: int, names: Sequence[str] | None = None
) -> list[str]:
    """What is wrong with an answer's outputs, each thing once.

    batch: of the request. names: the outputs that must be there, all declared ones when absent; of
    several responses, each in one of them at least.
    """
    declared = {one["name"]: one for one in config.get("output", ())}
    batches = int(config.get("max_batch_size", 0)) > 0
    found: dict[str, None] = {}
    seen: set[str] = set()
    for response in responses:
        for output, raw in _outputs(response):
            seen.add(output.name)
            if output.name not in declared:
                found[f"{output.name} is no output of the configuration"] = None
                continue
            found |= dict.fromkeys(
                _tensor(declared[output.name], output, raw, [batch] if batches else [])
            )
    wanted = declared if names is None else names
    missing = [name for name in wanted if name not in seen]
    return [*(f"output {name} is missing" for name in missing), *found]


def _outputs(response: Any) -> Iterator[tuple[Any, bytes]]:
    """With their bytes; an empty raw content is left out by nobody."""
    yield from zip(response.outputs, response.raw_output_contents, strict=True)


def _tensor(declared: Any, output: Any, raw: bytes, batch: list[int]) -> Iterator[str]:
    name, shape = output.name, list(output.shape)
    kind = BY_CONFIG_NAME[declared["data_type"]]
    wanted = [*batch, *map(int, declared["dims"])]
    if output.datatype != kind.wire:
        yield f"output {name} is {output.datatype}, declared {kind.wire}"
        return
    fits = len(shape) == len(wanted) and all(
        want in (-1, size) for want, size in zip(wanted, shape, strict=True)
    )
    if not fits:
        yield f"output {name} has shape {shape}, declared {wanted}"
        return
    size = _SIZES[output.datatype]
    if size is not None and len(raw) != size * int(np.prod(shape, dtype=np.int64)):
        yield f"output {name} has {len(raw)} bytes, which are not {shape} of {output.datatype}"


def not_numbers(responses: Sequence[Any]) -> list[str]:
    """Outputs that hold NaN."""
    found: dict[str, None] = {}
    for response in responses:
        for name, array in infer_response(response).items():
            if array.dtype.kind == "f" and np.isnan(array).any():
                found[f"output {name} holds NaN"] = None
    return list(found)


def described(response: Any) -> str:
    """Names and shapes of a response's outputs."""
    return ", ".join(f"{one.name}{list(one.shape)}" for one in response.outputs)
