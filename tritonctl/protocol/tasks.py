# SPDX-License-Identifier: Apache-2.0
"""Encoders, classifiers and rerankers on the wire: rows of a request in, typed results out.

The tensors are the public ones of docs/reference/tensors.md, batch dimension first. They
identify a model's task, so any server's model with such tensors answers, ours or not.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from tritonctl.errors import ServerError, TritonctlError, UsageError
from tritonctl.protocol import asking
from tritonctl.protocol.tensors import infer_response

TEXT, PAIR, QUERY, IMAGE = "text_input", "text_pair", "query", "image"
_LENGTH = struct.Struct("<I")
_BROKEN = "the model does not keep to its task's tensors: `tritonctl smoke` says what is wrong"


@dataclass(frozen=True)
class Embedding:
    """A vector, FP32[d]. An image has no tokens: `num_input_tokens`, `truncated` are None then.

    `truncated`: the text was longer than the model takes, and only its beginning counts.
    """

    vector: NDArray[np.float32]
    num_input_tokens: int | None = None
    truncated: bool | None = None


@dataclass(frozen=True)
class Classification:
    """Labels with their scores, best first: all of them, or `top_k`. The rest as in Embedding."""

    labels: tuple[str, ...]
    scores: tuple[float, ...]
    num_input_tokens: int | None = None
    truncated: bool | None = None


@dataclass(frozen=True)
class Entity:
    """A part of a text, from `start` to `end` in characters; `text`: what stands there, if told."""

    label: str
    score: float
    start: int
    end: int
    text: str = ""


@dataclass(frozen=True)
class TokenClassification:
    """The entities of a text, in its order. The rest as in Embedding."""

    entities: tuple[Entity, ...]
    num_input_tokens: int | None = None
    truncated: bool | None = None


@dataclass(frozen=True)
class Relevance:
    """How well a text answers a query. `index`: the text's among those that were given."""

    index: int
    score: float
    num_input_tokens: int | None = None
    truncated: bool | None = None


Result = Embedding | Classification | TokenClassification | Relevance


@dataclass(frozen=True)
class Task:
    """A task: the inputs of each row, and the outputs that identify it."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def takes_images(self) -> bool:
        """Whether a row is an image file, not a text."""
        return IMAGE in self.inputs


# A model is of the first task whose tensors it has.
TASKS = {
    task.name: task
    for task in (
        Task("text_generation", (TEXT,), ("text_output",)),
        Task("embedding", (TEXT,), ("embedding",)),
        Task("image_embedding", (IMAGE,), ("embedding",)),
        Task("rerank", (QUERY, TEXT), ("score",)),
        Task("classification", (TEXT,), ("label", "score")),
        Task("image_classification", (IMAGE,), ("label", "score")),
        Task("token_classification", (TEXT,), ("entities",)),
        Task("tensors", (), ()),
    )
}


@dataclass(frozen=True)
class ServedTask:
    """A model that is served, as a client needs to know it. `max_rows`: of a request; 0: no batch.

    `signature`: its versions and outputs in words; another one is another model.
    """

    model: str
    task: Task
    inputs: frozenset[str]
    max_rows: int
    signature: str

    @classmethod
    def of(cls, metadata: Any, config: Any) -> ServedTask:
        """From ModelMetadataResponse and ModelConfigResponse.

        config: None where nobody may see it, as through a gateway: one row a request then.
        """
        inputs = frozenset(tensor.name for tensor in metadata.inputs)
        outputs = frozenset(tensor.name for tensor in metadata.outputs)
        task = next(
            one
            for one in TASKS.values()
            if inputs.issuperset(one.inputs) and outputs.issuperset(one.outputs)
        )
        tensors = (f"{one.name} {one.datatype}{list(one.shape)}" for one in metadata.outputs)
        signature = f"version {', '.join(metadata.versions)}: {', '.join(sorted(tensors))}"
        rows = int(len(metadata.inputs[0].shape) > 1) if config is None else 0
        if config is not None:
            rows = config.config.max_batch_size
        return cls(metadata.name, task, inputs, rows, signature)


@dataclass(frozen=True)
class RowOptions:
    """Optional inputs, the same for every row; None leaves the choice to the model."""

    prompt_name: str | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    top_k: int | None = None

    def tensors(self) -> dict[str, tuple[str, bytes]]:
        """Data type and content for one row, by input. Raises UsageError for what does not fit."""
        given: dict[str, tuple[str, bytes]] = {}
        if self.prompt_name is not None:
            given["prompt_name"] = "BYTES", _text(self.prompt_name.encode())
        if self.truncate is not None:
            given["truncate"] = "BOOL", struct.pack("<?", self.truncate)
        for name in ("dimensions", "top_k"):
            value = getattr(self, name)
            if value is not None:
                given[name] = "INT32", _count(name, value)
        return given


def _count(name: str, value: int) -> bytes:
    if not 0 < value < 2**31:
        raise UsageError(
            f"{name} is {value}, expected 1 or more", remedy=f"leave {name} out to have all"
        )
    return struct.pack("<i", value)


@dataclass(eq=False)
class Row:
    """One item: its BYTES inputs by name. `place`: what the answer is for, the caller's affair."""

    tensors: Mapping[str, bytes]
    place: Any = None
    size: int = field(init=False)

    def __post_init__(self) -> None:
        """Its bytes: the longer a text, the longer it takes."""
        self.size = sum(map(len, self.tensors.values()))


