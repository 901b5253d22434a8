# SPDX-License-Identifier: Apache-2.0
"""TC1xx: whether config.pbtxt can be read, and says what it seems to say."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tritonctl.checks.analysis.placement import some
from tritonctl.checks.analysis.releases import newer_fields
from tritonctl.checks.config.message import ConfigMessage, Mistake, Problem
from tritonctl.checks.findings import Edit, Hit
from tritonctl.checks.places import Span
from tritonctl.checks.repository import CONFIG, ConfigFile, Repository
from tritonctl.checks.rule import error, warning
from tritonctl.errors import suggest

# NVIDIA's samples have ${name}; Jinja and shell templates are put around them. Of bounded length:
# a line may be a whole file of things that begin so.
_PLACEHOLDER = re.compile(r"\$\{\w+\}|\{\{.{,200}?\}\}|<%.{,200}?%>")
_VARIABLE = re.compile(r"\$\{\w+\}")
# A string that is not closed matches, too, without its end: what is in it is read only once.
_STRING_OR_COMMENT = re.compile(r"""(["'])(?:(?!\1)[^\\\n]|\\.)*+(\1?)|#[^\n]*""")
# As in `count: INSTANCE_NUM`, which scripts replace by sed.
_CAPITALS = re.compile(r"[A-Z][A-Z0-9]*_*[A-Z0-9_]+")
# Of NVIDIA's templates: without them no model loads.
_NEEDED = {"gpt_model_type", "gpt_model_path", "tokenizer_dir"}
_MOST_SHOWN = 60
_MOST_NAMES = 240


@error(
    "TC101 unreadable-config",
    summary="a config.pbtxt that cannot be read",
    why="Triton refuses the model; a folder in its place crashes tritonserver 2.51.",
)
def unreadable(file: ConfigFile) -> Iterator[Hit]:
    if file.unreadable:
        yield Hit(
            f"config.pbtxt cannot be read: {file.unreadable}",
            "make it a readable text file; `ls -lL` shows what it is",
            place=CONFIG,
        )


@error(
    "TC102 placeholder-left",
    summary="a template's placeholder that was not filled",
    why="Triton says `Expected integer or identifier, got: $` and refuses the model.",
    answers=("server#8592", "tensorrtllm_backend#207", "tensorrtllm_backend#61"),
)
def placeholder(file: ConfigFile) -> Iterator[Hit]:
    # Blanks as long as what they replace, so that every place stays where it is.
    yield from _unfilled(_PLACEHOLDER, _STRING_OR_COMMENT.sub(_blank, file.source.text), 0)


def _blank(match: re.Match[str]) -> str:
    unclosed = match[1] and not match[2]
    return match[0] if unclosed else " " * len(match[0])


@warning(
    "TC109 placeholder-in-string",
    summary="a template's placeholder inside a string",
    why="Triton uses the placeholder as the value, which fails much later, if at all.",
    answers=("tensorrtllm_backend#168", "tensorrtllm_backend#572"),
)
def placeholder_in_string(config: ConfigMessage, file: ConfigFile) -> Iterator[Hit]:
    unset = _unset_parameters(config)
    if unset:
        yield Hit(
            f"{len(unset)} parameters have not been filled: {some(unset)}",
            "fill those that you need, with NVIDIA's tools/fill_template.py -i "
            f"{file.source.name} NAME:VALUE,…, and leave the others, or remove them",
            next(iter(unset.values())),
            why="NVIDIA's models take a parameter that is still its placeholder as absent: its "
            "default counts. Other models take it as the value.",
        )
    reported = {span.start for span in unset.values()}
    for match in _STRING_OR_COMMENT.finditer(file.source.text):
        if not match.group().startswith("#") and match.start() not in reported:
            yield from _unfilled(_VARIABLE, match.group(), match.start())


def _unset_parameters(config: ConfigMessage) -> dict[str, Span]:
    """The places of those that one finding is enough for: several, and none that has to be set."""
    unset = {
        key: config.span("parameters", key, "string_value")
        for key, value in config.message.parameters.items()
        if key not in _NEEDED and _VARIABLE.fullmatch(value.string_value)
    }
    return dict(sorted(unset.items(), key=lambda one: one[1])) if len(unset) > 1 else {}


def _unfilled(pattern: re.Pattern[str], text: str, offset: int) -> Iterator[Hit]:
    for match in pattern.finditer(text):
        yield Hit(
            f"the placeholder {match.group()[:_MOST_SHOWN]} has not been filled",
            "write the value there, or render the template with all of its values",
            Span(match.start() + offset, match.end() + offset),
        )


@error(
    "TC103 invalid-text-format",
    summary="a config.pbtxt that is not protobuf's text format",
    why="Triton refuses the model: it ignores a file with a syntax error entirely.",
)
def syntax(file: ConfigFile) -> Iterator[Hit]:
    if file.broken and not any(placeholder(file)):
        yield Hit(
            f"invalid text format: {file.broken.problem}",
            "correct it there: nothing after it was read",
            file.broken.span,
        )


@error("TC104 unknown-field", summary="a field that Triton's model configuration does not have")
def unknown_field(config: ConfigMessage, file: ConfigFile) -> Iterator[Hit]:
    yield from _with_nearest(config, file, "unknown")


@error("TC105 wrong-type", summary="a value of another type than its field's")
def wrong_type(config: ConfigMessage, file: ConfigFile) -> Iterator[Hit]:
    yield from _with_nearest(config, file, "type")


def _problems(config: ConfigMessage, mistake: Mistake) -> list[Problem]:
    return [problem for problem in config.problems if problem.mistake == mistake]


def _given_twice(config: ConfigMessage, mistake: Mistake) -> Iterator[Hit]:
    for problem in _problems(config, mistake):
        yield Hit(problem.text, "remove the wrong one", problem.span)


def _with_nearest(config: ConfigMessage, file: ConfigFile, mistake: Mistake) -> Iterator[Hit]:
    for problem in _problems(config, mistake):
        written = file.source.text[problem.span.start : problem.span.end].strip("\"'")
        nearest = suggest(written, problem.names)
        # Of an enum, whose values are such words, it may be anything.
        if mistake == "type" and not problem.names and _CAPITALS.fullmatch(written):
            yield Hit(
                f"{problem.text}; {written} looks like an unfilled placeholder of a template",
                "write the value in its place: "
                f"sed -i 's/\\b{written}\\b/VALUE/' {file.source.name}",
                problem.span,
            )
            continue
        # Another name of a field is a slip of the pen; another value may be meant otherwise.
        edits = (Edit(problem.span, nearest),) if nearest and mistake == "unknown" else ()
        yield Hit(problem.text, _instead(problem, nearest), problem.span, edits=edits)


def _instead(problem: Problem, nearest: str | None) -> str:
    if nearest:
        return f"did you mean {nearest}?"
    known = ", ".join(sorted(problem.names))
    if known and len(known) <= _MOST_NAMES:
        return f"it is one of {known}"
    return "remove it" if problem.mistake == "unknown" else "write such a value"


@error(
    "TC106 given-again",
    summary="a field of one value that is given twice, or together with one that excludes it",
)
def given_again(config: ConfigMessage) -> Iterator[Hit]:
    return _given_twice(config, "again")


@warning(
    "TC108 key-again",
    summary="a key of a map that is given twice",
    why="Triton silently takes the last one, so the values above it have no effect.",
)
def key_again(config: ConfigMessage) -> Iterator[Hit]:
    return _given_twice(config, "key-again")


@warning(
    "TC110 default-overwritten",
    summary="a field that is given again after its default value: 0, false or an empty string",
    why="Triton refuses a field that is given twice, but cannot tell its default value from "
    "none: it silently takes the last value.",
)
def overwritten(config: ConfigMessage) -> Iterator[Hit]:
    return _given_twice(config, "overwritten")


@error(
    "TC107 field-too-new",
    summary="a field that the target version does not know",
    why="An unknown field makes the whole file unreadable: the model is refused.",
)
def newer_field(config: ConfigMessage, repository: Repository) -> Iterator[Hit]:
    version = repository.target.version
    if version is None:
        return
    newer = newer_fields(version)
    for place, span in config.names.items():
        name = ".".join(part for part in place if isinstance(part, str))
        if first := newer.get(name):
            yield Hit(
                f"{name} came with Triton {first}: {version} cannot read a file that has it",
                f"remove it, or serve with Triton {first} or later",
                span,
            )
