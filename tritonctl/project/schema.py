# SPDX-License-Identifier: Apache-2.0
"""The project file's schema, `tritonctl/v1`: builds, serving and deployment.

`tritonctl.project.file` reads it; `tritonctl schema` prints it for editors. Field names follow
Triton and TensorRT-LLM where they have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from tritonctl.errors import ConfigurationError
from tritonctl.project.base import Positive, Slo, Strict
from tritonctl.project.engine import Engine
from tritonctl.project.frontend import Frontend, Pool
from tritonctl.project.rollout import Rollout
from tritonctl.project.scenario import Scenario
from tritonctl.project.server import Docker, Gateway, Server
from tritonctl.project.tenant_defaults import share_no_prefix_cache

SCHEMA = "tritonctl/v1"
STATE_FOLDER = ".tritonctl"

MODEL_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
ModelName = Annotated[str, Field(pattern=MODEL_NAME_PATTERN)]

# Triton adds the timeout to the clock in nanoseconds: a longer one could overflow.
MAX_QUEUE_MICROSECONDS = 24 * 3600 * 1_000_000


class InstanceGroup(Strict):
    """Triton's `instance_group`."""

    kind: Literal["KIND_CPU", "KIND_GPU", "KIND_MODEL", "KIND_AUTO"] = Field(
        "KIND_CPU", description="where the instances run"
    )
    count: Positive = Field(1, description="number of instances, per GPU for KIND_GPU")
    gpus: list[int] = Field([], description="GPUs by number; all when empty")


class DynamicBatching(Strict):
    """Triton's `dynamic_batching`, for every step except an engine that batches itself."""

    max_queue_delay_microseconds: Annotated[int, Field(ge=0)] | None = Field(
        None, description="the backend's best value when absent: python_backends/README.md"
    )
    preferred_batch_size: list[Positive] = Field(
        [], description="batch sizes that are sent without further delay"
    )


class Queue(Strict):
    """The queue in front of the engine: length, order and timeouts.

    Priorities and timeouts use Triton's queue, which has a cost: decision 12.
    """

    max_queue_size: Annotated[int, Field(ge=0, lt=2**32)] | None = Field(
        None,
        description="maximum waiting requests per priority level; beyond: UNAVAILABLE at once. "
        "4 * engine.max_batch_size when absent (native backends: unlimited), 0: unlimited",
    )
    priority_levels: Annotated[int, Field(ge=0, le=256)] = Field(
        0, description="number of priority levels, 1 is highest; 0: first come, first served"
    )
    default_priority_level: Positive | None = Field(
        None, description="level of requests without a priority; the lowest when absent"
    )
    default_timeout_microseconds: Annotated[int, Field(ge=0, le=MAX_QUEUE_MICROSECONDS)] = Field(
        0, description="timeout of waiting requests; 0: unlimited"
    )
    allow_timeout_override: bool = Field(False, description="requests may set a shorter `timeout`")

    @model_validator(mode="after")
    def _level_exists(self) -> Self:
        if (self.default_priority_level or 0) > self.priority_levels:
            raise ValueError(
                f"default_priority_level is {self.default_priority_level}, but there are "
                f"{self.priority_levels} priority_levels"
            )
        return self


class SessionOptions(Strict):
    """ONNX Runtime's session options, for engines of the onnxruntime builder."""

    intra_op_num_threads: Annotated[int, Field(ge=0)] = Field(
        0, description="threads per operator and instance; 0: one per core"
    )
    inter_op_num_threads: Annotated[int, Field(ge=0)] = Field(
        1, description="parallel operators in the parallel mode; 0: one per core"
    )
    execution_mode: Literal["sequential", "parallel"] = Field(
        "sequential", description="parallel: run independent operators in parallel"
    )
    graph_optimization_level: Literal["disabled", "basic", "extended", "all"] = Field(
        "all", description="optimisations on loading, in addition to the build's"
    )
    allow_spinning: bool = Field(
        False, description="waiting threads spin: faster alone, slower next to other models"
    )


