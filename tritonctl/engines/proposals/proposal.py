# SPDX-License-Identifier: Apache-2.0
"""A project for a checkpoint: task, builder, precision, limits, load test, and why."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.engines.build.catalog import builder_named
from tritonctl.engines.planning.plans import plan_models
from tritonctl.engines.planning.records import ModelPlan
from tritonctl.engines.proposals.graphs import (
    about_plan,
    add_shapes,
    graph_engine,
    image_sizes,
    open_sizes,
)
from tritonctl.engines.proposals.installed import gpu_here
from tritonctl.engines.proposals.limits import Room, fitted
from tritonctl.engines.proposals.load import (
    PROMPTS,
    TEXT_TASKS,
    Load,
    image_load,
    task_load,
    tensor_load,
    text_load,
)
from tritonctl.engines.proposals.precisions import why_of
from tritonctl.engines.proposals.recognition import Recognised
from tritonctl.errors import ConfigurationError, UsageError, choices
from tritonctl.host.resources import host_memory
from tritonctl.host.units import human_bytes
from tritonctl.project.compatibility.rules import check, resolve_target
from tritonctl.project.compatibility.table import Gpu, gpu_named, table
from tritonctl.project.file import deep_merge
from tritonctl.project.schema import SCHEMA, Project
from tritonctl.project.tasks import asked_task

CPU = "cpu"
# The GPU of the profile beside a project for CPUs, where this machine has none.
_PROFILE_GPU = "H100"
_CPU_BATCH, _CPU_LENGTH = 16, 2048
_GPU_BATCH, _GPU_LENGTH = 64, 8192
_GRAPH_BATCH, _GRAPH_LENGTH, _GRAPH_TOKENS = 32, 512, 128
_GPUS_TOGETHER = (1, 2, 4, 8)
_GPU_PRECISIONS = ("fp8", "bf16", "fp16")
_CALIBRATED = ("fp8", "int8_sq", "int4_awq", "w4a8_awq", "nvfp4")


@dataclass(frozen=True)
class Wishes:
    """What the user asked for. target: cpu or a GPU's name.

    checkpoint: as it was typed; reference: as the project file is to say it, the same when empty.
    """

    name: str
    checkpoint: str
    target: str = CPU
    precision: str | None = None
    revision: str | None = None
    reference: str = ""


@dataclass
class Proposal:
    """The project file's data, the file of the load test's requests, and why it is so."""

    model: dict[str, Any]
    load: Load
    server: dict[str, Any]
    profiles: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def data(self, name: str) -> dict[str, Any]:
        """The whole project file."""
        whole: dict[str, Any] = {"schema": SCHEMA, "models": {name: self.model}}
        if self.load.scenario is not None:
            whole["loadtests"] = {name: self.load.scenario}
        whole["server"] = self.server
        return whole | ({"profiles": self.profiles} if self.profiles else {})


def chosen_gpu(target: str) -> Gpu | None:
    """The GPU that `--target` names; None for `cpu`. Raises UsageError."""
    if target.lower() == CPU:
        return None
    compatibility = table()
    try:
        return gpu_named(target, compatibility)
    except ConfigurationError as error:
        known = [CPU, *(gpu.name for gpu in compatibility.gpus)]
        raise UsageError(
            f"unknown target `{target}`", remedy=choices(target, known, "expected one of")
        ) from error


def propose(found: Recognised, wishes: Wishes, root: Path) -> Proposal:
    """A project in `root` for what was found. Raises ConfigurationError where nothing fits."""
    gpu = chosen_gpu(wishes.target)
    model, plan, reasons = _model(found, wishes, gpu, root)
    length = model["engine"].get("max_seq_len")
    if found.kind == "decoder":
        load = text_load(wishes.name, plan.weights, on_gpu=gpu is not None)
    elif found.kind == "vision":
        load = image_load(wishes.name, plan.weights)
    elif found.task in TEXT_TASKS:
        load = task_load(wishes.name, plan.weights, found.task)
    else:
        load = tensor_load(wishes.name, plan.weights, found, length)
    public = {"task": model["task"], "checkpoint": wishes.reference or wishes.checkpoint}
    if wishes.revision:
        public["revision"] = wishes.revision
    proposal = Proposal(
        model=public | {k: v for k, v in model.items() if k not in public} | {"slo": load.slo},
        load=load,
        server={"mode": "docker" if gpu else "embedded"},
        reasons=[*found.reasons, *reasons],
    )
    if gpu is None:
        _add_profile(proposal, found, wishes, root)
    proposal.reasons.append(_about(load))
    return proposal


def verify(proposal: Proposal, wishes: Wishes, found: Recognised, root: Path) -> None:
    """What `tritonctl plan` says of it, and of its profiles. Raises what it refuses.

    The builder's own rules are asked; the file of requests lies in `root` already.
    """
    model = proposal.model | {"checkpoint": str(found.path.resolve())}
    model.pop("revision", None)
    for profile in ({}, *proposal.profiles.values()):
        models = {"models": {wishes.name: model}}
        merged = deep_merge({"schema": SCHEMA} | models, profile)
        planned = plan_models(Project.at(root, merged), [wishes.name])
        failure = planned.failure or next(iter(planned.unknown.values()), None)
        if failure is not None:
            raise failure


def _model(
    found: Recognised, wishes: Wishes, gpu: Gpu | None, root: Path
) -> tuple[dict[str, Any], ModelPlan, list[str]]:
    """The model without load test and SLO. Raises ConfigurationError, UsageError."""
    if found.kind == "decoder":
        precisions = [wishes.precision] if wishes.precision else ["int8", "int4"]
        on_cpu = [{"engine": {"builder": "openvino", "precision": one}} for one in precisions]
        tried = _gpu_decoders(found, wishes, gpu) if gpu else on_cpu
        wanted = (_GPU_BATCH, _GPU_LENGTH) if gpu else (_CPU_BATCH, _CPU_LENGTH)
    else:
        tried = [graph_engine(found, wishes.precision, gpu)]
        wanted = (_GRAPH_BATCH, _GRAPH_LENGTH)
    length = _length(found, wanted[1])
    base = {
        "task": found.task,
        "checkpoint": str(found.path.resolve()),
    }
    room = Room(gpu.name if gpu else None, root)
    plan: ModelPlan | None = None
    for candidate in tried:
        model = base | candidate
        _refuse_foreign_precision(model, wishes)
        add_shapes(model, found, wanted[0], length)
        limits, plan = fitted(room, model, wanted[0], length)
        if plan.fits[0].fits:
            model = deep_merge(model, {"engine": limits})
            add_shapes(model, found, limits["max_batch_size"], length)
            return model, plan, _reasons(model, plan, gpu, asked=wishes.precision)
        if plan.fits[0].refused:
            raise UsageError(
                f"{found.what} cannot run on {wishes.target}: {plan.fits[0].refused}",
                remedy="choose another --target or --precision",
            )
    raise _too_large(found, wishes, plan)


def _length(found: Recognised, most: int) -> int | None:
    """Tokens; None for a graph whose requests have one size, or an image's."""
    if found.kind == "vision":
        return None
    if found.kind == "graph":
        return min(most, _GRAPH_TOKENS) if open_sizes(found) - image_sizes(found).keys() else None
    return min(most, found.longest or most)


