# SPDX-License-Identifier: Apache-2.0
"""TC600 to TC607: whether the devices that instances ask for are there.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#instance-groups
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tritonctl.checks.analysis.placement import groups, written_groups, written_kind
from tritonctl.checks.examples.models import CONFIG, python_model
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository, Target
from tritonctl.checks.rule import Rule


def gpu_without_gpus(model: Model, repository: Repository) -> Iterator[Hit]:
    """KIND_GPU on a machine without GPUs."""
    if repository.target.gpus != () or model.config is None:
        return
    for index, group in written_groups(model):
        if written_kind(group) == "KIND_GPU":
            yield Hit(
                "the instances are to run on a GPU, and the target has none",
                "write kind: KIND_CPU or KIND_AUTO, or say which GPUs it has: --gpus 24G",
                model.config.span("instance_group", index, "kind"),
            )
            return


def absent_gpu(model: Model, repository: Repository) -> Iterator[Hit]:
    """KIND_GPU with the number of a GPU that the target lacks."""
    there = repository.target.gpus
    if not there or model.config is None:
        return
    for index, group in written_groups(model):
        for position, gpu in enumerate(group.gpus):
            if written_kind(group) == "KIND_GPU" and gpu not in range(len(there)):
                yield Hit(
                    f"there is no GPU {gpu}: the target has {_numbers(len(there))}",
                    "name one that it has; without `gpus` every GPU gets its instances",
                    model.config.span("instance_group", index, "gpus", position),
                )


def _numbers(count: int) -> str:
    return "GPU 0 alone" if count == 1 else f"0 to {count - 1}"


def auto_with_gpus(model: Model, repository: Repository) -> Iterator[Hit]:
    """KIND_AUTO that falls back to the CPU, where `gpus` is refused."""
    there = repository.target.gpus
    if there is None or model.config is None:
        return
    for index, group in written_groups(model):
        absent = [gpu for gpu in group.gpus if gpu not in range(len(there))]
        if absent and written_kind(group) == "KIND_AUTO":
            yield Hit(
                f"without a GPU {absent[0]} KIND_AUTO becomes KIND_CPU, which takes no `gpus`",
                "leave `gpus` out: the instances then go to every GPU there is, or to the CPU",
                model.config.span("instance_group", index, "gpus", group.gpus[:].index(absent[0])),
            )


def count_zero(model: Model, repository: Repository) -> Iterator[Hit]:
    """A count of 0, which does not switch anything off."""
    for group in groups(model, repository.target):
        path = (*group.path, "count")
        if model.config is None or group.index is None or path not in model.config.values:
            continue
        count = model.config.message.instance_group[group.index].count
        if count <= 0:
            made = "as many as without `count`" if group.count is None else str(group.count)
            yield Hit(
                f"count: {count} counts as absent: Triton makes {made}",
                "write the number that is meant; to switch a group off, remove it",
                model.config.span(*path),
            )


def gpu_twice(model: Model, _: Repository) -> Iterator[Hit]:
    """A GPU that a group lists twice."""
    for index, group in written_groups(model):
        for gpu, times in Counter(group.gpus).items():
            if times > 1 and model.config is not None:
                last = max(at for at, one in enumerate(group.gpus) if one == gpu)
                yield Hit(
                    f"GPU {gpu} is listed {times} times and gets as many times the instances",
                    "list it once; how many instances it gets is `count`",
                    model.config.span("instance_group", index, "gpus", last),
                )


def all_passive(model: Model, repository: Repository) -> Iterator[Hit]:
    """Nothing but passive instances."""
    made = groups(model, repository.target)
    if made and all(group.passive for group in made) and model.config is not None:
        yield Hit(
            "every instance is passive: none takes requests",
            "remove `passive: true` from at least one group",
            model.config.span(*made[0].path, "passive"),
        )


_GROUP = "instance_group [ {{ {} }} ]\n"


def _with(group: str) -> dict[str, Any]:
    return python_model(CONFIG + _GROUP.format(group))


_NONE = Target("2.51.0", gpus=())
_ONE = Target("2.51.0", gpus=(24 << 30,))

RULES = (
    Rule(
        id="TC600",
        name="gpu-without-gpus",
        severity="error",
        summary="instances on a GPU where there is none",
        why="Triton refuses the model.",
        check=gpu_without_gpus,
        bad=_with("kind: KIND_GPU"),
        good=_with("kind: KIND_CPU"),
        target=_NONE,
    ),
    Rule(
        id="TC601",
        name="absent-gpu",
        severity="error",
        summary="instances on a GPU that is not there",
        why="Triton refuses the model: numbers begin at 0, and GPUs below the least compute "
        "capability do not count.",
        check=absent_gpu,
        bad=_with("kind: KIND_GPU gpus: [ 1 ]"),
        good=_with("kind: KIND_GPU gpus: [ 0 ]"),
        shows="elsewhere",
        target=_ONE,
    ),
    Rule(
        id="TC602",
        name="auto-with-gpus",
        severity="error",
        summary="a GPU in `gpus` that the target lacks, of a group with KIND_AUTO",
        why="KIND_AUTO becomes KIND_CPU when a listed GPU is absent, keeps the list, and is then "
        "refused for it.",
        check=auto_with_gpus,
        bad=_with("kind: KIND_AUTO gpus: [ 0 ]"),
        good=_with("kind: KIND_AUTO"),
        target=_NONE,
    ),
    Rule(
        id="TC605",
        name="count-zero",
        severity="warning",
        summary="a count of 0 or less",
        why="It switches nothing off: Triton takes it for absent and makes one instance, of "
        "onnxruntime on the CPU two.",
        check=count_zero,
        bad=_with("kind: KIND_CPU count: 0"),
        good=_with("kind: KIND_CPU count: 1"),
    ),
    Rule(
        id="TC606",
        name="gpu-twice",
        severity="warning",
        summary="a GPU that a group lists twice",
        why="Triton makes the group's instances for every entry of the list: twice the memory.",
        check=gpu_twice,
        bad=_with("kind: KIND_GPU gpus: [ 0, 0 ]"),
        good=_with("kind: KIND_GPU gpus: [ 0 ]"),
        shows="elsewhere",
    ),
    Rule(
        id="TC607",
        name="all-passive",
        severity="error",
        summary="a model whose instances are all passive",
        why="Passive instances are loaded and take no requests: the first request ends "
        "tritonserver 2.51 itself.",
        check=all_passive,
        bad=_with("kind: KIND_CPU passive: true"),
        good=_with("kind: KIND_CPU passive: true }, { kind: KIND_CPU"),
        shows="traffic",
    ),
)