def rows_request(served: ServedTask, rows: Sequence[Row], options: RowOptions) -> Any:
    """The ModelInferRequest of these rows, which have the same inputs."""
    request = service_pb2.ModelInferRequest(model_name=served.model)
    shape = [len(rows), 1] if served.max_rows else [1]
    for name in rows[0].tensors:
        request.inputs.add(name=name, datatype="BYTES", shape=shape)
        request.raw_input_contents.append(b"".join(_text(row.tensors[name]) for row in rows))
    for name, (datatype, content) in options.tensors().items():
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(content * len(rows))
    return request


def _text(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


def read_rows(served: ServedTask, response: Any, count: int) -> list[Result | TritonctlError]:
    """The result of each row; a ServerError in place of one that is not a finite number.

    Raises ServerError for a response without a task's outputs for so many rows.
    """
    arrays = infer_response(response)
    if not served.max_rows:
        arrays = {name: array[np.newaxis] for name, array in arrays.items()}
    wanted = served.task.outputs
    for name in wanted:
        if name not in arrays or len(arrays[name]) != count:
            raise ServerError(
                f"{served.model} answers {count} rows with "
                f"{list(arrays[name].shape) if name in arrays else 'no'} {name}",
                remedy=_BROKEN,
            )
    tokens, cut = (_column(arrays, name, count) for name in ("num_input_tokens", "truncated"))
    counts = [
        (None if n is None else int(n), None if t is None else bool(t))
        for n, t in zip(tokens, cut, strict=True)
    ]
    return [_result(served, arrays, row, counts[row]) for row in range(count)]


def _column(arrays: Mapping[str, Any], name: str, count: int) -> Sequence[Any]:
    """A value for each row; None where the model has no such output."""
    if name not in arrays:
        return [None] * count
    values: list[Any] = arrays[name].reshape(count, -1)[:, 0].tolist()
    return values


def _result(
    served: ServedTask, arrays: Mapping[str, Any], row: int, counts: tuple[int | None, bool | None]
) -> Result | TritonctlError:
    first = arrays[served.task.outputs[-1]][row]
    if first.dtype.kind == "f" and not np.isfinite(first).all():
        return ServerError(
            f"{served.model} answers with {served.task.outputs[-1]}s that are no finite numbers",
            remedy="its weights may be damaged, or its precision too low: `tritonctl build` proves "
            "the answers",
        )
    match served.task.name:
        case "embedding" | "image_embedding":
            return Embedding(first, *counts)
        case "rerank":
            return Relevance(0, float(first.reshape(-1)[0]), *counts)
        case "token_classification":
            return TokenClassification(_entities(served, first.reshape(-1)[0]), *counts)
        case _:
            labels = tuple(label.decode("utf-8", "replace") for label in arrays["label"][row].flat)
            return Classification(labels, tuple(first.reshape(-1).tolist()), *counts)


def _entities(served: ServedTask, text: bytes) -> tuple[Entity, ...]:
    try:
        return tuple(
            Entity(one["label"], one["score"], one["start"], one["end"], one.get("text", ""))
            for one in json.loads(text)
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(
            f"{served.model}: entities that are none: {text[:100]!r}", remedy=_BROKEN
        ) from error


def refuse_other_task(served: ServedTask, tasks: Collection[str], inputs: Collection[str]) -> None:
    """Raises UsageError for a model of a task that is none of these, or without such inputs."""
    asking.refuse_other_task(served.model, served.task.name, tasks)
    if unknown := sorted(set(inputs) - served.inputs):
        raise UsageError(
            f"{served.model} takes no {', '.join(unknown)}",
            remedy=f"leave it out; the model's inputs: {', '.join(sorted(served.inputs))}",
        )