class Serving(Strict):
    """How Triton serves the model."""

    session: SessionOptions = Field(
        SessionOptions(), description="session options of ONNX Runtime engines"
    )
    instance_group: list[InstanceGroup] = Field(
        [InstanceGroup()], description="instances of the engine step", min_length=1
    )
    parallel_runs: Annotated[int, Field(ge=1, le=1024)] = Field(
        8,
        description="maximum parallel runs of a graph on a CPU per instance, at most one per core. "
        "They share weights and threads, but not activations. When absent and "
        "session.intra_op_num_threads is set: 1",
    )
    dynamic_batching: DynamicBatching = Field(DynamicBatching(), description="batching of requests")
    queue: Queue = Field(Queue(), description="queue of requests for the engine")
    kv_cache_tokens: Positive | None = Field(
        None, description="tokens in the KV pool; max_batch_size * max_seq_len when absent"
    )
    enable_prefix_caching: bool = Field(
        True,
        description="reuse KV of equal prompt beginnings. When absent and gateway.tenants has "
        "several: false, since response times would tell a tenant what others asked",
    )
    stream_interval_ms: Annotated[int, Field(ge=0, le=1000)] = Field(
        10,
        description="minimum time between two responses of a stream; faster tokens are sent "
        "together, with many streams at longer intervals. The first and last are sent at once. "
        "0: each token separately. Text generation only",
    )
    max_image_pixels: Positive = Field(
        50_000_000,
        description="image tasks: maximum pixels of an image, and of all images decoded at a "
        "time; a WebP needs up to 16 bytes per pixel, other formats 9",
    )
    inline_detokenizer: bool = Field(
        False,
        description="the engine returns text: two steps instead of three, 20 to 35 % less CPU per "
        "token. Drawback: Triton 2.51 does not report a client's disconnect to it, so the stream "
        "runs to its max_tokens",
    )
    fused: bool = Field(
        False,
        description="the engine performs all steps and is the public model: no ensemble, one "
        "process, the same tensors; it detects a client's disconnect. For CPUs with few cores: "
        "prompts are encoded between the engine's steps",
    )
    cache: bool = Field(
        False,
        description="answer byte-identical repeated requests from Triton's response cache "
        "(server.cache_size). Not for models that stream: docs/how-to/cache-answers.md",
    )
    unary: bool = Field(
        False,
        description="also serve `<model>_unary` with a single response, for ModelInfer, HTTP infer "
        "and clients that cannot stream. It calls the model and has no separate engine",
    )
    pools: dict[str, Pool] = Field(
        {},
        description="named pools of the frontend's servers by length of requests; one pool when "
        "absent",
    )
    backend: Literal["python", "onnxruntime", "tensorrt", "tensorrtllm"] | None = Field(
        None,
        description="backend of the engine step; the builder's when absent. onnxruntime, tensorrt: "
        "Triton's native backends. tensorrtllm: NVIDIA's C++ backend (Triton images up to 26.07) "
        "for compiled engines; token ids in and out, without text and an ensemble",
    )
    runtime: dict[str, Any] = Field(
        {},
        description="settings of the engine's runtime under its names; they override the "
        "builder's. tensorrt_llm: kv_cache_config, guided_decoding_backend, "
        "gather_generation_logits; with backend tensorrtllm the parameters of that backend",
    )
    config: dict[str, dict[str, Any]] = Field(
        {},
        description="raw ModelConfig fields by step (tokenizer, engine, detokenizer, ensemble, "
        "unary), merged last and validated by Triton's protobuf schema",
    )

    @property
    def max_parallel_runs(self) -> int:
        """Maximum parallel runs of an instance with enough cores."""
        threads = self.session.intra_op_num_threads
        return 1 if threads and "parallel_runs" not in self.model_fields_set else self.parallel_runs


class Evaluation(Strict):
    """The evaluation of a new engine."""

    prompts: Path = Field(
        description="JSON lines with text_input and, optionally, the right text_output; for "
        "embedding and rerank: query and its matching text; for classification: text_input "
        "and label",
        strict=False,
    )
    max_prompts: Positive | None = Field(200, description="maximum prompts; null: all")
    max_tokens: Positive = Field(64, description="maximum tokens of an answer")
    min_exact_match: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="required share of answers equal to the checkpoint's; below: fail"
    )
    min_score: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description="required recall of embedding and rerank, accuracy of classification; below: "
        "fail",
    )
    recall_at: Positive | None = Field(
        None, description="k of recall at k; default 10 for embedding, 1 for rerank"
    )


class Model(Strict):
    """One public model: an ensemble and its composing models."""

    task: str = Field("text_generation", description="a file of ensembles/")
    checkpoint: Path = Field(
        description="a Hugging Face model folder, an .onnx file, or OWNER/NAME on the Hugging Face "
        "Hub, which `tritonctl fetch` and `build` download; a folder of that name wins",
        strict=False,
    )
    revision: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None,
        description="branch, tag or commit of a hub's model; `main` when absent. The commit is "
        "pinned in tritonctl.lock",
    )
    engine: Engine = Field(description="the build of the engine")
    serving: Serving = Field(Serving(), description="how Triton serves it")
    evaluation: Evaluation | None = Field(
        None, description="evaluation of a new engine; none when absent"
    )
    slo: Slo = Field(Slo(), description="targets of load tests, the tuner and alerts")


class ComposedServing(Strict):
    """How Triton serves an ensemble without an engine."""

    dynamic_batching: DynamicBatching = Field(
        DynamicBatching(), description="batching of requests in its steps"
    )
    config: dict[str, dict[str, Any]] = Field(
        {},
        description="raw ModelConfig fields by step (`ensemble`: the ensemble), merged last and "
        "validated by Triton's protobuf schema",
    )


