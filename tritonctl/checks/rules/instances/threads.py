# SPDX-License-Identifier: Apache-2.0
"""TC62x: whether all instances together have cores to run on.

Sources: those of tritonctl.checks.analysis.threads, and
https://github.com/triton-inference-server/python_backend#multiple-model-instance-support.
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis.placement import count_span, instances, some
from tritonctl.checks.analysis.threads import Threads, cpu_threads, parameter, whole
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, warning

# All models are seldom busy at once: twice the cores may be meant.
_TOGETHER = 2
_PROCESSES_PER_CORE = 4
_PYTORCH_COUNTS = ("INTRA_OP_THREAD_COUNT", "INTER_OP_THREAD_COUNT")
_INTER_OP = "inter_op_thread_count"


@warning(
    "TC620 threads-over-cores",
    summary="a model configured to compute with more threads than the target has cores",
    why="Threads that wait for a core hold up the others at the end of each operator: it is "
    "slower than with fewer.",
)
def threads_over_cores(model: Model, repository: Repository) -> Iterator[Hit]:
    cores = repository.target.cores
    threads = cpu_threads(model, repository.target) if cores else None
    if not cores or threads is None or threads.each is None or threads.total(cores) <= cores:
        return
    yield Hit(
        f"{_product(threads, cores)} on {cores} cores",
        f"set {_fair(cores, threads.pools)}, or fewer instances",
        threads.span,
        threads.source,
    )


def _product(threads: Threads, cores: int) -> str:
    each = cores if threads.each is None else threads.each
    if threads.pools == 1:
        return f"{each} threads"
    return f"{threads.pools} instances with {each} threads each are {threads.total(cores)} threads"


def _fair(cores: int, pools: int) -> str:
    return f"{max(cores // pools, 1)} threads each"


@advice(
    "TC621 all-cores-each",
    summary="several instances on the CPU, each with a thread per core",
    why="That is the default of ONNX Runtime and PyTorch. Of onnxruntime Triton makes two "
    "instances on the CPU unless `count` is given.",
)
def all_cores_each(model: Model, repository: Repository) -> Iterator[Hit]:
    cores = repository.target.cores or 0
    threads = cpu_threads(model, repository.target) if cores > 1 else None
    if threads is None or threads.each is not None or threads.pools == 1:
        return
    how = (
        'parameters { key: "intra_op_thread_count" value { string_value: "N" } }'
        if model.backend == "onnxruntime"
        else "torch.set_num_threads(N) in initialize"
    )
    yield Hit(
        f"{_product(threads, cores)} on {cores} cores: each takes a thread per core",
        f"set {_fair(cores, threads.pools)}: {how}",
        threads.span or count_span(model, repository.target),
        threads.source,
    )


@advice(
    "TC622 models-over-cores",
    summary="models that together compute with over twice as many threads as there are cores",
    why="When all are busy each slows the others down, which no test of one model shows.",
)
def models_over_cores(repository: Repository) -> Iterator[Hit]:
    cores = repository.target.cores
    if not cores:
        return
    shares: dict[str, Threads] = {}
    for name, model in repository.models.items():
        threads = cpu_threads(model, repository.target)
        # TC620 reports a model that has too many alone.
        if threads is not None and threads.total(cores) <= cores:
            shares[name] = threads
    total = sum(threads.total(cores) for threads in shares.values())
    if total <= _TOGETHER * cores:
        return
    first = max(sorted(shares), key=lambda name: shares[name].total(cores))
    listed = some(f"{name} {shares[name].total(cores)}" for name in sorted(shares))
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
    why="Each instance is a process that imports everything again: memory and start-up time "
    "for nothing once all cores are busy.",
    shows="load",
)
def many_processes(_config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    cores = repository.target.cores
    if not cores or model.backend != "python":
        return
    count = instances(model, repository.target) or 0
    if count > _PROCESSES_PER_CORE * cores:
        yield Hit(
            f"{count} instances are {count} processes with an interpreter each, on {cores} cores",
            "handle requests side by side in one instance: batches, or `async def execute`",
            count_span(model, repository.target),
        )


@warning(
    "TC624 pytorch-counts-differ",
    summary="thread counts of PyTorch that differ between models",
    why="The setting is the process's: whichever model is loaded first decides for all.",
)
def pytorch_counts_differ(repository: Repository) -> Iterator[Hit]:
    torch = [m for _, m in sorted(repository.models.items()) if m.backend == "pytorch"]
    for key in _PYTORCH_COUNTS:
        given = [(m, count) for m in torch if (count := whole(parameter(m, key)))]
        for model, count in given[1:]:
            first, decides = given[0]
            if count != decides:
                yield Hit(
                    f"{key} is {count} here and {decides} in {first.name}: the model that is "
                    "loaded first decides for all",
                    "write the same number in all of PyTorch's models",
                    model.config.span("parameters", key),
                    model=model,
                )


@warning(
    "TC625 inter-op-ignored",
    summary="inter_op_thread_count in ONNX Runtime's sequential mode",
    why="ONNX Runtime ignores it unless execution_mode is 1.",
)
def inter_op_ignored(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if model.backend != "onnxruntime":
        return
    count = whole(parameter(model, _INTER_OP))
    if count is not None and count > 1 and parameter(model, "execution_mode") in (None, "0"):
        yield Hit(
            f"{_INTER_OP} is ignored: operators run one after the other",
            'set parameters { key: "execution_mode" value { string_value: "1" } }, or remove it',
            config.span("parameters", _INTER_OP),
        )
