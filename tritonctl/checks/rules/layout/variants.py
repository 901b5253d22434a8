# SPDX-License-Identifier: Apache-2.0
"""TC03x: the configurations in configs/, of which --model-config-name chooses one.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#custom-model-configuration
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tritonctl.checks.config.message import HARMLESS, ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import VARIANTS, ConfigFile, Model, entries_of
from tritonctl.checks.rule import error, warning


@error(
    "TC030 unreadable-variant",
    summary="a configuration in configs/ that cannot be read",
    why="A server started with --model-config-name of that name refuses the model.",
    shows="elsewhere",
)
def unreadable_variant(model: Model) -> Iterator[Hit]:
    for name, file in model.variants.items():
        if file.unreadable:
            yield Hit(
                f"{VARIANTS}/{name}.pbtxt cannot be read: {file.unreadable}",
                "make it a readable text file; `ls -lL` shows what it is",
                place=f"{VARIANTS}/{name}.pbtxt",
            )
        elif file.broken:
            yield Hit(
                f"invalid text format: {file.broken.problem}",
                "correct it there: nothing after it was read",
                file.broken.span,
                source=file.source,
            )
        for problem in file.config.problems if file.config else ():
            if problem.mistake not in HARMLESS:
                yield Hit(problem.text, "correct or remove it", problem.span, source=file.source)


@warning(
    "TC031 unusable-variant",
    summary="a file in configs/ that cannot be chosen",
    why="Triton takes configs/NAME.pbtxt for --model-config-name=NAME, and falls back to "
    "config.pbtxt silently where that file is missing.",
)
def unusable_variant(model: Model) -> Iterator[Hit]:
    for name, _ in entries_of(model.path / VARIANTS) if VARIANTS in model.entries else ():
        if name.startswith("."):
            continue
        if not name.endswith(".pbtxt"):
            yield Hit(
                f"{VARIANTS}/{name} cannot be chosen: only NAME.pbtxt can",
                f"rename it to {Path(name).stem}.pbtxt, or move it away",
                place=f"{VARIANTS}/{name}",
            )
        elif " " in name:
            yield Hit(
                f"{VARIANTS}/{name} cannot be chosen: --model-config-name takes no spaces",
                f"call it {name.replace(' ', '-')}",
                place=f"{VARIANTS}/{name}",
            )


@error(
    "TC032 misnamed-variant",
    summary="a configuration in configs/ that has another name than the model's folder",
    why="A server started with --model-config-name of that name refuses the model.",
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
    summary="a configuration in configs/ with other tensors than config.pbtxt",
    why="Clients and ensembles that fit one server's configuration fail with another's.",
)
def other_interface(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for file in model.variants.values():
        if file.config is None:
            continue
        for direction in ("input", "output"):
            yield from _compared(direction, config, file, file.config)


def _compared(
    direction: str, usual: ConfigMessage, file: ConfigFile, variant: ConfigMessage
) -> Iterator[Hit]:
    own, usuals = _tensors(variant, direction), _tensors(usual, direction)
    if not own or not usuals:  # what is left out may be filled in
        return
    for name, (index, one) in own.items():
        differs = name not in usuals or usuals[name][1].data_type != one.data_type
        if differs:
            yield Hit(
                f"{direction} {name} is not in config.pbtxt"
                if name not in usuals
                else f"{direction} {name} has another data_type in config.pbtxt",
                "declare the same tensors in all configurations of a model",
                variant.span(direction, index, "name" if name not in usuals else "data_type"),
                source=file.source,
            )
    lacking = sorted(usuals.keys() - own.keys())
    if lacking:
        yield Hit(
            f"{direction} {', '.join(lacking)} of config.pbtxt is missing here",
            "declare the same tensors in all configurations of a model",
            variant.name_span(direction, 0),
            source=file.source,
        )


def _tensors(config: ConfigMessage, direction: str) -> dict[str, tuple[int, Any]]:
    return {one.name: (i, one) for i, one in enumerate(getattr(config.message, direction))}
