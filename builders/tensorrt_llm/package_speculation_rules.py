# SPDX-License-Identifier: Apache-2.0
"""Rules about speculative_config of the PyTorch runtime. arguments.toml lists its kinds."""

from collections.abc import Callable, Mapping
from typing import Any

from arguments import (
    SpeculationKind,
    is_available,
    read_table,
    speculation_fields,
    speculation_kinds,
)
from buildlib.problems import did_you_mean
from package_facts import Package
from rule_check import refuse

_CONFIG = "engine.options.package.speculative_config"


def speculation_names_its_kind(package: Package) -> None:
    """The runtime chooses the class by decoding_type."""
    config = package.arguments.get("speculative_config")
    if config is not None and not isinstance(config.get("decoding_type"), str):
        refuse(
            "speculative_config has no decoding_type",
            f"Add {_CONFIG}.decoding_type, for example Eagle, MTP or NGram.",
        )


def speculation_is_of_the_release(package: Package) -> None:
    """The runtime refuses unknown kinds. Some kinds were renamed."""
    name = _config(package).get("decoding_type")
    if name is None or _kind(package) is not None:
        return
    available = [kind.name for kind in speculation_kinds() if is_available(kind, package.version)]
    same_name = [kind for kind in speculation_kinds() if kind.name == name]
    renamed = same_name[0].now if same_name and same_name[0].now in available else None
    servable = ", ".join(kind.name for kind in _servable_kinds(package))
    refuse(
        f"speculative_config.decoding_type is {name!r}, which TensorRT-LLM {package.version} does "
        f"not know{did_you_mean(name, available) if not same_name else ''}",
        f"Set {_CONFIG}.decoding_type to {renamed or f'one of {servable}'}.",
    )


def speculation_is_of_the_pytorch_runtime(package: Package) -> None:
    """Medusa and Lookahead are for compiled engines."""
    kind = _kind(package)
    if kind and kind.runtime != "pytorch":
        refuse(
            f"speculative_config.decoding_type {kind.name} is for compiled engines: the PyTorch "
            "runtime refuses it",
            f"Set {_CONFIG}.decoding_type to one of "
            f"{', '.join(entry.name for entry in _servable_kinds(package))}.",
        )


def speculation_can_be_served(package: Package) -> None:
    """A file cannot name a drafter in Python, and hidden states are for training."""
    kind = _kind(package)
    if kind and (kind.code or kind.collects):
        reason = (
            "needs a Python object"
            if kind.code
            else "would serve one request at a time and write its hidden states to files"
        )
        refuse(
            f"speculative_config.decoding_type {kind.name} {reason}",
            f"Set {_CONFIG}.decoding_type to one of "
            f"{', '.join(entry.name for entry in _servable_kinds(package))}.",
        )


def speculation_has_what_it_needs(package: Package) -> None:
    """The runtime refuses a kind without its lengths or its draft model."""
    kind, config = _kind(package), _config(package)
    if kind is None:
        return
    missing = [name for name in kind.needs if not _has_value(config, name)]
    if missing:
        refuse(
            f"speculative_config.decoding_type {kind.name} needs {' and '.join(missing)}",
            f"Add {' and '.join(f'{_CONFIG}.{name}' for name in missing)}"
            f"{' (above 0)' if missing[0] != 'speculative_model_dir' else ''}.",
        )


def speculation_has_known_fields(package: Package) -> None:
    """The runtime refuses fields that this kind does not have."""
    kind, config = _kind(package), _config(package)
    if kind is None:
        return
    fields = speculation_fields(kind, package.version)
    for name in config:
        if name not in ("decoding_type", *fields):
            refuse(
                f"speculative_config.{name} is not a field of {kind.name} in TensorRT-LLM "
                f"{package.version}{did_you_mean(name, fields)}",
                f"Use some of: {', '.join(fields)}.",
            )


def speculation_has_one_tree(package: Package) -> None:
    """A tree of drafts is static or dynamic, and a dynamic one has a width."""
    config = _config(package)
    if not config.get("use_dynamic_tree"):
        return
    if config.get("eagle_choices") is not None:
        refuse(
            "speculative_config has eagle_choices and use_dynamic_tree, which exclude each other",
            f"Remove one of them from {_CONFIG}.",
        )
    if not config.get("dynamic_tree_max_topK"):
        refuse(
            "speculative_config.use_dynamic_tree needs dynamic_tree_max_topK",
            f"Add {_CONFIG}.dynamic_tree_max_topK (above 0).",
        )


RULES: tuple[Callable[[Package], None], ...] = (
    speculation_names_its_kind,
    speculation_is_of_the_release,
    speculation_is_of_the_pytorch_runtime,
    speculation_can_be_served,
    speculation_has_known_fields,
    speculation_has_what_it_needs,
    speculation_has_one_tree,
)


def _config(package: Package) -> Mapping[str, Any]:
    return package.arguments.get("speculative_config") or {}


def _kind(package: Package) -> SpeculationKind | None:
    name = _config(package).get("decoding_type")
    kinds = (kind for kind in speculation_kinds() if kind.name == name)
    return next((kind for kind in kinds if is_available(kind, package.version)), None)


def _servable_kinds(package: Package) -> list[SpeculationKind]:
    return [
        kind
        for kind in speculation_kinds()
        if is_available(kind, package.version)
        and kind.runtime == "pytorch"
        and not (kind.code or kind.collects)
    ]


def _has_value(config: Mapping[str, Any], name: str) -> bool:
    aliases = read_table()["speculation"]["same"].items()
    names = (name, *(alias for alias, canonical in aliases if canonical == name))
    return any(_is_non_empty(config.get(key)) for key in names)


def _is_non_empty(value: Any) -> bool:
    return value is not None and value != "" and not (isinstance(value, int) and value <= 0)
