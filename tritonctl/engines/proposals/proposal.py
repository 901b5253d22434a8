# SPDX-License-Identifier: Apache-2.0
"""Proposes a project for a checkpoint: task, builder, precision, limits, load test, reasons."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.engines.builds.catalog import builder_named
from tritonctl.engines.planning.plans import plan_models
from tritonctl.engines.planning.records import ModelPlan
from tritonctl.engines.proposals.graphs import (
    add_shapes,
    compilation_notes,
    graph_engine,
    image_sizes,
    variable_dimensions,
)
from tritonctl.engines.proposals.installed_gpus import first_listed_gpu
from tritonctl.engines.proposals.limits import LimitTarget, fit_limits
from tritonctl.engines.proposals.load import (
    PROMPTS,
    TEXT_TASKS,
    ProposedLoad,
    image_load,
    task_load,
    tensor_load,
    text_load,
)
from tritonctl.engines.proposals.precisions import DECODER_PRECISIONS, precision_reason
from tritonctl.engines.proposals.recognition import RecognisedCheckpoint
from tritonctl.errors import ConfigurationError, UsageError, choices
from tritonctl.host.resources import host_memory
from tritonctl.host.units import human_bytes
from tritonctl.project.compatibility.rules import check_formats, resolve_target
from tritonctl.project.compatibility.table import GpuModel, gpu_named, table
from tritonctl.project.file import deep_merge
from tritonctl.project.schema import SCHEMA, Project
from tritonctl.project.tasks import task_for_builder

CPU = "cpu"
# GPU of the additional profile of a CPU project, if this machine has no GPU.
_PROFILE_GPU = "H100"
_CPU_BATCH, _CPU_LENGTH = 16, 2048
_GPU_BATCH, _GPU_LENGTH = 64, 8192
_GRAPH_BATCH, _GRAPH_LENGTH, _GRAPH_TOKENS = 32, 512, 128
_GPUS_TOGETHER = (1, 2, 4, 8)


@dataclass(frozen=True)
class InitOptions:
    """The options of `tritonctl init`."""

    name: str  # of the model
    checkpoint: str  # as typed
    target: str = CPU  # cpu or a GPU's name
    precision: str | None = None
    revision: str | None = None
    reference: str = ""  # the checkpoint in the project file; empty: as typed


@dataclass
class Proposal:
    """The project file's data, its load test and the reasons."""

    model: dict[str, Any]
    load: ProposedLoad
    server: dict[str, Any]
    profiles: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def data(self, name: str) -> dict[str, Any]:
        """Return the data of the whole project file."""
        project: dict[str, Any] = {"schema": SCHEMA, "models": {name: self.model}}
        if self.load.scenario is not None:
            project["loadtests"] = {name: self.load.scenario}
        project["server"] = self.server
        return project | ({"profiles": self.profiles} if self.profiles else {})


def chosen_gpu(target: str) -> GpuModel | None:
    """Return the GPU that `--target` names; None for `cpu`. Raises UsageError."""
    if target.lower() == CPU:
        return None
    compatibility = table()
    try:
        return gpu_named(target, compatibility)
    except ConfigurationError as error:
        targets = [CPU, *(gpu.name for gpu in compatibility.gpus)]
        raise UsageError(
            f"unknown target `{target}`", remedy=choices(target, targets, "expected one of")
        ) from error


def propose(checkpoint: RecognisedCheckpoint, options: InitOptions, root: Path) -> Proposal:
    """Propose a project in `root` for a checkpoint. Raises ConfigurationError if nothing fits."""
    gpu = chosen_gpu(options.target)
    model, plan, reasons = _model(checkpoint, options, gpu, root)
    length = model["engine"].get("max_seq_len")
    if checkpoint.kind == "decoder":
        load = text_load(options.name, plan.weights, on_gpu=gpu is not None)
    elif checkpoint.kind == "vision":
        load = image_load(options.name, plan.weights)
    elif checkpoint.task in TEXT_TASKS:
        load = task_load(options.name, plan.weights, checkpoint.task)
    else:
        load = tensor_load(options.name, plan.weights, checkpoint, length)
    public = {"task": model["task"], "checkpoint": options.reference or options.checkpoint}
    if options.revision:
        public["revision"] = options.revision
    proposal = Proposal(
        model=public | {k: v for k, v in model.items() if k not in public} | {"slo": load.slo},
        load=load,
        server={"mode": "docker" if gpu else "embedded"},
        reasons=[*checkpoint.reasons, *reasons],
    )
    if gpu is None:
        _add_profile(proposal, checkpoint, options, root)
    proposal.reasons.append(_load_reason(load))
    return proposal


