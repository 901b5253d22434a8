# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of rules and of arguments.toml: `document.py docs/reference/tensorrt-llm.md`.

Standard library only.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from arguments import (
    BuildOption,
    LlmArgument,
    SpeculationKind,
    build_options,
    class_fields,
    llm_arguments,
    read_releases,
    read_table,
    speculation_kinds,
    supported_models,
)
from build_checks import RULES as COMPILE_RULES
from package_rules import RULES as PACKAGE_RULES
from rule_check import rule_id

MARKS = ("<!-- builders/tensorrt_llm/document.py -->\n", "<!-- end -->\n")


def replace_tables(text: str) -> str:
    """Return a page with new tables. Raises ValueError for a page without marks."""
    head, mark, tail = text.partition(MARKS[0])
    _, end, remainder = tail.partition(MARKS[1])
    if not mark or not end:
        raise ValueError(f"the page has no {MARKS[0].strip()} … {MARKS[1].strip()}")
    return f"{head}{mark}{chr(10).join(_table_lines())}\n{end}{remainder}"


def _table_lines() -> Iterator[str]:
    yield from ("", "### Rules", "")
    yield from ("| stage | rule | reason |", "|---|---|---|")
    yield from (_rule_row("compile", rule) for rule in COMPILE_RULES)
    yield from (_rule_row("package", rule) for rule in PACKAGE_RULES)
    yield from ("", "### Options of trtllm-build", "")
    yield from ("| option | values | default | versions |", "|---|---|---|---|")
    yield from (_option_row(option) for option in build_options().values() if not option.elsewhere)
    yield from ("", "### Arguments of tensorrt_llm.LLM", "")
    yield from ("| argument | values | stage | versions |", "|---|---|---|---|")
    for name, argument in llm_arguments().items():
        if argument.option:
            yield _argument_row(name, argument)
    for kind in read_table()["classes"]:
        for name, argument in class_fields(kind).items():
            yield _argument_row(f"{kind}.{name}", argument)
    yield from ("", "### Kinds of speculative decoding", "")
    yield from ("| decoding_type | needs | versions |", "|---|---|---|")
    yield from (_kind_row(kind) for kind in speculation_kinds() if _is_servable(kind))
    yield from ("", "### Where this was read", "")
    yield from ("| section | file in NVIDIA/TensorRT-LLM | versions |", "|---|---|---|")
    for name, source in read_table()["sources"].items():
        yield f"| {name} | {source['file']} | {source['versions']} |"
    yield from ("", "### Releases that were read", "")
    yield "Arguments of `tensorrt_llm.LLM` in other releases, and other fields of classes"
    yield from ("that were read in part, pass unchecked.", "")
    yield from ("| version | read from | read in part |", "|---|---|---|")
    for release in read_releases().values():
        partly = ", ".join(f"`{name}`" for name in release.partly)
        yield f"| {release.version} | {release.source} | {partly} |"
    yield ""


def _rule_row(stage: str, rule: Callable[[Any], None]) -> str:
    """Return a row with the first line of the rule's docstring as its reason."""
    reason = (rule.__doc__ or "").strip().splitlines()[0].removesuffix(".")
    return f"| {stage} | `{rule_id(rule)}` | {reason} |"


def _option_row(option: BuildOption) -> str:
    values = {
        "flag": "`true`",
        "switch": "`enable`, `disable`",
        "number": "a whole number",
        "text": "text",
        "list": "a list of text",
    }.get(option.kind) or _join_values(option.choices)
    default = option.default
    if option.kind == "switch":
        default = "enable" if option.default else "disable"
    if option.kind == "list" and option.choices:
        values = f"some of {_join_values(option.choices)}"
    enabled_for = supported_models(option.name) if option.name in read_table()["models"] else ()
    values += f"; enabled for {', '.join(enabled_for)}" if enabled_for else ""
    default_text = "" if default is None else f"`{default}`"
    return f"| `{option.name}` | {values} | {default_text} | {_versions(option)} |"


def _argument_row(name: str, argument: LlmArgument) -> str:
    values = {
        "switch": "`true`, `false`",
        "whole": "a whole number",
        "positive": "a whole number of at least 1",
        "fraction": "0 to 1",
        "share": "above 0, up to 1",
        "number": "a number of at least 0",
        "text": "text",
        "texts": "a list of text",
        "sizes": "whole numbers of at least 1",
        "shares": "numbers above 0 whose sum is 1",
        "schedule": "an object from batch sizes to draft lengths",
        "names": "an object with text as values",
        "object": "an object",
    }.get(argument.type or "") or _join_values(argument.choices)
    if argument.fields:
        values = "an object, below"
    values += f" of at most {argument.maximum}" if argument.maximum is not None else ""
    for since, words in argument.more.items():
        values += f"; from {since} on {_join_values(words)}"
    for refusing, words in argument.dropped.items():
        values += f"; before {refusing} only {_join_values(words)}"
    values += "; `null`" if argument.null else ""
    for world, since in argument.ignored.items():
        values += f"; refused for {world} from {since} on, where it is ignored"
    stages = {"engine": "compile", "pytorch": "package"}
    stage_names = ", ".join(stages[world] for world in argument.option)
    return f"| `{name}` | {values} | {stage_names} | {_versions(argument)} |"


def _kind_row(kind: SpeculationKind) -> str:
    needs = ", ".join(f"`{name}`" for name in kind.needs)
    return f"| `{kind.name}` | {needs} | {_versions(kind)} |"


def _is_servable(kind: SpeculationKind) -> bool:
    return kind.runtime == "pytorch" and not (kind.code or kind.collects)


def _join_values(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _versions(entry: BuildOption | LlmArgument | SpeculationKind) -> str:
    if isinstance(entry, LlmArgument) and entry.replacement:
        return f"{_bounds(entry)}; now `{entry.replacement}`"
    return _bounds(entry)


def _bounds(entry: BuildOption | LlmArgument | SpeculationKind) -> str:
    if entry.since and entry.removed_in:
        return f"{entry.since} until before {entry.removed_in}"
    if entry.since:
        return f"from {entry.since} on"
    return f"before {entry.removed_in}" if entry.removed_in else "all"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(replace_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