def _gpu_decoders(found: Recognised, wishes: Wishes, gpu: Gpu) -> Iterable[dict[str, Any]]:
    known = builder_named("tensorrt_llm").architectures
    if found.what not in known:
        raise ConfigurationError(
            f"builder tensorrt_llm, the one for {gpu.name}, does not export {found.what}",
            remedy=f"it exports {', '.join(known)}; on a CPU: `tritonctl init "
            f"{wishes.checkpoint} --target cpu`",
        )
    release = table().default_release
    precision = wishes.precision or _gpu_precision(gpu, release)
    for count in _GPUS_TOGETHER:
        if found.heads % count:
            continue
        engine: dict[str, Any] = {"builder": "tensorrt_llm", "precision": precision}
        if precision == "fp8":
            engine["kv_cache_dtype"] = "fp8"
        if count > 1:
            engine["tp_size"] = count
        engine["target"] = {"release": release, "gpu": gpu.name}
        if precision in _CALIBRATED:
            engine["calibration"] = {"data": PROMPTS}
        yield {"engine": engine}


def _gpu_precision(gpu: Gpu, release: str) -> str:
    """The first that the GPU runs. Raises UsageError for a GPU that runs none."""
    compatibility = table()
    problem: ConfigurationError | None = None
    for precision in _GPU_PRECISIONS:
        try:
            target = resolve_target(compatibility, release=release, gpu=gpu.name)
            check(target, precision, compatibility)
        except ConfigurationError as error:
            problem = problem or error
        else:
            return precision
    raise UsageError(f"--target {gpu.name}: {problem}", remedy="take a newer GPU, or --target cpu")


