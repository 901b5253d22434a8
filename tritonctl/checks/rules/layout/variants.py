# SPDX-License-Identifier: Apache-2.0
"""TC03x: the configurations in configs/, from which --model-config-name selects.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#custom-model-configuration
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tritonctl.checks.config.message import HARMLESS, ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import VARIANTS, ConfigFile, Model, folder_entries
from tritonctl.checks.rule import error, warning


@error(
    "TC030 unreadable-variant",
    summary="a configuration in configs/ that cannot be read",
    reason="A server started with --model-config-name=NAME refuses the model.",
    shows="elsewhere",
)
def unreadable_variant(model: Model) -> Iterator[Hit]:
    for name, file in model.variants.items():
        if file.read_error:
            yield Hit(
                f"{VARIANTS}/{name}.pbtxt cannot be read: {file.read_error}",
                "make it a readable text file; `ls -lL` shows what it is",
                relative_path=f"{VARIANTS}/{name}.pbtxt",
            )
        elif file.parse_error:
            yield Hit(
                f"invalid text format: {file.parse_error.problem}",
                "correct it there: nothing after it was read",
                file.parse_error.span,
                source=file.source,
            )
        for problem in file.config.problems if file.config else ():
            if problem.mistake not in HARMLESS:
                yield Hit(problem.text, "correct or remove it", problem.span, source=file.source)


@warning(
    "TC031 unusable-variant",
    summary="a file in configs/ that cannot be selected",
    reason="Triton reads configs/NAME.pbtxt for --model-config-name=NAME, and silently falls back "
    "to config.pbtxt if that file is missing.",
)
def unusable_variant(model: Model) -> Iterator[Hit]:
    for name, _ in folder_entries(model.path / VARIANTS) if VARIANTS in model.entries else ():
        if name.startswith("."):
            continue
        if not name.endswith(".pbtxt"):
            yield Hit(
                f"{VARIANTS}/{name} cannot be selected: its name must be NAME.pbtxt",
                f"rename it to {Path(name).stem}.pbtxt, or move it away",
                relative_path=f"{VARIANTS}/{name}",
            )
        elif " " in name:
            yield Hit(
                f"{VARIANTS}/{name} cannot be selected: --model-config-name takes no spaces",
                f"call it {name.replace(' ', '-')}",
                relative_path=f"{VARIANTS}/{name}",
            )


@error(
    "TC032 misnamed-variant",
    summary="a configuration in configs/ whose name differs from the model's folder",
    reason="A server started with --model-config-name=NAME refuses the model.",
    shows="elsewhere",
)
def misnamed_variant(model: Model) -> Iterator[Hit]:
    for file in model.variants.values():
        if file.config and file.config.message.name not in ("", model.name):
            yield Hit(
                f"the folder is called {model.name}, the model {file.config.message.name}",
                "give both the same name, or leave `name` out",
                file.config.span("name"),
                source=file.source,
            )


@warning(
    "TC033 other-interface",
    summary="a configuration in configs/ whose tensors differ from config.pbtxt",
    reason="Clients and ensembles that work with one configuration fail with the other.",
)
def other_interface(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for file in model.variants.values():
        if file.config is None:
            continue
        for direction in ("input", "output"):
            yield from _interface_differences(direction, config, file, file.config)


def _interface_differences(
    direction: str, usual: ConfigMessage, file: ConfigFile, variant: ConfigMessage
) -> Iterator[Hit]:
    variant_tensors, usual_tensors = _tensors(variant, direction), _tensors(usual, direction)
    if not variant_tensors or not usual_tensors:  # Triton may complete a missing list
        return
    for name, (index, tensor) in variant_tensors.items():
        differs = name not in usual_tensors or usual_tensors[name][1].data_type != tensor.data_type
        if differs:
            yield Hit(
                f"{direction} {name} is not in config.pbtxt"
                if name not in usual_tensors
                else f"{direction} {name} has another data_type in config.pbtxt",
                "declare the same tensors in all configurations of a model",
                variant.span(
                    direction, index, "name" if name not in usual_tensors else "data_type"
                ),
                source=file.source,
            )
    missing = sorted(usual_tensors.keys() - variant_tensors.keys())
    if missing:
        yield Hit(
            f"{direction} {', '.join(missing)} of config.pbtxt is missing here",
            "declare the same tensors in all configurations of a model",
            variant.name_span(direction, 0),
            source=file.source,
        )


def _tensors(config: ConfigMessage, direction: str) -> dict[str, tuple[int, Any]]:
    return {tensor.name: (i, tensor) for i, tensor in enumerate(getattr(config.message, direction))}