class Composed(Strict):
    """A public model without an engine: Python steps and models of the project."""

    task: str | None = Field(
        None, description="a file of ensembles/; the ensemble's name when absent"
    )
    serving: ComposedServing = Field(ComposedServing(), description="how Triton serves it")


class Project(Strict):
    """A `tritonctl.yaml` with a profile merged in."""

    schema_: Literal["tritonctl/v1"] = Field(
        alias="schema", description="the version of this format; always `tritonctl/v1`"
    )
    model_repository: Path = Field(
        Path("model_repository"), description="the folder that `render` writes", strict=False
    )
    engines: Path | None = Field(
        None,
        description="a folder of engines that several projects share; a project reuses another "
        "one's engine after verifying it",
        strict=False,
    )
    models: dict[ModelName, Model] = Field(
        {},
        description="models with an engine, by public name; none if all models are handwritten",
    )
    ensembles: dict[ModelName, Composed] = Field(
        {}, description="public models of other models and Python steps, without an engine"
    )
    server: Server = Field(Server(), description="the Triton process and its ports")
    docker: Docker = Field(Docker(), description="images, memory, replicas")
    gateway: Gateway | None = Field(None, description="Envoy in front of the server's replicas")
    frontend: Frontend | None = Field(None, description="the OpenAI API over the public models")
    rollout: Rollout = Field(Rollout(), description="rollout of a candidate release")
    loadtests: dict[ModelName, Scenario] = Field(
        {}, description="scenarios of `tritonctl loadtest run`, by name"
    )
    profiles: dict[str, dict[str, Any]] = Field(
        {}, description="settings for other hardware, merged over the file"
    )
    _root: Path = PrivateAttr(default=Path())
    _chosen: frozenset[str] | None = PrivateAttr(default=None)
    _typed: frozenset[tuple[str | int, ...]] = PrivateAttr(default=frozenset())

    @classmethod
    def at(cls, root: Path, data: Any) -> Self:
        """Validate `data`; its relative paths start at `root`. Raises ValidationError."""
        project = cls.model_validate(data)
        project._root = root.resolve()
        return project

    def only(self, names: Iterable[str]) -> Self:
        """Return the project restricted to these models."""
        chosen = frozenset(names)
        parts: dict[str, Mapping[str, Any]] = {"models": self.models, "ensembles": self.ensembles}
        selected = {
            section: {name: entry for name, entry in entries.items() if name in chosen}
            for section, entries in parts.items()
        }
        part = self.model_copy(update=selected)
        part._chosen = chosen
        return part

    @model_validator(mode="before")
    @classmethod
    def _share_no_prefix_cache(cls, data: Any) -> Any:
        return share_no_prefix_cache(data)

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        if shared_names := sorted({*self.models} & {*self.ensembles}):
            raise ValueError(f"`{shared_names[0]}` is the name of a model and of an ensemble")
        return self

    @model_validator(mode="after")
    def _frontend_port_is_free(self) -> Self:
        server_ports = {
            port: f"server.{name}" for name, port in self.server.configured_ports.items()
        }
        if self.frontend is not None and self.frontend.port and self.frontend.port in server_ports:
            raise ValueError(
                f"frontend.port {self.frontend.port} equals {server_ports[self.frontend.port]}: "
                "choose another one, or 0 for a free one"
            )
        return self

    @model_validator(mode="after")
    def _aliases_name_models(self) -> Self:
        if self.frontend is not None:
            self.frontend.refuse_unknown_models({*self.models, *self.ensembles})
        for name, model in self.models.items():
            (self.frontend or Frontend()).refuse_unknown_upstreams(name, model.serving.pools)
        return self

    def is_typed(self, *location: str | int) -> bool:
        """Whether the command line or the environment set a field."""
        return any(
            location[: len(typed_location)] == typed_location for typed_location in self._typed
        )

    @property
    def chosen(self) -> frozenset[str] | None:
        """The selected models, including hand-written ones; None: all."""
        return self._chosen

    @property
    def public(self) -> list[str]:
        """The sorted public names of all models and ensembles."""
        return sorted({*self.models, *self.ensembles})

    @property
    def root(self) -> Path:
        """The folder of the project file."""
        return self._root

    @property
    def repository(self) -> Path:
        """The model repository, absolute."""
        return self.path(self.model_repository)

    @property
    def state(self) -> Path:
        """`.tritonctl/`: engines, locks, logs, the state of a running server."""
        return self.root / STATE_FOLDER

    def path(self, relative: Path) -> Path:
        """Return a path of the project file as absolute. Raises ConfigurationError if invalid."""
        try:
            path = (self.root / relative.expanduser()).resolve()
            path.exists()  # raises for invalid paths, such as a too long name
        except (OSError, ValueError, RuntimeError) as error:  # Python's: a loop of links, `~nobody`
            if isinstance(error, PermissionError):  # reading the path reports it
                return path
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigurationError(
                f"the path {relative!s:.200} cannot be used: {reason}",
                remedy=f"correct it in the project file of {self.root}",
            ) from error
        return path