def verify(
    proposal: Proposal, options: InitOptions, checkpoint: RecognisedCheckpoint, root: Path
) -> None:
    """Plan the project and its profiles, and raise the first error of a plan or builder.

    The request file must already exist in `root`.
    """
    model = proposal.model | {"checkpoint": str(checkpoint.path.resolve())}
    model.pop("revision", None)
    for profile in ({}, *proposal.profiles.values()):
        models = {"models": {options.name: model}}
        merged = deep_merge({"schema": SCHEMA} | models, profile)
        planned = plan_models(Project.at(root, merged), [options.name])
        failure = planned.failure or next(iter(planned.without_figures.values()), None)
        if failure is not None:
            raise failure


def _model(
    checkpoint: RecognisedCheckpoint, options: InitOptions, gpu: GpuModel | None, root: Path
) -> tuple[dict[str, Any], ModelPlan, list[str]]:
    """Return the model without load test and SLO. Raises ConfigurationError, UsageError."""
    if checkpoint.kind == "decoder":
        precisions = [options.precision] if options.precision else DECODER_PRECISIONS["openvino"]
        on_cpu = [
            {"engine": {"builder": "openvino", "precision": precision}} for precision in precisions
        ]
        candidates = _gpu_decoders(checkpoint, options, gpu) if gpu else on_cpu
        desired = (_GPU_BATCH, _GPU_LENGTH) if gpu else (_CPU_BATCH, _CPU_LENGTH)
    else:
        candidates = [graph_engine(checkpoint, options.precision, gpu)]
        desired = (_GRAPH_BATCH if checkpoint.batched else 0, _GRAPH_LENGTH)
    length = _length(checkpoint, desired[1])
    base = {
        "task": checkpoint.task,
        "checkpoint": str(checkpoint.path.resolve()),
    }
    target = LimitTarget(gpu.name if gpu else None, root)
    plan: ModelPlan | None = None
    for candidate in candidates:
        model = base | candidate
        _require_supported_precision(model, options)
        add_shapes(model, checkpoint, desired[0], length)
        limits, plan = fit_limits(target, model, desired[0], length)
        if plan.fits[0].fits:
            model = deep_merge(model, {"engine": limits})
            add_shapes(model, checkpoint, limits["max_batch_size"], length)
            return model, plan, _reasons(model, plan, gpu, requested_precision=options.precision)
        if plan.fits[0].refused:
            raise UsageError(
                f"{checkpoint.architecture} cannot run on {options.target}: {plan.fits[0].refused}",
                remedy="choose another --target or --precision",
            )
    raise _too_large(checkpoint, options, plan)


def _length(checkpoint: RecognisedCheckpoint, max_length: int) -> int | None:
    """Return the length in tokens; None for images and graphs of fixed sizes."""
    if checkpoint.kind == "vision":
        return None
    if checkpoint.kind == "graph":
        return (
            min(max_length, _GRAPH_TOKENS)
            if variable_dimensions(checkpoint) - image_sizes(checkpoint).keys()
            else None
        )
    return min(max_length, checkpoint.max_length or max_length)


def _gpu_decoders(
    checkpoint: RecognisedCheckpoint, options: InitOptions, gpu: GpuModel
) -> Iterable[dict[str, Any]]:
    builder = builder_named("tensorrt_llm")
    if checkpoint.architecture not in builder.architectures:
        raise ConfigurationError(
            f"builder tensorrt_llm, the one for {gpu.name}, does not export "
            f"{checkpoint.architecture}",
            remedy=f"it exports {', '.join(builder.architectures)}; on a CPU: `tritonctl init "
            f"{options.checkpoint} --target cpu`",
        )
    release = table().default_release
    precision = options.precision or _gpu_precision(gpu, release)
    for count in _GPUS_TOGETHER:
        if checkpoint.heads % count:
            continue
        engine: dict[str, Any] = {"builder": "tensorrt_llm", "precision": precision}
        if precision in builder.kv_cache_dtypes:
            engine["kv_cache_dtype"] = precision
        if count > 1:
            engine["tp_size"] = count
        engine["target"] = {"release": release, "gpu": gpu.name}
        if precision in builder.calibrated:
            engine["calibration"] = {"data": PROMPTS}
        yield {"engine": engine}


def _gpu_precision(gpu: GpuModel, release: str) -> str:
    """Return the first precision that the GPU supports. Raises UsageError without one."""
    compatibility = table()
    problem: ConfigurationError | None = None
    for precision in DECODER_PRECISIONS["tensorrt_llm"]:
        try:
            target = resolve_target(compatibility, release=release, gpu=gpu.name)
            check_formats(target, precision, compatibility)
        except ConfigurationError as error:
            problem = problem or error
        else:
            return precision
    raise UsageError(f"--target {gpu.name}: {problem}", remedy="use a newer GPU, or --target cpu")


