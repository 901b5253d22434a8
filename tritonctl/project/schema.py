# SPDX-License-Identifier: Apache-2.0
"""The project file's schema, `tritonctl/v1`: what to build, how to serve it, where.

`tritonctl.project.file` reads it; `tritonctl schema` prints it for editors. Field names are
Triton's and TensorRT-LLM's own wherever they have one.
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

SCHEMA = "tritonctl/v1"
STATE_FOLDER = ".tritonctl"

MODEL_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
ModelName = Annotated[str, Field(pattern=MODEL_NAME_PATTERN)]

# Triton adds the timeout to the clock in nanoseconds: an unlimited one would overflow.
LONGEST_QUEUE_MICROSECONDS = 24 * 3600 * 1_000_000


class InstanceGroup(Strict):
    """Triton's `instance_group`."""

    kind: Literal["KIND_CPU", "KIND_GPU", "KIND_MODEL", "KIND_AUTO"] = Field(
        "KIND_CPU", description="where its instances run"
    )
    count: Positive = Field(1, description="instances, on each of the GPUs where there are any")
    gpus: list[int] = Field([], description="GPUs by number; all of them when empty")


class DynamicBatching(Strict):
    """Triton's `dynamic_batching`, for every step except an engine with its own batching."""

    max_queue_delay_microseconds: Annotated[int, Field(ge=0)] | None = Field(
        None, description="the backend's best value when absent: python_backends/README.md"
    )
    preferred_batch_size: list[Positive] = Field(
        [], description="sizes at which a batch is sent without further delay"
    )


class Queue(Strict):
    """The queue in front of the engine: how many requests wait, how long, in which order.

    Order and time are kept by Triton's own queue, which costs: decision 12.
    """

    max_queue_size: Annotated[int, Field(ge=0, lt=2**32)] | None = Field(
        None,
        description="waiting requests (of one priority level); one more is answered UNAVAILABLE "
        "at once. 4 * engine.max_batch_size when absent (Triton's own backends: none), 0: no bound",
    )
    priority_levels: Annotated[int, Field(ge=0, le=256)] = Field(
        0, description="requests choose one, 1 goes first; 0: first come, first served"
    )
    default_priority_level: Positive | None = Field(
        None, description="of requests without a priority; the lowest, priority_levels, when absent"
    )
    default_timeout_microseconds: Annotated[int, Field(ge=0, le=LONGEST_QUEUE_MICROSECONDS)] = (
        Field(0, description="a request that waited this long gets an error; 0: never")
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
        0, description="threads inside an operator, of each instance; 0: one per core"
    )
    inter_op_num_threads: Annotated[int, Field(ge=0)] = Field(
        1, description="operators run in parallel, in the parallel mode; 0: one per core"
    )
    execution_mode: Literal["sequential", "parallel"] = Field(
        "sequential", description="parallel: operators that do not depend on each other together"
    )
    graph_optimization_level: Literal["disabled", "basic", "extended", "all"] = Field(
        "all", description="optimisations while loading, in addition to the build's"
    )
    allow_spinning: bool = Field(
        False, description="threads spin while they wait: faster alone, slower next to other models"
    )


