# SPDX-License-Identifier: Apache-2.0
"""Rules about speculative_config of the PyTorch runtime. arguments.toml lists its kinds."""

from collections.abc import Callable, Mapping
from typing import Any

from arguments import (
    SpeculationKind,
    is_available,
    is_read,
    is_version_or_later,
    read_table,
    speculation_fields,
    speculation_kinds,
)
from buildlib.problems import did_you_mean
from llm_arguments import check_fields
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
    if name is None or _kind(package) is not None or not is_read(package.version):
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
    if kind.name == "MTP" and config.get("max_draft_len") == 0:
        refuse(
            "speculative_config.max_draft_len is 0, and MTP drafts at least one token",
            f"Set {_CONFIG}.max_draft_len to 1 or more, or remove {_CONFIG}.",
        )
    missing = [name for name in kind.needs if not _has_value(config, name)]
    if missing:
        refuse(
            f"speculative_config.decoding_type {kind.name} needs {' and '.join(missing)}",
            f"Add {' and '.join(f'{_CONFIG}.{name}' for name in missing)}"
            f"{' (above 0)' if missing[0] != 'speculative_model_dir' else ''}.",
        )


def speculation_has_known_fields(package: Package) -> None:
    """The runtime refuses fields that this kind does not have, and values out of bounds."""
    kind, config = _kind(package), _config(package)
    if kind is None:
        return
    values = {name: value for name, value in config.items() if name != "decoding_type"}
    check_fields(values, speculation_fields(kind), package.version, _CONFIG, of=kind.name)


def speculation_names_one_draft_model(package: Package) -> None:
    """speculative_model and speculative_model_dir are two names of one field."""
    for alias, name in read_table()["speculation"]["same"].items():
        if alias in _config(package) and name in _config(package):
            refuse(
                f"speculative_config has {alias} and {name}, two names of one field",
                f"Remove {_CONFIG}.{name}.",
            )


def speculation_is_limited_once(package: Package) -> None:
    """max_concurrency and draft_len_schedule exclude each other."""
    config, since = _config(package), read_table()["changes"]["one_limit_of_speculation"]
    limits = ("max_concurrency", "draft_len_schedule")
    is_limited_twice = all(config.get(name) is not None for name in limits)
    if is_limited_twice and is_version_or_later(package.version, since):
        refuse(
            "speculative_config has max_concurrency and draft_len_schedule, and a schedule limits "
            "the concurrency already",
            f"Remove {_CONFIG}.max_concurrency.",
        )


def speculation_schedule_begins_with_the_longest_draft(package: Package) -> None:
    """The smallest batch of draft_len_schedule drafts max_draft_len tokens, and no batch more."""
    config, longest = _config(package), _config(package).get("max_draft_len")
    schedule = config.get("draft_len_schedule")
    if _kind(package) is None or not schedule or longest is None:
        return
    smallest = min(schedule, key=int)
    if schedule[smallest] != longest or max(schedule.values()) > longest:
        refuse(
            f"speculative_config.draft_len_schedule drafts {schedule[smallest]} tokens for up to "
            f"{smallest} sequences, {max(schedule.values())} at most, and max_draft_len is "
            f"{longest}",
            f"Let the smallest batch of {_CONFIG}.draft_len_schedule draft {longest} tokens, and "
            "no other batch more.",
        )


def speculation_matches_some_tokens(package: Package) -> None:
    """NGram matches at least one token, SA at least one or -1, the longest match."""
    kind, config = _kind(package), _config(package)
    size = config.get("max_matching_ngram_size")
    if kind is None or kind.name not in ("NGram", "SA") or size is None:
        return
    is_longest_match = size == -1 and kind.name == "SA"
    if type(size) is not int or (size < 1 and not is_longest_match):
        longest = ", or to -1 for the longest match" if kind.name == "SA" else ""
        refuse(
            f"speculative_config.max_matching_ngram_size is {size!r}, and {kind.name} matches at "
            "least one token",
            f"Set {_CONFIG}.max_matching_ngram_size to 1 or more{longest}.",
        )


def speculation_pool_is_enabled(package: Package) -> None:
    """SA ignores no size of a pool: global_pool_size needs enable_global_pool."""
    config = _config(package)
    if config.get("global_pool_size") is not None and not config.get("enable_global_pool"):
        refuse(
            "speculative_config.global_pool_size is set, and enable_global_pool is not",
            f"Set {_CONFIG}.enable_global_pool to true, or remove global_pool_size.",
        )


def speculation_has_one_tree(package: Package) -> None:
    """A tree of drafts is static or dynamic, and a dynamic one has a width for its tokens."""
    config = _config(package)
    if _kind(package) is None or not config.get("use_dynamic_tree"):
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
    depth, total = config.get("max_draft_len") or 0, config.get("max_total_draft_tokens")
    largest = depth * config["dynamic_tree_max_topK"]
    if depth and total is not None and not depth <= total <= largest:
        refuse(
            f"speculative_config.max_total_draft_tokens is {total}, and the tree has {depth} "
            f"(max_draft_len) to {largest} tokens (max_draft_len * dynamic_tree_max_topK)",
            f"Set {_CONFIG}.max_total_draft_tokens to {depth} to {largest}, or remove it.",
        )


RULES: tuple[Callable[[Package], None], ...] = (
    speculation_names_its_kind,
    speculation_is_of_the_release,
    speculation_is_of_the_pytorch_runtime,
    speculation_can_be_served,
    speculation_has_known_fields,
    speculation_names_one_draft_model,
    speculation_is_limited_once,
    speculation_schedule_begins_with_the_longest_draft,
    speculation_has_what_it_needs,
    speculation_matches_some_tokens,
    speculation_pool_is_enabled,
    speculation_has_one_tree,
)


def _config(package: Package) -> Mapping[str, Any]:
    return package.arguments.get("speculative_config") or {}


def _kind(package: Package) -> SpeculationKind | None:
    if not is_read(package.version):
        return None  # passed through
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
