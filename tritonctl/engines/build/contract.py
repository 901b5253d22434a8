# SPDX-License-Identifier: Apache-2.0
"""What crosses the border to a builder process, as JSON: one request in, one result out.

`builders/README.md` describes the same from the builder's side. Builders check requests by the JSON
schema of these models; after changing the request, write the file again:

    python -c "from tritonctl.engines.build.contract import *
    from tritonctl.project.json_schema import *
    print(to_json(definitions(BuildRequest)))" > builders/shared/buildlib/request.schema.json
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
)

from tritonctl.errors import BuildFailedError
from tritonctl.project.base import Frozen, Positive, Share
from tritonctl.project.compatibility.table import Target
from tritonctl.project.expected import reason


def _inside(path: str) -> str:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError("the path leads out of the artefact")
    return path


class Limits(Frozen):
    """Sizes of an engine: sequences, tokens, GPUs. None: the builder decides."""

    max_batch_size: Positive
    max_input_len: Positive | None = None
    max_seq_len: Positive | None = None
    max_num_tokens: Positive | None = None
    max_beam_width: Positive = 1
    tp_size: Positive = 1
    pp_size: Positive = 1


class _Grown(Frozen):
    """A record that got fields later: absent, not null, where they say nothing.

    Fingerprints of then stay what they were, and builders of then know every key.
    """

    later: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        record: dict[str, Any] = handler(self)
        return {k: v for k, v in record.items() if v is not None or k not in self.later}


class EvaluationRequest(_Grown):
    """Which prompts (absolute path of a JSON-lines file) to compare engine and checkpoint on.

    `min_score` and `recall_at`: of tasks other than text generation, whose lines are pairs of
    query and text, or texts with their label.
    """

    later: ClassVar[tuple[str, ...]] = ("min_score", "recall_at")

    prompts: str
    max_prompts: Positive | None = None
    max_tokens: Positive
    min_exact_match: Share | None = None
    min_score: Share | None = None
    recall_at: Positive | None = None


class Calibration(Frozen):
    """What to measure the ranges of activations on: absolute path of a file or folder."""

    data: str
    samples: Positive
    max_seq_len: Positive
    batch_size: Positive
    seed: Annotated[int, Field(ge=0)]


class BuildRequest(_Grown):
    """The whole request. `task`: what the engine is for, where its tensors do not say it."""

    later: ClassVar[tuple[str, ...]] = ("task",)

    schema_: Literal["tritonctl.build/1"] = Field("tritonctl.build/1", alias="schema")
    model: str
    checkpoint: str
    precision: str
    limits: Limits
    kv_cache_dtype: str | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False
    options: dict[str, Any] = Field({})
    evaluation: EvaluationRequest | None = None
    stage: str | None = None
    source: str | None = None
    target: Target | None = None
    calibration: Calibration | None = None
    task: str | None = None


class BuiltFile(Frozen):
    """A file of the artefact: path relative to it, bytes, SHA-256 in hex."""

    path: Annotated[str, AfterValidator(_inside)]
    size: int
    sha256: str


class TensorSpec(Frozen):
    """A tensor of the raw engine; `data_type` is Triton's name, -1 a variable dimension."""

    name: str
    data_type: str
    dims: list[int]


class Tensors(Frozen):
    """What the raw engine takes and gives."""

    inputs: list[TensorSpec]
    outputs: list[TensorSpec]


class ModelFacts(Frozen):
    """Facts of the checkpoint that serving needs."""

    architecture: str
    vocab_size: int
    num_hidden_layers: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    bos_token_id: int | None
    eos_token_ids: list[int]
    pad_token_id: int | None


class Divergence(Frozen):
    """The first prompt the engine answered differently, and at which answer token (from 0)."""

    prompt: str
    token: int
    expected: str
    got: str


class EvaluationResult(Frozen):
    """Greedy answers of the engine against the checkpoint's; shares are of 1."""

    prompts: int
    exact_match: float
    answer_match: float | None
    diverged: int
    first_divergence: Divergence | None
    mean_divergence_token: float | None
    mean_kl_divergence: float | None = None  # nats per answer token, checkpoint || engine
    perplexity: float | None = None
    reference_perplexity: float | None = None


class Parity(Frozen):
    """Outputs of a tensor engine against its source's on the same inputs; a share is of 1."""

    samples: int
    max_abs_error: float
    prediction_match: float | None


class Figure(Frozen):
    """A measure of a proof, and the bound that it keeps."""

    name: str
    value: float
    bound: float
    better: Literal["higher", "lower"]


class Control(Frozen):
    """A mistake made on purpose, and the measure that it failed: what the check would catch."""

    name: str
    figure: str
    value: float


class TaskEvaluation(Frozen):
    """The user's own set: `metric` of the reference and of the engine, shares of 1."""

    metric: str
    samples: int
    reference: float
    engine: float
    least: float | None


class Proof(Frozen):
    """The served steps against the reference library, on the same inputs."""

    task: str
    reference: str
    cases: int
    figures: list[Figure] = Field(min_length=1)
    controls: list[Control] = Field(min_length=1)
    evaluation: TaskEvaluation | None = None


class BuildResult(Frozen):
    """What a builder reports when all went well."""

    schema_: Literal["tritonctl.build-result/1"] = Field(alias="schema")
    status: Literal["ok"]
    files: list[BuiltFile] = Field(min_length=1)
    tensors: Tensors
    limits: Limits
    model: ModelFacts | None = None
    runtime: dict[str, Any]
    versions: dict[str, str]
    hardware: dict[str, str | None]
    durations_seconds: dict[str, float]
    evaluation: EvaluationResult | None = None
    parity: Parity | None = None
    proof: Proof | None = None


class BuildRefusal(Frozen):
    """What a builder reports otherwise."""

    schema_: Literal["tritonctl.build-result/1"] = Field(alias="schema")
    status: Literal["failed"]
    problem: str
    remedy: str


_ANSWER: TypeAdapter[BuildResult | BuildRefusal] = TypeAdapter(
    Annotated[BuildResult | BuildRefusal, Field(discriminator="status")]
)


def read_answer(path: Path, builder: str) -> BuildResult | BuildRefusal:
    """Read a builder's result file. Raises BuildFailedError when it breaks the contract."""
    remedy = f"this is a defect of builders/{builder}: see builders/README.md"
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise BuildFailedError(
            f"builder {builder} ended without writing a result", remedy=remedy
        ) from None
    try:
        return _ANSWER.validate_json(text)
    except ValidationError as error:
        data = None
        with suppress(ValueError):  # not JSON, which is the reason then
            data = json.loads(text)
        raise BuildFailedError(
            f"builder {builder} wrote a malformed result: {reason(error, data)}", remedy=remedy
        ) from error