class Serving(Strict):
    """How Triton serves the model."""

    session: SessionOptions = Field(SessionOptions(), description="of ONNX Runtime engines")
    instance_group: list[InstanceGroup] = Field(
        [InstanceGroup()], description="of the engine step", min_length=1
    )
    parallel_runs: Annotated[int, Field(ge=1, le=1024)] = Field(
        8,
        description="runs of a graph on a CPU at a time, at most: one per core, of each instance. "
        "They share its weights and threads; each takes its own activations. Absent, one where "
        "session.intra_op_num_threads is set",
    )
    dynamic_batching: DynamicBatching = Field(
        DynamicBatching(), description="how requests gather to batches"
    )
    queue: Queue = Field(Queue(), description="requests that wait for the engine")
    kv_cache_tokens: Positive | None = Field(
        None, description="tokens the KV pool holds; max_batch_size * max_seq_len when absent"
    )
    enable_prefix_caching: bool = Field(True, description="reuse KV of equal prompt beginnings")
    stream_interval_ms: Annotated[int, Field(ge=0, le=1000)] = Field(
        10,
        description="least time between two responses of a stream: tokens that an engine makes "
        "faster go together, with many streams at longer intervals. First and last go at once. "
        "0: each token by itself. Text generation only",
    )
    max_image_pixels: Positive = Field(
        50_000_000,
        description="image tasks: pixels of an image at most, and of all that are decoded at a "
        "time; a WebP takes up to 16 bytes for each, others 9",
    )
    inline_detokenizer: bool = Field(
        False,
        description="the engine makes the text itself: two steps instead of three, 20 to 35 % "
        "less CPU per token. The price: Triton 2.51 does not tell it when a client leaves, "
        "so that stream runs to its max_tokens",
    )
    fused: bool = Field(
        False,
        description="the engine does the work of all steps and is the public model: no ensemble, "
        "one process, the same tensors; it hears when a client leaves. For CPUs with few "
        "cores: prompts are encoded between the engine's steps",
    )
    cache: bool = Field(
        False,
        description="answer a request that came before, byte for byte, from Triton's response "
        "cache, of server.cache_size. Not for models that stream: docs/how-to/cache-answers.md",
    )
    unary: bool = Field(
        False,
        description="also serve `<model>_unary`, which answers once: for ModelInfer, HTTP infer "
        "and clients that cannot stream. It asks the model itself, and has no engine of its own",
    )
    pools: dict[str, Pool] = Field(
        {},
        description="servers of the frontend by the length of requests, by any name; one pool "
        "when absent",
    )
    backend: Literal["python", "onnxruntime", "tensorrt", "tensorrtllm"] | None = Field(
        None,
        description="of the engine step; what fits the builder when absent. onnxruntime, tensorrt: "
        "Triton's own, for engines of that kind. tensorrtllm: NVIDIA's C++ backend (Triton images "
        "up to 26.07) for compiled engines; token ids in and out, without text and an ensemble",
    )
    runtime: dict[str, Any] = Field(
        {},
        description="settings of the engine's runtime, under its own names, over what the builder "
        "recorded. tensorrt_llm: kv_cache_config, guided_decoding_backend, "
        "gather_generation_logits; with backend tensorrtllm the parameters of that backend",
    )
    config: dict[str, dict[str, Any]] = Field(
        {},
        description="raw ModelConfig fields by step (tokenizer, engine, detokenizer, ensemble, "
        "unary), merged last and validated by Triton's protobuf schema",
    )

    @property
    def most_parallel_runs(self) -> int:
        """Runs at a time of an instance with cores enough."""
        threads = self.session.intra_op_num_threads
        return 1 if threads and "parallel_runs" not in self.model_fields_set else self.parallel_runs


