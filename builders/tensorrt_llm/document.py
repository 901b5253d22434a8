# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of arguments: `document.py docs/reference/tensorrt-llm.md`.

They are made from arguments.toml. Standard library only.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from arguments import (
    Argument,
    Kind,
    Option,
    build_options,
    fields_of,
    llm_arguments,
    models,
    speculation_kinds,
    table,
)

MARKS = ("<!-- builders/tensorrt_llm/document.py -->\n", "<!-- end -->\n")


def written(text: str) -> str:
    """Return a page with its tables made anew. Raises ValueError for one without marks."""
    before, mark, rest = text.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not mark or not end:
        raise ValueError(f"the page has no {MARKS[0].strip()} … {MARKS[1].strip()}")
    return f"{before}{mark}{chr(10).join(_lines())}\n{end}{after}"


def _lines() -> Iterator[str]:
    yield from ("", "### Options of trtllm-build", "")
    yield from ("| option | values | default | versions |", "|---|---|---|---|")
    yield from (_option(option) for option in build_options().values() if not option.elsewhere)
    yield from ("", "### Arguments of tensorrt_llm.LLM", "")
    yield from ("| argument | values | stage | versions |", "|---|---|---|---|")
    for name, argument in llm_arguments().items():
        if argument.option:
            yield _argument(name, argument)
    for kind in table()["classes"]:
        for name, argument in fields_of(kind).items():
            yield _argument(f"{kind}.{name}", argument)
    yield from ("", "### Kinds of speculative decoding", "")
    yield from ("| decoding_type | needs | versions |", "|---|---|---|")
    yield from (_kind(kind) for kind in speculation_kinds() if _is_served(kind))
    yield from ("", "### Where this was read", "")
    yield from ("| section | file in NVIDIA/TensorRT-LLM | versions |", "|---|---|---|")
    for name, source in table()["sources"].items():
        yield f"| {name} | {source['file']} | {source['versions']} |"
    yield ""


def _option(option: Option) -> str:
    values = {
        "flag": "`true`",
        "switch": "`enable`, `disable`",
        "number": "a whole number",
        "text": "text",
        "list": "a list of text",
    }.get(option.kind) or _words(option.choices)
    default = option.default
    if option.kind == "switch":
        default = "enable" if option.default else "disable"
    if option.kind == "list" and option.choices:
        values = f"some of {_words(option.choices)}"
    only = models(option.name) if option.name in table()["models"] else ()
    values += f"; enabled for {', '.join(only)}" if only else ""
    shown = "" if default is None else f"`{default}`"
    return f"| `{option.name}` | {values} | {shown} | {_versions(option)} |"


def _argument(name: str, argument: Argument) -> str:
    values = {
        "switch": "`true`, `false`",
        "whole": "a whole number",
        "positive": "a whole number of at least 1",
        "fraction": "0 to 1",
        "number": "a number of at least 0",
        "text": "text",
        "texts": "a list of text",
        "sizes": "whole numbers of at least 1",
        "object": "an object",
    }.get(argument.type or "") or _words(argument.choices)
    if argument.fields:
        values = "an object, below"
    for since, words in argument.more.items():
        values += f"; from {since} on {_words(words)}"
    values += "; `null`" if argument.null else ""
    for world, since in argument.ignored.items():
        values += f"; refused for {world} from {since} on, where it is ignored"
    stages = {"engine": "compile", "pytorch": "package"}
    where = ", ".join(stages[world] for world in argument.option)
    return f"| `{name}` | {values} | {where} | {_versions(argument)} |"


def _kind(kind: Kind) -> str:
    needs = ", ".join(f"`{name}`" for name in kind.needs)
    return f"| `{kind.name}` | {needs} | {_versions(kind)} |"


def _is_served(kind: Kind) -> bool:
    return kind.runtime == "pytorch" and not (kind.code or kind.collects)


def _words(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _versions(fact: Option | Argument | Kind) -> str:
    if fact.since and fact.gone:
        return f"{fact.since} until before {fact.gone}"
    if fact.since:
        return f"from {fact.since} on"
    return f"before {fact.gone}" if fact.gone else "all"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
