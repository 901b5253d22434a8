# SPDX-License-Identifier: Apache-2.0
"""Encoders, classifiers and rerankers on the wire: request rows and typed results.

docs/reference/tensors.md defines the tensors, batch dimension first. They identify a model's task,
so models of any server with these tensors work.
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
from tritonctl.protocol import task_usage
from tritonctl.protocol.tensors import infer_response

TEXT, PAIR, QUERY, IMAGE = "text_input", "text_pair", "query", "image"
_LENGTH = struct.Struct("<I")
_INVALID_TENSORS_REMEDY = (
    "the model does not follow its task's tensors: `tritonctl smoke` shows the problem"
)


@dataclass(frozen=True)
class Embedding:
    """A vector, FP32[d]."""

    vector: NDArray[np.float32]
    num_input_tokens: int | None = None  # None: unknown, or an image
    truncated: bool | None = None  # the text was too long, so only its start counts


@dataclass(frozen=True)
class Classification:
    """Labels with scores, best first: all, or `top_k`. Other fields as in Embedding."""

    labels: tuple[str, ...]
    scores: tuple[float, ...]
    num_input_tokens: int | None = None
    truncated: bool | None = None


@dataclass(frozen=True)
class Entity:
    """A part of a text, from `start` to `end` in characters."""

    label: str
    score: float
    start: int
    end: int
    text: str = ""  # the part itself, if the model returns it


@dataclass(frozen=True)
class TokenClassification:
    """The entities of a text, in its order. Other fields as in Embedding."""

    entities: tuple[Entity, ...]
    num_input_tokens: int | None = None
    truncated: bool | None = None


@dataclass(frozen=True)
class Relevance:
    """A text's relevance to a query. Other fields as in Embedding."""

    index: int  # of the text in the request
    score: float
    num_input_tokens: int | None = None
    truncated: bool | None = None
    logit: float | None = (
        None  # the score before its activation; None: the model has no such output
    )

    @property
    def rank(self) -> float:
        """The value that ranks texts: scores of logits above 17 are equal in FP32."""
        return self.score if self.logit is None else self.logit


Result = Embedding | Classification | TokenClassification | Relevance


