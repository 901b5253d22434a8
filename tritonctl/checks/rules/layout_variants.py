# SPDX-License-Identifier: Apache-2.0
"""TC03x: the configurations in configs/, of which --model-config-name chooses one.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#custom-model-configuration
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tritonctl.checks.config.message import HARMLESS, ConfigMessage
from tritonctl.checks.examples.models import CONFIG, python_model
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import VARIANTS, ConfigFile, Model, Repository
from tritonctl.checks.rule import Rule


def unreadable_variant(model: Model, _: Repository) -> Iterator[Hit]:
    """A variant that Triton could not read."""
    for name, file in model.variants.items():
        if file.unreadable:
            yield Hit(
                f"{VARIANTS}/{name}.pbtxt cannot be read: {file.unreadable}",
                "make it a readable text file; `ls -lL` shows what it is",
                place=f"{VARIANTS}/{name}.pbtxt",
            )
        elif file.broken:
            yield Hit(
                f"no valid text format: {file.broken.problem}",
                "correct it there: everything after it is unread",
                file.broken.span,
                source=file.source,
            )
        for problem in file.config.problems if file.config else ():
            if problem.mistake not in HARMLESS:
                yield Hit(problem.text, "correct or remove it", problem.span, source=file.source)


def unusable_variant(model: Model, _: Repository) -> Iterator[Hit]:
    """Something in configs/ that no --model-config-name chooses."""
    for name in _inside(model.path / VARIANTS) if VARIANTS in model.entries else ():
        if name.startswith("."):
            continue
        if not name.endswith(".pbtxt"):
            yield Hit(
                f"{VARIANTS}/{name} cannot be chosen: only NAME.pbtxt can",
                f"call it {Path(name).stem}.pbtxt, or move it away",
                place=f"{VARIANTS}/{name}",
            )
        elif " " in name:
            yield Hit(
                f"{VARIANTS}/{name} cannot be chosen: --model-config-name takes no spaces",
                f"call it {name.replace(' ', '-')}",
                place=f"{VARIANTS}/{name}",
            )


def _inside(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def misnamed_variant(model: Model, _: Repository) -> Iterator[Hit]:
    """A variant of another model."""
    for file in model.variants.values():
        if file.config and file.config.message.name not in ("", model.name):
            yield Hit(
                f"the folder is called {model.name}, the model {file.config.message.name}",
                "give both the same name, or leave `name` out",
                file.config.span("name"),
                source=file.source,
            )


def other_interface(model: Model, _: Repository) -> Iterator[Hit]:
    """A variant whose tensors clients of config.pbtxt would not recognise."""
    for file in model.variants.values():
        if model.config is None or file.config is None:
            continue
        for direction in ("input", "output"):
            yield from _compared(direction, model.config, file, file.config)


def _compared(
    direction: str, usual: ConfigMessage, file: ConfigFile, variant: ConfigMessage
) -> Iterator[Hit]:
    here, there = _tensors(variant, direction), _tensors(usual, direction)
    if not here or not there:  # what is left out may be filled in
        return
    for name, (index, one) in here.items():
        differs = name not in there or there[name][1].data_type != one.data_type
        if differs:
            yield Hit(
                f"{direction} {name} is not in config.pbtxt"
                if name not in there
                else f"{direction} {name} has another data_type in config.pbtxt",
                "declare the same tensors in all configurations of a model",
                variant.span(direction, index, "name" if name not in there else "data_type"),
                source=file.source,
            )
    lacking = sorted(there.keys() - here.keys())
    if lacking:
        yield Hit(
            f"{direction} {', '.join(lacking)} of config.pbtxt is missing here",
            "declare the same tensors in all configurations of a model",
            variant.name_span(direction, 0),
            source=file.source,
        )


def _tensors(config: ConfigMessage, direction: str) -> dict[str, tuple[int, Any]]:
    return {one.name: (i, one) for i, one in enumerate(getattr(config.message, direction))}


_VARIANT = CONFIG + "dynamic_batching { }\n"
_GOOD = python_model() | {"m/configs/h100.pbtxt": _VARIANT}


def _variant(old: str, new: str) -> dict[str, Any]:
    return _GOOD | {"m/configs/h100.pbtxt": _VARIANT.replace(old, new)}


RULES = (
    Rule(
        id="TC030",
        name="unreadable-variant",
        severity="error",
        summary="a configuration in configs/ that cannot be read",
        why="A server started with --model-config-name of that name refuses the model.",
        check=unreadable_variant,
        bad=_variant("dynamic_batching {", "dynamic_baching {"),
        good=_GOOD,
        shows="elsewhere",
    ),
    Rule(
        id="TC031",
        name="unusable-variant",
        severity="warning",
        summary="a file in configs/ that cannot be chosen",
        why="Triton takes configs/NAME.pbtxt for --model-config-name=NAME, and falls back to "
        "config.pbtxt without a word where there is none.",
        check=unusable_variant,
        bad=_GOOD | {"m/configs/a100.txt": _VARIANT},
        good=_GOOD | {"m/configs/a100.pbtxt": _VARIANT},
    ),
    Rule(
        id="TC032",
        name="misnamed-variant",
        severity="error",
        summary="a configuration in configs/ that has another name than the model's folder",
        why="A server started with --model-config-name of that name refuses the model.",
        check=misnamed_variant,
        bad=_variant('"m"', '"m_h100"'),
        good=_GOOD,
        shows="elsewhere",
    ),
    Rule(
        id="TC033",
        name="other-interface",
        severity="warning",
        summary="a configuration in configs/ with other tensors than config.pbtxt",
        why="Clients and ensembles that fit one server's configuration fail with another's.",
        check=other_interface,
        bad=_variant('"OUTPUT" data_type: TYPE_FP32', '"OUTPUT" data_type: TYPE_FP16'),
        good=_GOOD,
    ),
)