def _require_supported_precision(model: dict[str, Any], options: InitOptions) -> None:
    engine = model["engine"]
    precisions = builder_named(engine["builder"]).precisions_for(task_for_builder(model["task"]))
    if engine["precision"] not in precisions:
        raise UsageError(
            f"builder {engine['builder']}, the one for --target {options.target}, has no precision "
            f"`{engine['precision']}`",
            remedy=choices(engine["precision"], precisions, "expected one of"),
        )


def _reasons(
    model: dict[str, Any], plan: ModelPlan, gpu: GpuModel | None, *, requested_precision: str | None
) -> list[str]:
    engine, fit = model["engine"], plan.fits[0]
    device = f"{engine.get('tp_size', 1)} x {gpu.name}" if gpu else "this machine"
    length = f" x {engine['max_seq_len']} tokens" if "max_seq_len" in engine else ""
    precision_note = "as requested" if requested_precision else precision_reason(model)
    summary = builder_named(engine["builder"]).summary
    memory = fit.device.memory if gpu else host_memory() or fit.device.memory
    limits = f"{engine['max_batch_size'] or 'single'} requests{length}"
    reasons = [
        f"builder {engine['builder']}: {summary}",
        *compilation_notes(model),
        f"precision {engine['precision']}: {precision_note}",
        f"limits {limits}: {human_bytes(fit.needed)} of memory, {device} has {human_bytes(memory)}",
    ]
    if gpu is None and (plan.build_memory or 0) > memory:
        reasons.append(
            f"build: needs about {human_bytes(plan.build_memory or 0)} of memory, more than this "
            "machine has: run `tritonctl build` on a larger one"
        )
    if "calibration" in engine:
        reasons.append(
            f"calibration: {engine['calibration']['data']} as a start; a few hundred of your own "
            "texts are better"
        )
    return reasons


def _too_large(
    checkpoint: RecognisedCheckpoint, options: InitOptions, plan: ModelPlan | None
) -> ConfigurationError:
    size = ""
    if plan is not None:
        fit = plan.fits[0]
        size = f": it needs {human_bytes(fit.needed)} of {human_bytes(fit.usable)} available"
    is_cpu = options.target.lower() == CPU
    return ConfigurationError(
        f"{checkpoint.architecture} does not fit {'this machine' if is_cpu else options.target} "
        "even for one "
        f"request{size}",
        remedy=f"use a smaller model, or a GPU: `tritonctl init {options.checkpoint} --target h100`"
        if is_cpu
        else "use a GPU with more memory or --precision with fewer bits; see `tritonctl plan`",
    )


def _add_profile(
    proposal: Proposal, checkpoint: RecognisedCheckpoint, options: InitOptions, root: Path
) -> None:
    """Add a profile with the GPU's differing settings, or a reason for its absence."""
    installed_gpu = first_listed_gpu()
    gpu = installed_gpu or gpu_named(_PROFILE_GPU, table())
    gpu_options = InitOptions(options.name, options.checkpoint, gpu.name)
    profile = gpu.name.lower().replace(" ", "-")
    target = f"`--target {shlex.quote(gpu.name.lower())}`"
    try:
        model, _, _ = _model(checkpoint, gpu_options, gpu, root)
    except (ConfigurationError, UsageError) as error:
        proposal.reasons.append(f"no profile {profile}: {error.problem}")
        return
    if checkpoint.kind == "graph":
        # A profile is merged over the project, and the options of two builders do not mix.
        proposal.reasons.append(f"no profile {profile}: {target} proposes a TensorRT plan")
        return
    settings = {key: model[key] for key in ("engine", "serving") if key in model}
    changed = {
        section: {k: v for k, v in fields.items() if proposal.model.get(section, {}).get(k) != v}
        for section, fields in settings.items()
    }
    proposal.profiles[profile] = {
        "models": {options.name: changed},
        "server": {"mode": "docker"},
    }
    engine = model["engine"]
    hint = f"; this machine has one, {target} proposes it alone" if installed_gpu else ""
    proposal.reasons.append(
        f"profile {profile}: {engine['builder']} {engine['precision']}, for `--env {profile}`{hint}"
    )


def _load_reason(load: ProposedLoad) -> str:
    if load.scenario is None:
        return "no load test: a request would be too large, or Triton lacks its type"
    limits = ", ".join(f"{name} {value:g}" for name, value in load.slo.items())
    return (
        f"load test: {load.scenario['count']} requests, enough for P99, at "
        f"{load.scenario['arrivals']['rate']:g}/s: {_minutes(load.minutes)}; targets {limits}, "
        "as a first guess"
    )


def _minutes(minutes: float) -> str:
    """Format a duration: `4 minutes`."""
    count = max(1, round(minutes))
    return f"{count} minute{'s' if count > 1 else ''}"
