# SPDX-License-Identifier: Apache-2.0
"""Rules about speculative_config of the PyTorch runtime: its kinds are in arguments.toml."""

from collections.abc import Callable, Mapping
from typing import Any

from arguments import Kind, exists, speculation_fields, speculation_kinds, table
from buildlib.problems import nearest
from package_facts import Package
from rule_check import refuse

_CONFIG = "engine.options.package.speculative_config"


def speculation_names_its_kind(package: Package) -> None:
    """The runtime chooses the class by it."""
    config = package.given.get("speculative_config")
    if config is not None and not isinstance(config.get("decoding_type"), str):
        refuse(
            "speculative_config has no decoding_type",
            f"Add {_CONFIG}.decoding_type, for example Eagle, MTP or NGram.",
        )


def speculation_is_of_the_release(package: Package) -> None:
    """The runtime refuses kinds that it does not know; some have changed their names."""
    name = _config(package).get("decoding_type")
    if name is None or _kind(package) is not None:
        return
    known = [kind.name for kind in speculation_kinds() if exists(kind, package.version)]
    other = [kind for kind in speculation_kinds() if kind.name == name]
    renamed = other[0].now if other and other[0].now in known else None
    served = ", ".join(kind.name for kind in _served(package))
    refuse(
        f"speculative_config.decoding_type is {name!r}, which TensorRT-LLM {package.version} does "
        f"not know{nearest(name, known) if not other else ''}",
        f"Set {_CONFIG}.decoding_type to {renamed or f'one of {served}'}.",
    )


def speculation_is_of_the_pytorch_runtime(package: Package) -> None:
    """Medusa and Lookahead are for compiled engines."""
    kind = _kind(package)
    if kind and kind.runtime != "pytorch":
        refuse(
            f"speculative_config.decoding_type {kind.name} is for compiled engines: the PyTorch "
            "runtime refuses it",
            f"Set {_CONFIG}.decoding_type to one of "
            f"{', '.join(one.name for one in _served(package))}.",
        )


def speculation_can_be_served(package: Package) -> None:
    """A drafter written in Python cannot be named in a file, and hidden states are for training."""
    kind = _kind(package)
    if kind and (kind.code or kind.collects):
        why = (
            "needs a Python object"
            if kind.code
            else "would serve one request at a time, and write its hidden states into files"
        )
        refuse(
            f"speculative_config.decoding_type {kind.name} {why}",
            f"Set {_CONFIG}.decoding_type to one of "
            f"{', '.join(one.name for one in _served(package))}.",
        )


def speculation_has_what_it_needs(package: Package) -> None:
    """The runtime refuses a kind without its lengths, or without the model that drafts."""
    kind, config = _kind(package), _config(package)
    if kind is None:
        return
    missing = [name for name in kind.needs if not _given(config, name)]
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
    known = speculation_fields(kind, package.version)
    for name in config:
        if name not in ("decoding_type", *known):
            refuse(
                f"speculative_config.{name} is not a field of {kind.name} in TensorRT-LLM "
                f"{package.version}{nearest(name, known)}",
                f"Use some of: {', '.join(known)}.",
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
    return package.given.get("speculative_config") or {}


def _kind(package: Package) -> Kind | None:
    name = _config(package).get("decoding_type")
    kinds = (kind for kind in speculation_kinds() if kind.name == name)
    return next((kind for kind in kinds if exists(kind, package.version)), None)


def _served(package: Package) -> list[Kind]:
    return [
        kind
        for kind in speculation_kinds()
        if exists(kind, package.version)
        and kind.runtime == "pytorch"
        and not (kind.code or kind.collects)
    ]


def _given(config: Mapping[str, Any], name: str) -> bool:
    others = table()["speculation"]["same"].items()
    names = (name, *(other for other, same in others if same == name))
    return any(_is_something(config.get(one)) for one in names)


def _is_something(value: Any) -> bool:
    return value is not None and value != "" and not (isinstance(value, int) and value <= 0)
