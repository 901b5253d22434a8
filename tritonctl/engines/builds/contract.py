# SPDX-License-Identifier: Apache-2.0
"""The JSON contract with a builder process: one request in, one result out.

`builders/README.md` describes it from the builder's side. Builders read requests with a JSON schema
and classes that `make contracts` generates from these models.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_serializer,
)

from tritonctl.errors import BuildFailedError
from tritonctl.project.base import Frozen, NotNegativeInteger, Positive, Share
from tritonctl.project.compatibility.table import BuildTarget
from tritonctl.project.engine import Calibration
from tritonctl.project.expected import reason
from tritonctl.store.files import StoredFile

# Builders get a Path.
AbsolutePath = Annotated[str, WithJsonSchema({"type": "string", "format": "path"})]


class EngineLimits(Frozen):
    """Size limits of an engine. None: the builder decides."""

    max_batch_size: NotNegativeInteger = Field(description="sequences; 0: no batch dimension")
    max_input_len: Positive | None = Field(None, description="tokens of a prompt")
    max_seq_len: Positive | None = Field(None, description="tokens of prompt and answer")
    max_num_tokens: Positive | None = Field(None, description="tokens of a step or run")
    max_beam_width: Positive = 1
    tp_size: Positive = Field(1, description="GPUs")
    pp_size: Positive = Field(1, description="GPUs")


class _GrowingRecord(Frozen):
    """A record that omits later additions while they are null.

    Old fingerprints stay valid, and old builders meet no unknown key.
    """

    later: ClassVar[tuple[str, ...]] = ()  # fields that a later version added

    @model_serializer(mode="wrap")
    def _without_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        record: dict[str, Any] = handler(self)
        return {k: v for k, v in record.items() if v is not None or k not in self.later}


class EvaluationRequest(_GrowingRecord):
    """Prompts for the comparison of engine and checkpoint, and bounds of its result.

    `min_score` and `recall_at` apply to tasks other than text generation. Their lines are pairs of
    query and text, or texts with a label.
    """

    later: ClassVar[tuple[str, ...]] = ("min_score", "recall_at")

    prompts: AbsolutePath = Field(description="JSON lines")
    max_prompts: Positive | None = None
    max_tokens: Positive
    min_exact_match: Share | None = Field(None, description="share of equal answers")
    min_score: Share | None = Field(None, description="recall or accuracy")
    recall_at: Positive | None = Field(None, description="texts")


class CalibrationRequest(Calibration):
    """Samples for measuring the ranges of activations."""

    data: AbsolutePath = Field(description="a file or a folder")  # type: ignore[assignment]


class BuildRequest(_GrowingRecord):
    """A build request. `task` is set if the engine's tensors do not identify the task."""

    later: ClassVar[tuple[str, ...]] = ("task",)

    schema_: Literal["tritonctl.build/1"] = Field("tritonctl.build/1", alias="schema")
    model: str
    checkpoint: AbsolutePath
    precision: str
    limits: EngineLimits
    kv_cache_dtype: str | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False
    options: dict[str, Any] = Field({}, description="free; the builder checks them")
    evaluation: EvaluationRequest | None = None
    stage: str | None = None
    source: AbsolutePath | None = Field(None, description="the previous stage's artefact")
    target: BuildTarget | None = None
    calibration: CalibrationRequest | None = None
    task: str | None = None


class TensorSpec(Frozen):
    """A tensor of the raw engine."""

    name: str
    data_type: str  # Triton's name
    # Without the batch dimension, unless limits.max_batch_size is 0; -1: variable. Empty: one value
    # for each row, or a scalar.
    dims: list[int]


class EngineTensors(Frozen):
    """Inputs and outputs of the raw engine."""

    inputs: list[TensorSpec]
    outputs: list[TensorSpec]


class ModelFacts(Frozen):
    """Properties of the checkpoint that serving needs."""

    architecture: str
    vocab_size: int
    num_hidden_layers: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int = Field(description="tokens")
    bos_token_id: int | None = None
    eos_token_ids: list[int] = Field(description="never empty")
    pad_token_id: int | None = None


class FirstDivergence(Frozen):
    """The first prompt that the engine answers differently from the checkpoint."""

    prompt: str
    token: int = Field(description="position of the first different answer token, from 0")
    expected: str
    got: str


class EvaluationResult(Frozen):
    """Comparison of the engine's greedy answers with the checkpoint's; shares are 0 to 1."""

    prompts: int
    exact_match: float
    answer_match: float | None = None
    diverged: int = Field(description="prompts")
    first_divergence: FirstDivergence | None = None
    mean_divergence_token: float | None = None
    mean_kl_divergence: float | None = Field(
        None, description="nats per answer token, checkpoint || engine"
    )
    perplexity: float | None = None
    reference_perplexity: float | None = None


class Parity(Frozen):
    """Comparison of a tensor engine's outputs with its source's on the same inputs."""

    samples: int = Field(description="compared texts or samples")
    max_abs_error: float
    prediction_match: float | None = Field(
        None,
        description="share with the same best label (`logits`) or nearest other text (vectors)",
    )


class ProofFigure(Frozen):
    """A measured value of a proof within its bound."""

    name: str
    value: float
    bound: float
    better: Literal["higher", "lower"]


class NegativeControl(Frozen):
    """A deliberate mistake and the figure that detects it."""

    name: str = Field(description="of the mistake")
    figure: str = Field(description="name of the figure that misses its bound")
    value: float


class TaskEvaluation(Frozen):
    """Scores of reference and engine on the user's evaluation set; shares are 0 to 1."""

    metric: str
    samples: int
    reference: float
    engine: float
    least: float | None  # required score of the engine


class Proof(Frozen):
    """Comparison of the served steps with the reference library on the same inputs."""

    task: str
    reference: str
    cases: int
    figures: list[ProofFigure] = Field(min_length=1)
    controls: list[NegativeControl] = Field(min_length=1)
    evaluation: TaskEvaluation | None = None


class BuildResult(Frozen):
    """A builder's report of a successful build."""

    schema_: Literal["tritonctl.build-result/1"] = Field(alias="schema")
    status: Literal["ok"]
    files: list[StoredFile] = Field(min_length=1)
    tensors: EngineTensors
    limits: EngineLimits
    model: ModelFacts | None = None
    runtime: dict[str, Any]
    versions: dict[str, str]
    hardware: dict[str, str | None]
    durations_seconds: dict[str, float]
    evaluation: EvaluationResult | None = None
    parity: Parity | None = None
    proof: Proof | None = None


class BuildRefusal(Frozen):
    """A builder's report of a failed build."""

    schema_: Literal["tritonctl.build-result/1"] = Field(alias="schema")
    status: Literal["failed"]
    problem: str
    remedy: str


_RESULT_ADAPTER: TypeAdapter[BuildResult | BuildRefusal] = TypeAdapter(
    Annotated[BuildResult | BuildRefusal, Field(discriminator="status")]
)


def read_result(path: Path, builder: str) -> BuildResult | BuildRefusal:
    """Read a builder's result file. Raises BuildFailedError when it breaks the contract."""
    remedy = f"this is a defect of builders/{builder}: see builders/README.md"
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise BuildFailedError(
            f"builder {builder} exited without writing a result", remedy=remedy
        ) from None
    try:
        return _RESULT_ADAPTER.validate_json(text)
    except ValidationError as error:
        data = None
        with suppress(ValueError):  # not JSON: `error` already says so
            data = json.loads(text)
        raise BuildFailedError(
            f"builder {builder} wrote a malformed result: {reason(error, data)}", remedy=remedy
        ) from error
