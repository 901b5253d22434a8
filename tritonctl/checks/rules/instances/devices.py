# SPDX-License-Identifier: Apache-2.0
"""TC600 to TC607: whether the devices that instances ask for are there.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#instance-groups
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tritonctl.checks.analysis.placement import groups, written_groups, written_kind
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error, warning


@error("TC600 gpu-without-gpus", summary="instances on a GPU on a machine without GPUs")
def gpu_without_gpus(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    if repository.target.gpus != ():
        return
    for index, group in written_groups(model):
        if written_kind(group) == "KIND_GPU":
            yield Hit(
                "the instances run on a GPU, and the target has no GPU",
                "write kind: KIND_CPU or KIND_AUTO, or say which GPUs it has: --gpus 24G",
                config.span("instance_group", index, "kind"),
            )
            return


@error(
    "TC601 absent-gpu",
    summary="instances on a GPU that does not exist",
    why="Triton refuses the model: numbers begin at 0, and GPUs below the least compute "
    "capability do not count.",
    shows="elsewhere",
)
def absent_gpu(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    gpus = repository.target.gpus
    if not gpus:
        return
    for index, group in written_groups(model):
        for position, gpu in enumerate(group.gpus):
            if written_kind(group) == "KIND_GPU" and gpu not in range(len(gpus)):
                known = "GPU 0" if len(gpus) == 1 else f"0 to {len(gpus) - 1}"
                yield Hit(
                    f"the target has no GPU {gpu}, only {known}",
                    "name one that it has; without `gpus` every GPU gets its instances",
                    config.span("instance_group", index, "gpus", position),
                )


@error(
    "TC602 auto-with-gpus",
    summary="a GPU in `gpus` that the target does not have, in a group with KIND_AUTO",
    why="KIND_AUTO becomes KIND_CPU when a listed GPU is absent, keeps the list, and is then "
    "refused for it.",
)
def auto_with_gpus(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    gpus = repository.target.gpus
    if gpus is None:
        return
    for index, group in written_groups(model):
        absent = [gpu for gpu in group.gpus if gpu not in range(len(gpus))]
        if absent and written_kind(group) == "KIND_AUTO":
            yield Hit(
                f"without a GPU {absent[0]} KIND_AUTO becomes KIND_CPU, which takes no `gpus`",
                "leave `gpus` out: the instances then go to every GPU, or to the CPU",
                config.span("instance_group", index, "gpus", group.gpus[:].index(absent[0])),
            )


@warning(
    "TC605 count-zero",
    summary="a count of 0 or less",
    why="It does not switch the group off: Triton ignores it and makes one instance, of "
    "onnxruntime on the CPU two.",
)
def count_zero(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    for group in groups(model, repository.target):
        path = (*group.path, "count")
        if group.index is None or path not in config.values:
            continue
        count = config.message.instance_group[group.index].count
        if count <= 0:
            made = "as many as without `count`" if group.count is None else str(group.count)
            yield Hit(
                f"Triton ignores count: {count} and makes {made}",
                "write the intended number; to switch a group off, remove it",
                config.span(*path),
            )


@warning(
    "TC606 gpu-twice",
    summary="a GPU that a group lists twice",
    why="Triton makes the group's instances for every entry of the list: twice the memory.",
    shows="elsewhere",
)
def gpu_twice(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for index, group in written_groups(model):
        last_of = {gpu: at for at, gpu in enumerate(group.gpus)}
        for gpu, times in Counter(group.gpus).items():
            if times > 1:
                yield Hit(
                    f"GPU {gpu} is listed {times} times and gets that many times the instances",
                    "list it once; `count` sets its number of instances",
                    config.span("instance_group", index, "gpus", last_of[gpu]),
                )


@error(
    "TC607 all-passive",
    summary="a model whose instances are all passive",
    why="Passive instances are loaded and take no requests: the first request ends "
    "tritonserver 2.51 itself.",
    shows="traffic",
)
def all_passive(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    made = groups(model, repository.target)
    if made and all(group.passive for group in made):
        yield Hit(
            "every instance is passive, and none takes requests",
            "remove `passive: true` from at least one group",
            config.span(*made[0].path, "passive"),
        )