def _refuse_foreign_precision(model: dict[str, Any], wishes: Wishes) -> None:
    engine = model["engine"]
    known = builder_named(engine["builder"]).precisions_of(asked_task(model["task"]))
    if engine["precision"] not in known:
        raise UsageError(
            f"builder {engine['builder']}, the one for --target {wishes.target}, has no precision "
            f"`{engine['precision']}`",
            remedy=choices(engine["precision"], known, "expected one of"),
        )


def _reasons(
    model: dict[str, Any], plan: ModelPlan, gpu: Gpu | None, *, asked: str | None
) -> list[str]:
    engine, fit = model["engine"], plan.fits[0]
    where = f"{engine.get('tp_size', 1)} x {gpu.name}" if gpu else "this machine"
    length = f" x {engine['max_seq_len']} tokens" if "max_seq_len" in engine else ""
    why = "you asked for it" if asked else why_of(model)
    summary = builder_named(engine["builder"]).summary
    has = fit.device.memory if gpu else host_memory() or fit.device.memory
    limits = f"{engine['max_batch_size']} requests{length}"
    reasons = [
        f"builder {engine['builder']}: {summary}",
        *about_plan(model),
        f"precision {engine['precision']}: {why}",
        f"limits {limits}: {human_bytes(fit.needed)} of memory, {where} has {human_bytes(has)}",
    ]
    if gpu is None and (plan.build_memory or 0) > has:
        reasons.append(
            f"build: takes about {human_bytes(plan.build_memory or 0)} of memory, more than this "
            "machine has: run `tritonctl build` on a larger one"
        )
    if "calibration" in engine:
        reasons.append(
            f"calibration: {engine['calibration']['data']}, to try it; a few hundred of your own "
            "texts measure better"
        )
    return reasons


def _too_large(found: Recognised, wishes: Wishes, plan: ModelPlan | None) -> ConfigurationError:
    size = ""
    if plan is not None:
        fit = plan.fits[0]
        size = f": it needs {human_bytes(fit.needed)}, and may have {human_bytes(fit.usable)}"
    cpu = wishes.target.lower() == CPU
    return ConfigurationError(
        f"{found.what} does not fit {'this machine' if cpu else wishes.target} even for one "
        f"request{size}",
        remedy=f"take a smaller model, or a GPU: `tritonctl init {wishes.checkpoint} --target h100`"
        if cpu
        else "take a GPU with more memory or --precision with fewer bits; `tritonctl plan` has all",
    )


def _add_profile(proposal: Proposal, found: Recognised, wishes: Wishes, root: Path) -> None:
    """The same on a GPU, as far as it differs; a reason in its place where that is not possible."""
    here = gpu_here()
    gpu = here or gpu_named(_PROFILE_GPU, table())
    gpu_wishes = Wishes(wishes.name, wishes.checkpoint, gpu.name)
    profile = gpu.name.lower().replace(" ", "-")
    target = f"`--target {shlex.quote(gpu.name.lower())}`"
    try:
        model, _, _ = _model(found, gpu_wishes, gpu, root)
    except (ConfigurationError, UsageError) as error:
        proposal.reasons.append(f"no profile {profile}: {error.problem}")
        return
    if found.kind == "graph":
        # Options of another builder do not go together with those of this one.
        proposal.reasons.append(f"no profile {profile}: {target} makes a plan of it")
        return
    settings = {key: model[key] for key in ("engine", "serving") if key in model}
    changed = {
        section: {k: v for k, v in fields.items() if proposal.model.get(section, {}).get(k) != v}
        for section, fields in settings.items()
    }
    proposal.profiles[profile] = {
        "models": {wishes.name: changed},
        "server": {"mode": "docker"},
    }
    engine = model["engine"]
    same = f"; this machine has one, {target} proposes it alone" if here else ""
    proposal.reasons.append(
        f"profile {profile}: {engine['builder']} {engine['precision']}, for `--env {profile}`{same}"
    )


def _about(load: Load) -> str:
    if load.scenario is None:
        return "no load test: a request would be too large to write down, or of no type of Triton's"
    limits = ", ".join(f"{name} {value:g}" for name, value in load.slo.items())
    return (
        f"load test: {load.scenario['count']} requests, enough for P99, at "
        f"{load.scenario['arrivals']['rate']:g}/s: {_minutes(load.minutes)}; targets {limits}, "
        "a first guess"
    )


def _minutes(minutes: float) -> str:
    """`4 minutes`."""
    whole = max(1, round(minutes))
    return f"{whole} minute{'s' if whole > 1 else ''}"