class Evaluation(Strict):
    """The test of a new engine before it may be served."""

    prompts: Path = Field(
        description="JSON lines with text_input and, optionally, the right text_output; of "
        "embedding and rerank: query and the text that answers it; of classification: text_input "
        "and label",
        strict=False,
    )
    max_prompts: Positive | None = Field(200, description="null: all of them")
    max_tokens: Positive = Field(64, description="longest answer")
    min_exact_match: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="share of prompts answered exactly as the checkpoint does; below: fail"
    )
    min_score: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description="recall of embedding and rerank, accuracy of classification; below: fail",
    )
    recall_at: Positive | None = Field(
        None, description="embedding and rerank: the right text is among the first so many; 10, 1"
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
    engine: Engine = Field(description="what the checkpoint is converted to")
    serving: Serving = Field(Serving(), description="how Triton serves it")
    evaluation: Evaluation | None = Field(
        None, description="the test of a new engine; not tested when absent"
    )
    slo: Slo = Field(Slo(), description="what load tests, the tuner and alerts hold it to")


class ComposedServing(Strict):
    """How Triton serves an ensemble without an engine of its own."""

    dynamic_batching: DynamicBatching = Field(
        DynamicBatching(), description="how requests gather to batches, in its steps"
    )
    config: dict[str, dict[str, Any]] = Field(
        {},
        description="raw ModelConfig fields by step (ensemble: its own), merged last and validated "
        "by Triton's protobuf schema",
    )


class Composed(Strict):
    """A public model without an engine of its own: steps in Python, and models of the project."""

    task: str | None = Field(
        None, description="a file of ensembles/; of the ensemble's own name when absent"
    )
    serving: ComposedServing = Field(ComposedServing(), description="how Triton serves it")


class Project(Strict):
    """A whole `tritonctl.yaml`, with a profile already merged in."""

    schema_: Literal["tritonctl/v1"] = Field(
        alias="schema", description="the version of this format; always `tritonctl/v1`"
    )
    model_repository: Path = Field(
        Path("model_repository"), description="the folder that `render` writes", strict=False
    )
    engines: Path | None = Field(
        None,
        description="a folder of engines that several projects share: what one has built, another "
        "takes, verified, instead of building it",
        strict=False,
    )
    models: dict[ModelName, Model] = Field(
        description="what is built and served, by public name", min_length=1
    )
    ensembles: dict[ModelName, Composed] = Field(
        {}, description="public models made of others and of Python steps, without an engine"
    )
    server: Server = Field(Server(), description="the Triton process and its ports")
    docker: Docker = Field(Docker(), description="images, memory, replicas")
    gateway: Gateway | None = Field(None, description="Envoy in front of the server's replicas")
    frontend: Frontend | None = Field(None, description="the OpenAI API over the public models")
    rollout: Rollout = Field(
        Rollout(), description="how users move from the stable release to a candidate"
    )
    loadtests: dict[ModelName, Scenario] = Field(
        {}, description="scenarios of `tritonctl loadtest run`, by name"
    )
    profiles: dict[str, dict[str, Any]] = Field(
        {}, description="the same deployment on other hardware: merged over the rest"
    )
    _root: Path = PrivateAttr(default=Path())
    _chosen: frozenset[str] | None = PrivateAttr(default=None)
    _typed: frozenset[tuple[str | int, ...]] = PrivateAttr(default=frozenset())

    @classmethod
    def at(cls, root: Path, data: Any) -> Self:
        """Validate `data`; relative paths in it start at `root`. Raises ValidationError."""
        project = cls.model_validate(data)
        project._root = root.resolve()
        return project

    def only(self, names: Iterable[str]) -> Self:
        """The project as far as these models go; of the others it knows nothing."""
        chosen = frozenset(names)
        parts: dict[str, Mapping[str, Any]] = {"models": self.models, "ensembles": self.ensembles}
        kept = {
            section: {name: one for name, one in entries.items() if name in chosen}
            for section, entries in parts.items()
        }
        part = self.model_copy(update=kept)
        part._chosen = chosen
        return part

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        if both := sorted({*self.models} & {*self.ensembles}):
            raise ValueError(f"`{both[0]}` is the name of a model and of an ensemble")
        return self

    @model_validator(mode="after")
    def _frontend_s_own_port(self) -> Self:
        taken = {port: f"server.{name}" for name, port in self.server.wanted_ports.items()}
        if self.frontend is not None and self.frontend.port and self.frontend.port in taken:
            raise ValueError(
                f"frontend.port is {self.frontend.port}, and so is {taken[self.frontend.port]}: "
                "choose another one, or 0 for a free one"
            )
        return self

    @model_validator(mode="after")
    def _aliases_of_models(self) -> Self:
        if self.frontend is not None:
            self.frontend.refuse_unknown_models({*self.models, *self.ensembles})
        for name, model in self.models.items():
            (self.frontend or Frontend()).refuse_unknown_upstreams(name, model.serving.pools)
        return self

    def typed(self, *location: str | int) -> bool:
        """Whether a field is as the command line or the environment set it."""
        return any(location[: len(place)] == place for place in self._typed)

    @property
    def chosen(self) -> frozenset[str] | None:
        """The models that are meant, also by hand; None: all of them."""
        return self._chosen

    @property
    def public(self) -> list[str]:
        """The public names of all that it serves, sorted."""
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
        """A path of the project file, absolute. Raises ConfigurationError for an invalid one."""
        try:
            path = (self.root / relative.expanduser()).resolve()
            path.exists()  # fails for invalid paths, such as a name that is too long
        except (OSError, ValueError, RuntimeError) as error:  # Python's: a loop of links, `~nobody`
            if isinstance(error, PermissionError):  # its reader reports it
                return path
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigurationError(
                f"the path {relative!s:.200} cannot be used: {reason}",
                remedy=f"correct it in the project file of {self.root}",
            ) from error
        return path
