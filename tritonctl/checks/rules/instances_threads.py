# SPDX-License-Identifier: Apache-2.0
"""TC62x: whether all instances together have cores to run on.

Sources: those of tritonctl.checks.analysis.threads, and
https://github.com/triton-inference-server/python_backend#multiple-model-instance-support.
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis.placement import count_span, instances, some
from tritonctl.checks.analysis.threads import Threads, cpu_threads, parameter, whole
from tritonctl.checks.examples.models import CONFIG, MODEL, python_model
from tritonctl.checks.examples.tensors import ONNX_CONFIG, onnx_model
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository, Target
from tritonctl.checks.rule import File, Rule

# All models are seldom busy at once: twice the cores may be meant.
_TOGETHER = 2
_PROCESSES_PER_CORE = 4
_PYTORCH_COUNTS = ("INTRA_OP_THREAD_COUNT", "INTER_OP_THREAD_COUNT")
_INTER_OP = "inter_op_thread_count"


def threads_over_cores(model: Model, repository: Repository) -> Iterator[Hit]:
    """A model that is told to compute with more threads than there are cores."""
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


def all_cores_each(model: Model, repository: Repository) -> Iterator[Hit]:
    """Several instances, each with a thread per core because nothing says otherwise."""
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


def models_over_cores(repository: Repository) -> Iterator[tuple[Model, Hit]]:
    """Models that are modest alone, and too much together."""
    cores = repository.target.cores
    if not cores:
        return
    shares: dict[str, Threads] = {}
    for name, model in repository.models.items():
        threads = cpu_threads(model, repository.target)
        # Those that are too many alone have been told of.
        if threads is not None and threads.total(cores) <= cores:
            shares[name] = threads
    total = sum(threads.total(cores) for threads in shares.values())
    if total <= _TOGETHER * cores:
        return
    first = max(sorted(shares), key=lambda name: shares[name].total(cores))
    listed = some(f"{name} {shares[name].total(cores)}" for name in sorted(shares))
    model, threads = repository.models[first], shares[first]
    yield (
        model,
        Hit(
            f"the models together compute with {total} threads on {cores} cores: {listed}",
            "give each fewer threads, or serve them on several machines",
            threads.span or count_span(model, repository.target),
            threads.source,
        ),
    )


def many_processes(model: Model, repository: Repository) -> Iterator[Hit]:
    """Far more instances of a Python model than cores."""
    cores = repository.target.cores
    if not cores or model.backend != "python" or model.config is None:
        return
    count = instances(model, repository.target) or 0
    if count > _PROCESSES_PER_CORE * cores:
        yield Hit(
            f"{count} instances are {count} processes with an interpreter each, on {cores} cores",
            "handle requests side by side in one instance: batches, or `async def execute`",
            count_span(model, repository.target),
        )


def pytorch_counts_differ(repository: Repository) -> Iterator[tuple[Model, Hit]]:
    """A thread count for PyTorch that another model sets otherwise."""
    torch = [m for _, m in sorted(repository.models.items()) if m.backend == "pytorch"]
    for key in _PYTORCH_COUNTS:
        given = [(m, count) for m in torch if (count := whole(parameter(m, key)))]
        for model, count in given[1:]:
            first, decides = given[0]
            if count != decides and model.config is not None:
                yield (
                    model,
                    Hit(
                        f"{key} is {count} here and {decides} in {first.name}: the model that is "
                        "loaded first decides for all",
                        "write the same number in all of PyTorch's models",
                        model.config.span("parameters", key),
                    ),
                )


def inter_op_ignored(model: Model, _: Repository) -> Iterator[Hit]:
    """Threads across operators in the mode that runs one operator after the other."""
    if model.backend != "onnxruntime" or model.config is None:
        return
    count = whole(parameter(model, _INTER_OP))
    if count is not None and count > 1 and parameter(model, "execution_mode") in (None, "0"):
        yield Hit(
            f"{_INTER_OP} is ignored: operators run one after the other",
            'set parameters { key: "execution_mode" value { string_value: "1" } }, or remove it',
            model.config.span("parameters", _INTER_OP),
        )


def _onnx(extra: str, name: str = "m") -> dict[str, str | File]:
    files = onnx_model(config=ONNX_CONFIG.replace('"m"', f'"{name}"') + extra)
    return {path.replace("m/", f"{name}/", 1): file for path, file in files.items()}


def _set(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def _libtorch(name: str, count: str) -> dict[str, str]:
    config = CONFIG.replace('"python"', '"pytorch"').replace('"m"', f'"{name}"')
    return {
        f"{name}/config.pbtxt": config + _set("INTRA_OP_THREAD_COUNT", count),
        f"{name}/1/model.pt": "",
    }


_TWICE = "instance_group [ { kind: KIND_CPU count: 2 } ]\n"
_ONCE = "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
_FOUR = _set("intra_op_thread_count", "4")
_EIGHT = _set("intra_op_thread_count", "8")
_COUNT = "instance_group [ {{ kind: KIND_CPU count: {} }} ]\n"
_EIGHT_CORES = Target("2.51.0", cores=8, gpus=())


def _torch(threads: str) -> dict[str, str]:
    code = MODEL.replace("\n\n\nclass", f"\nimport torch\n{threads}\n\nclass")
    return {"m/config.pbtxt": CONFIG + _TWICE, "m/1/model.py": code}


RULES = (
    Rule(
        id="TC620",
        name="threads-over-cores",
        severity="warning",
        summary="a model told to compute with more threads than there are cores",
        why="Threads that wait for a core hold up those that wait for them at the end of each "
        "operator: slower than with fewer.",
        check=threads_over_cores,
        bad=_onnx(_TWICE + _EIGHT),
        good=_onnx(_TWICE + _FOUR),
        shows="elsewhere",
        target=_EIGHT_CORES,
    ),
    Rule(
        id="TC621",
        name="all-cores-each",
        severity="advice",
        summary="several instances on the CPU, each with a thread per core",
        why="That is the default of ONNX Runtime and PyTorch. Of onnxruntime Triton makes two "
        "instances on the CPU unless `count` is given.",
        check=all_cores_each,
        bad=_torch(""),
        good=_torch("torch.set_num_threads(4)"),
        shows="elsewhere",
        target=_EIGHT_CORES,
    ),
    Rule(
        id="TC622",
        name="models-over-cores",
        severity="advice",
        summary="models that together compute with over twice as many threads as there are cores",
        why="When all are busy each slows the others down, which no test of one model shows.",
        check_all=models_over_cores,
        bad=_onnx(_ONCE + _EIGHT) | _onnx(_ONCE + _EIGHT, "n") | _onnx(_ONCE + _EIGHT, "o"),
        good=_onnx(_ONCE + _EIGHT) | _onnx(_ONCE + _EIGHT, "n"),
        shows="elsewhere",
        target=_EIGHT_CORES,
    ),
    Rule(
        id="TC623",
        name="many-processes",
        severity="advice",
        summary="over four instances of a Python model per core",
        why="Each instance is a process that imports everything again: memory and start-up time "
        "for nothing once all cores are busy.",
        check=many_processes,
        bad=python_model(CONFIG + _COUNT.format(5)),
        good=python_model(CONFIG + _COUNT.format(4)),
        target=Target("2.51.0", cores=1),
    ),
    Rule(
        id="TC624",
        name="pytorch-counts-differ",
        severity="warning",
        summary="thread counts of PyTorch that differ between models",
        why="The setting is the process's: whichever model is loaded first decides for all.",
        check_all=pytorch_counts_differ,
        bad=_libtorch("l", "2") | _libtorch("m", "4"),
        good=_libtorch("l", "4") | _libtorch("m", "4"),
        shows="elsewhere",
    ),
    Rule(
        id="TC625",
        name="inter-op-ignored",
        severity="warning",
        summary="inter_op_thread_count in ONNX Runtime's sequential mode",
        why="ONNX Runtime ignores it unless execution_mode is 1.",
        check=inter_op_ignored,
        bad=_onnx(_ONCE + _set("inter_op_thread_count", "4")),
        good=_onnx(_ONCE + _set("inter_op_thread_count", "4") + _set("execution_mode", "1")),
        shows="elsewhere",
    ),
)
