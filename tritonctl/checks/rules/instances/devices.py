# SPDX-License-Identifier: Apache-2.0
"""TC600 to TC607: devices of instances that do not exist.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#instance-groups
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tritonctl.checks.analysis.placement import configured_groups, configured_kind, groups
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error, warning


@error("TC600 gpu-without-gpus", summary="instances on a GPU on a machine without GPUs")
def gpu_without_gpus(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    if repository.target.gpus != ():
        return
    for index, group in configured_groups(model):
        if configured_kind(group) == "KIND_GPU":
            yield Hit(
                "the instances run on a GPU, and the target has no GPU",
                "write kind: KIND_CPU or KIND_AUTO, or say which GPUs it has: --gpu-memory 24G",
                config.span("instance_group", index, "kind"),
            )
            return


@error(
    "TC601 absent-gpu",
    summary="instances on a GPU that does not exist",
    reason="Triton refuses the model: numbers start at 0, and GPUs below the minimum compute "
    "capability do not count.",
    shows="elsewhere",
)
def absent_gpu(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    gpus = repository.target.gpus
    if not gpus:
        return
    for index, group in configured_groups(model):
        for position, gpu in enumerate(group.gpus):
            if configured_kind(group) == "KIND_GPU" and gpu not in range(len(gpus)):
                existing_gpus = "GPU 0" if len(gpus) == 1 else f"0 to {len(gpus) - 1}"
                yield Hit(
                    f"the target has no GPU {gpu}, only {existing_gpus}",
                    "name one that it has; without `gpus` every GPU gets its instances",
                    config.span("instance_group", index, "gpus", position),
                )


@error(
    "TC602 auto-with-gpus",
    summary="a GPU in `gpus` that the target does not have, in a group with KIND_AUTO",
    reason="KIND_AUTO becomes KIND_CPU if a listed GPU is missing. It keeps the list, and Triton "
    "refuses it for that.",
)
def auto_with_gpus(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    gpus = repository.target.gpus
    if gpus is None:
        return
    for index, group in configured_groups(model):
        missing_gpus = [gpu for gpu in group.gpus if gpu not in range(len(gpus))]
        if missing_gpus and configured_kind(group) == "KIND_AUTO":
            yield Hit(
                f"without a GPU {missing_gpus[0]} KIND_AUTO becomes KIND_CPU, which takes no "
                "`gpus`",
                "leave `gpus` out: the instances then go to every GPU, or to the CPU",
                config.span("instance_group", index, "gpus", group.gpus[:].index(missing_gpus[0])),
            )


@warning(
    "TC605 count-zero",
    summary="a count of 0 or less",
    reason="It does not switch the group off: Triton ignores it and creates one instance, or two "
    "for onnxruntime on the CPU.",
)
def count_zero(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    for group in groups(model, repository.target):
        path = (*group.path, "count")
        if group.index is None or path not in config.value_spans:
            continue
        count = config.message.instance_group[group.index].count
        if count <= 0:
            instance_text = (
                "as many as without `count`" if group.count is None else str(group.count)
            )
            yield Hit(
                f"Triton ignores count: {count} and creates {instance_text}",
                "write the intended number; to switch a group off, remove it",
                config.span(*path),
            )


@warning(
    "TC606 gpu-twice",
    summary="a GPU that a group lists twice",
    reason="Triton creates the group's instances for every entry of the list: twice the memory.",
    shows="elsewhere",
)
def gpu_twice(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for index, group in configured_groups(model):
        last_of = {gpu: position for position, gpu in enumerate(group.gpus)}
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
    reason="Passive instances are loaded and run no requests: the first request terminates "
    "tritonserver 2.51 itself.",
    shows="traffic",
)
def all_passive(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    model_groups = groups(model, repository.target)
    if model_groups and all(group.passive for group in model_groups):
        yield Hit(
            "every instance is passive, and none runs requests",
            "remove `passive: true` from at least one group",
            config.span(*model_groups[0].path, "passive"),
        )