@dataclass(frozen=True)
class TaskSignature:
    """The tensors that identify a task: inputs of each row, and outputs."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def takes_images(self) -> bool:
        """Whether a row is an image file instead of a text."""
        return IMAGE in self.inputs


# A model has the first task whose tensors it has.
TASKS = {
    task.name: task
    for task in (
        TaskSignature("text_generation", (TEXT,), ("text_output",)),
        TaskSignature("embedding", (TEXT,), ("embedding",)),
        TaskSignature("image_embedding", (IMAGE,), ("embedding",)),
        TaskSignature("rerank", (QUERY, TEXT), ("score",)),
        TaskSignature("classification", (TEXT,), ("label", "score")),
        TaskSignature("image_classification", (IMAGE,), ("label", "score")),
        TaskSignature("token_classification", (TEXT,), ("entities",)),
        TaskSignature("tensors", (), ()),
    )
}


@dataclass(frozen=True)
class ServedTask:
    """A deployed model, as far as a client needs it."""

    model: str
    task: TaskSignature
    inputs: frozenset[str]
    max_rows: int  # per request; 0: the model has no batch dimension
    signature: str  # versions and outputs as text; it changes if the model is replaced

    @classmethod
    def of(cls, metadata: Any, config: Any) -> ServedTask:
        """Create from ModelMetadataResponse and ModelConfigResponse.

        config: None if a gateway withholds it; requests then have one row each.
        """
        inputs = frozenset(tensor.name for tensor in metadata.inputs)
        outputs = frozenset(tensor.name for tensor in metadata.outputs)
        task = next(
            task
            for task in TASKS.values()
            if inputs.issuperset(task.inputs) and outputs.issuperset(task.outputs)
        )
        tensors = (
            f"{tensor.name} {tensor.datatype}{list(tensor.shape)}" for tensor in metadata.outputs
        )
        signature = f"version {', '.join(metadata.versions)}: {', '.join(sorted(tensors))}"
        rows = int(len(metadata.inputs[0].shape) > 1) if config is None else 0
        if config is not None:
            rows = config.config.max_batch_size
        return cls(metadata.name, task, inputs, rows, signature)


@dataclass(frozen=True)
class RowOptions:
    """Optional inputs, the same for every row; the model chooses values that are None."""

    prompt_name: str | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    top_k: int | None = None

    def tensors(self) -> dict[str, tuple[str, bytes]]:
        """Return data type and content for one row, by input. Raises UsageError."""
        tensors: dict[str, tuple[str, bytes]] = {}
        if self.prompt_name is not None:
            tensors["prompt_name"] = "BYTES", _text(self.prompt_name.encode())
        if self.truncate is not None:
            tensors["truncate"] = "BOOL", struct.pack("<?", self.truncate)
        for name in ("dimensions", "top_k"):
            value = getattr(self, name)
            if value is not None:
                tensors[name] = "INT32", _positive_int32(name, value)
        return tensors


def _positive_int32(name: str, value: int) -> bytes:
    if not 0 < value < 2**31:
        raise UsageError(
            f"{name} is {value}, expected 1 or more", remedy=f"leave {name} out to have all"
        )
    return struct.pack("<i", value)


@dataclass(eq=False)
class TaskRow:
    """One item."""

    tensors: Mapping[str, bytes]  # BYTES inputs by name
    place: Any = None  # for the caller's use
    size: int = field(init=False)

    def __post_init__(self) -> None:
        """Set the size in bytes, an estimate of the work."""
        self.size = sum(map(len, self.tensors.values()))


def rows_request(served_task: ServedTask, rows: Sequence[TaskRow], options: RowOptions) -> Any:
    """Build the ModelInferRequest of rows with the same inputs."""
    request = service_pb2.ModelInferRequest(model_name=served_task.model)
    shape = [len(rows), 1] if served_task.max_rows else [1]
    for name in rows[0].tensors:
        request.inputs.add(name=name, datatype="BYTES", shape=shape)
        request.raw_input_contents.append(b"".join(_text(row.tensors[name]) for row in rows))
    for name, (datatype, content) in options.tensors().items():
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(content * len(rows))
    return request


def _text(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


def read_rows(served_task: ServedTask, response: Any, count: int) -> list[Result | TritonctlError]:
    """Return the result of each row; a ServerError for one that is not finite.

    Raises ServerError for a response without the task's outputs for `count` rows.
    """
    arrays = infer_response(response)
    if not served_task.max_rows:
        arrays = {name: array[np.newaxis] for name, array in arrays.items()}
    output_names = served_task.task.outputs
    for name in output_names:
        if name not in arrays or len(arrays[name]) != count:
            raise ServerError(
                f"{served_task.model} answers {count} rows with "
                f"{list(arrays[name].shape) if name in arrays else 'no'} {name}",
                remedy=_INVALID_TENSORS_REMEDY,
            )
    tokens, cut = (_column(arrays, name, count) for name in ("num_input_tokens", "truncated"))
    counts = [
        (None if n is None else int(n), None if t is None else bool(t))
        for n, t in zip(tokens, cut, strict=True)
    ]
    logits = _column(arrays, "logit", count)
    return [_result(served_task, arrays, row, counts[row], logits[row]) for row in range(count)]


def _column(arrays: Mapping[str, Any], name: str, count: int) -> Sequence[Any]:
    """Return a value for each row; None if the model has no such output."""
    if name not in arrays:
        return [None] * count
    values: list[Any] = arrays[name].reshape(count, -1)[:, 0].tolist()
    return values


def _result(
    served_task: ServedTask,
    arrays: Mapping[str, Any],
    row: int,
    counts: tuple[int | None, bool | None],
    logit: float | None,
) -> Result | TritonctlError:
    first = arrays[served_task.task.outputs[-1]][row]
    if first.dtype.kind == "f" and not np.isfinite(first).all():
        return ServerError(
            f"{served_task.model} answers with {served_task.task.outputs[-1]}s that are not finite "
            "numbers",
            remedy="its weights may be damaged, or its precision too low: `tritonctl build` checks "
            "the answers",
        )
    match served_task.task.name:
        case "embedding" | "image_embedding":
            return Embedding(first, *counts)
        case "rerank":
            return Relevance(0, float(first.reshape(-1)[0]), *counts, logit=logit)
        case "token_classification":
            return TokenClassification(_entities(served_task, first.reshape(-1)[0]), *counts)
        case _:
            labels = tuple(label.decode("utf-8", "replace") for label in arrays["label"][row].flat)
            return Classification(labels, tuple(first.reshape(-1).tolist()), *counts)


def _entities(served_task: ServedTask, text: bytes) -> tuple[Entity, ...]:
    try:
        return tuple(
            Entity(
                entity["label"],
                entity["score"],
                entity["start"],
                entity["end"],
                entity.get("text", ""),
            )
            for entity in json.loads(text)
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(
            f"{served_task.model}: invalid entities: {text[:100]!r}", remedy=_INVALID_TENSORS_REMEDY
        ) from error


def refuse_other_task(
    served_task: ServedTask, tasks: Collection[str], inputs: Collection[str]
) -> None:
    """Raise UsageError for a model of another task, or without one of these inputs."""
    task_usage.refuse_other_task(served_task.model, served_task.task.name, tasks)
    if unsupported := sorted(set(inputs) - served_task.inputs):
        raise UsageError(
            f"{served_task.model} does not support {', '.join(unsupported)}",
            remedy=f"leave it out; the model's inputs: {', '.join(sorted(served_task.inputs))}",
        )
