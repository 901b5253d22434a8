# SPDX-License-Identifier: Apache-2.0
"""TC62x: threads of all instances compared with the cores.

Sources: those of tritonctl.checks.analysis.threads, and
https://github.com/triton-inference-server/python_backend#multiple-model-instance-support.
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis.placement import count_span, instance_count, join_some
from tritonctl.checks.analysis.threads import ThreadPools, cpu_threads, parameter_text, parse_count
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, warning

# All models are seldom busy at once: twice the cores may be intended.
_MAX_THREADS_PER_CORE = 2
_PROCESSES_PER_CORE = 4
_PYTORCH_COUNTS = ("INTRA_OP_THREAD_COUNT", "INTER_OP_THREAD_COUNT")
_INTER_OP = "inter_op_thread_count"


@warning(
    "TC620 threads-over-cores",
    summary="a model configured to compute with more threads than the target has cores",
    reason="Threads that wait for a core delay the others at the end of each operator: fewer "
    "threads are faster.",
    shows="elsewhere",
)
def threads_over_cores(model: Model, repository: Repository) -> Iterator[Hit]:
    cores = repository.target.cores
    threads = cpu_threads(model, repository.target) if cores else None
    if not cores or threads is None or threads.each is None or threads.total(cores) <= cores:
        return
    yield Hit(
        f"{_thread_count_text(threads, cores)} on {cores} cores",
        f"set {_fair_share_text(cores, threads.pools)}, or fewer instances",
        threads.span,
        threads.source,
    )


def _thread_count_text(threads: ThreadPools, cores: int) -> str:
    threads_per_pool = cores if threads.each is None else threads.each
    if threads.pools == 1:
        return f"{threads_per_pool} threads"
    total = threads.total(cores)
    return f"{threads.pools} instances with {threads_per_pool} threads each are {total} threads"


def _fair_share_text(cores: int, pools: int) -> str:
    return f"{max(cores // pools, 1)} threads each"


@advice(
    "TC621 all-cores-each",
    summary="several instances on the CPU, each with a thread per core",
    reason="That is the default of ONNX Runtime and PyTorch. For onnxruntime, Triton creates two "
    "instances on the CPU unless `count` is set.",
    shows="elsewhere",
)
def all_cores_each(model: Model, repository: Repository) -> Iterator[Hit]:
    cores = repository.target.cores or 0
    threads = cpu_threads(model, repository.target) if cores > 1 else None
    if threads is None or threads.each is not None or threads.pools == 1:
        return
    setting = (
        'parameters { key: "intra_op_thread_count" value { string_value: "N" } }'
        if model.backend == "onnxruntime"
        else "torch.set_num_threads(N) in initialize"
    )
    yield Hit(
        f"{_thread_count_text(threads, cores)} on {cores} cores: each has a thread per core",
        f"set {_fair_share_text(cores, threads.pools)}: {setting}",
        threads.span or count_span(model, repository.target),
        threads.source,
    )


@advice(
    "TC622 models-over-cores",
    summary="models that together compute with over twice as many threads as there are cores",
    reason="When all are busy, each slows down the others. A test of a single model does not show "
    "it.",
    shows="elsewhere",
)
def models_over_cores(repository: Repository) -> Iterator[Hit]:
    cores = repository.target.cores
    if not cores:
        return
    shares: dict[str, ThreadPools] = {}
    for name, model in repository.models.items():
        threads = cpu_threads(model, repository.target)
        # TC620 reports a single model with too many threads.
        if threads is not None and threads.total(cores) <= cores:
            shares[name] = threads
    total = sum(threads.total(cores) for threads in shares.values())
    if total <= _MAX_THREADS_PER_CORE * cores:
        return
    first = max(sorted(shares), key=lambda name: shares[name].total(cores))
    listed = join_some(f"{name} {shares[name].total(cores)}" for name in sorted(shares))
    model, threads = repository.models[first], shares[first]
    yield Hit(
        f"the models together compute with {total} threads on {cores} cores: {listed}",
        "give each fewer threads, or serve them on several machines",
        threads.span or count_span(model, repository.target),
        threads.source,
        model=model,
    )


@advice(
    "TC623 many-processes",
    summary="over four instances of a Python model per core",
    reason="Each instance is a process with its own imports. Once all cores are busy, more "
    "instances only cost memory and start-up time.",
    shows="load",
)
def many_processes(_config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    cores = repository.target.cores
    if not cores or model.backend != "python":
        return
    count = instance_count(model, repository.target) or 0
    if count > _PROCESSES_PER_CORE * cores:
        yield Hit(
            f"{count} instances are {count} processes with an interpreter each, on {cores} cores",
            "handle requests concurrently in one instance: batches, or `async def execute`",
            count_span(model, repository.target),
        )


@warning(
    "TC624 pytorch-counts-differ",
    summary="thread counts of PyTorch that differ between models",
    reason="The setting holds for the process: the model that is loaded first decides for all.",
    shows="elsewhere",
)
def pytorch_counts_differ(repository: Repository) -> Iterator[Hit]:
    torch = [m for _, m in sorted(repository.models.items()) if m.backend == "pytorch"]
    for key in _PYTORCH_COUNTS:
        counts = [(m, count) for m in torch if (count := parse_count(parameter_text(m, key)))]
        for model, count in counts[1:]:
            first, first_count = counts[0]
            if count != first_count:
                yield Hit(
                    f"{key} is {count} here and {first_count} in {first.name}: the model that is "
                    "loaded first decides for all",
                    "write the same number in all of PyTorch's models",
                    model.config.span("parameters", key),
                    model=model,
                )


@warning(
    "TC625 inter-op-ignored",
    summary="inter_op_thread_count in ONNX Runtime's sequential mode",
    reason="ONNX Runtime ignores it unless execution_mode is 1.",
    shows="elsewhere",
)
def inter_op_ignored(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if model.backend != "onnxruntime":
        return
    count = parse_count(parameter_text(model, _INTER_OP))
    if count is not None and count > 1 and parameter_text(model, "execution_mode") in (None, "0"):
        yield Hit(
            f"{_INTER_OP} is ignored: operators run one after the other",
            'set parameters { key: "execution_mode" value { string_value: "1" } }, or remove it',
            config.span("parameters", _INTER_OP),
        )
