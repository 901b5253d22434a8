# SPDX-License-Identifier: Apache-2.0
"""TC1xx: a config.pbtxt that is unreadable or misleading."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from tritonctl.checks.analysis.placement import join_some
from tritonctl.checks.analysis.releases import newer_fields
from tritonctl.checks.config.characters import as_ascii, ascii_remedy, is_utf16
from tritonctl.checks.config.meanings import (
    CAPITALS,
    certain_field,
    certain_value,
    field_remedy,
    value_remedy,
)
from tritonctl.checks.config.message import ConfigMessage, Mistake, Problem
from tritonctl.checks.config.textproto import Scalar
from tritonctl.checks.findings import Edit, Hit
from tritonctl.checks.repository import CONFIG, ConfigFile, Repository
from tritonctl.checks.rule import error, warning
from tritonctl.checks.source_span import SourceText, Span

# NVIDIA's samples have ${name}; others are Jinja and shell templates. The length is limited,
# because a line may be a whole file of unclosed placeholders.
_PLACEHOLDER = re.compile(r"\$\{\w+\}|\{\{.{,200}?\}\}|<%.{,200}?%>")
_VARIABLE = re.compile(r"\$\{\w+\}")
# Also matches an unclosed string, without its end, so that its content is scanned only once.
_STRING_OR_COMMENT = re.compile(r"""(["'])(?:(?!\1)[^\\\n]|\\.)*+(\1?)|#[^\n]*""")
# Parameters of NVIDIA's templates without which no model loads.
_REQUIRED_PARAMETERS = {"gpt_model_type", "gpt_model_path", "tokenizer_dir"}
_MAX_PLACEHOLDER_CHARS = 60
_MAX_LIST_CHARS = 240


@error(
    "TC101 unreadable-config",
    summary="a config.pbtxt that cannot be read",
    reason="Triton refuses the model. A folder of that name crashes tritonserver 2.51.",
    reports_unread_values=True,
)
def unreadable_config(file: ConfigFile) -> Iterator[Hit]:
    if file.read_error:
        yield Hit(
            f"config.pbtxt cannot be read: {file.read_error}",
            "make it a readable text file; `ls -lL` shows what it is",
            relative_path=CONFIG,
        )


@error(
    "TC102 placeholder-left",
    summary="a template's placeholder that was not filled",
    reason="Triton says `Expected integer or identifier, got: $` and refuses the model.",
    answers=("server#8592", "tensorrtllm_backend#207", "tensorrtllm_backend#61"),
    reports_unread_values=True,
)
def placeholder(file: ConfigFile) -> Iterator[Hit]:
    # Strings and comments become blanks of the same length, so that spans stay valid.
    yield from _placeholder_hits(_PLACEHOLDER, _STRING_OR_COMMENT.sub(_blank, file.source.text), 0)


def _blank(match: re.Match[str]) -> str:
    unclosed = match[1] and not match[2]
    return match[0] if unclosed else " " * len(match[0])


@warning(
    "TC109 placeholder-in-string",
    summary="a template's placeholder inside a string",
    reason="Triton uses the placeholder as the value, which fails late or never.",
    answers=("tensorrtllm_backend#168", "tensorrtllm_backend#572"),
    reports_unread_values=True,
)
def placeholder_in_string(config: ConfigMessage, file: ConfigFile) -> Iterator[Hit]:
    unset = _unset_parameters(config)
    if unset:
        yield Hit(
            f"{len(unset)} parameters have not been filled: {join_some(unset)}",
            "fill those that you need, with NVIDIA's tools/fill_template.py -i "
            f"{file.source.name} NAME:VALUE,…, and keep or remove the others",
            next(iter(unset.values())),
            reason="NVIDIA's models treat an unfilled placeholder as a missing parameter and use "
            "the default. Other models use the placeholder as the value.",
        )
    reported = {span.start for span in unset.values()}
    for match in _STRING_OR_COMMENT.finditer(file.source.text):
        if not match.group().startswith("#") and match.start() not in reported:
            yield from _placeholder_hits(_VARIABLE, match.group(), match.start())


def _unset_parameters(config: ConfigMessage) -> dict[str, Span]:
    """Return the spans of several unfilled, optional parameters, which share one finding."""
    unset = {
        key: config.span("parameters", key, "string_value")
        for key, value in config.message.parameters.items()
        if key not in _REQUIRED_PARAMETERS and _VARIABLE.fullmatch(value.string_value)
    }
    return dict(sorted(unset.items(), key=lambda item: item[1])) if len(unset) > 1 else {}


def _placeholder_hits(pattern: re.Pattern[str], text: str, offset: int) -> Iterator[Hit]:
    for match in pattern.finditer(text):
        yield Hit(
            f"the placeholder {match.group()[:_MAX_PLACEHOLDER_CHARS]} has not been filled",
            "write the value there, or render the template with all of its values",
            Span(match.start() + offset, match.end() + offset),
        )


@error(
    "TC103 invalid-text-format",
    summary="a config.pbtxt that is not protobuf's text format",
    reason="Triton refuses the model: it ignores a file with a syntax error entirely.",
    reports_unread_values=True,
)
def invalid_text_format(file: ConfigFile) -> Iterator[Hit]:
    if file.parse_error and not any(placeholder(file)):
        span = file.parse_error.span
        plain = as_ascii(file.source.text)
        yield Hit(
            f"invalid text format: {file.parse_error.problem}",
            _text_remedy(file.source, span),
            span,
            edits=(Edit(*plain),) if plain else (),
        )


def _text_remedy(source: SourceText, span: Span) -> str:
    """Say how to write what protobuf's text format cannot have there."""
    if is_utf16(source.text):
        return f"write it as UTF-8: iconv -f UTF-16 -t UTF-8 {shlex.quote(source.name)}"
    remedy = ascii_remedy(source.text[span.start : span.end]) or "correct it there"
    return f"{remedy}: nothing after it was read"


@error(
    "TC104 unknown-field",
    summary="a field that Triton's model configuration does not have",
    reports_unread_values=True,
)
def unknown_field(config: ConfigMessage, file: ConfigFile) -> Iterator[Hit]:
    yield from _hits_with_suggestion(config, file, "unknown")


@error(
    "TC105 wrong-type",
    summary="a value whose type differs from its field's",
    reports_unread_values=True,
)
def wrong_type(config: ConfigMessage, file: ConfigFile) -> Iterator[Hit]:
    yield from _hits_with_suggestion(config, file, "type")


def _problems(config: ConfigMessage, mistake: Mistake) -> list[Problem]:
    return [problem for problem in config.problems if problem.mistake == mistake]


def _problem_hits(config: ConfigMessage, mistake: Mistake) -> Iterator[Hit]:
    for problem in _problems(config, mistake):
        yield Hit(problem.text, "remove the wrong one", problem.span)
    yield from _omitted(config, mistake)


def _omitted(config: ConfigMessage, mistake: Mistake) -> Iterator[Hit]:
    """Yield a hit that stands for the problems beyond those that were retained."""
    count = config.problem_counts[mistake] - len(_problems(config, mistake))
    if count:
        yield Hit("", "", omitted=count)


def _hits_with_suggestion(
    config: ConfigMessage, file: ConfigFile, mistake: Mistake
) -> Iterator[Hit]:
    for problem in _problems(config, mistake):
        written = file.source.text[problem.span.start : problem.span.end]
        # For an enum, whose values are capitals too, it may be a misspelling.
        certain = _certain_text(problem, written)
        is_word = mistake == "type" and not problem.names and certain is None
        if is_word and CAPITALS.fullmatch(written):
            yield Hit(
                f"{problem.text}; {written} looks like an unfilled placeholder of a template",
                "write the value in its place: "
                f"sed -i 's/\\b{written}\\b/VALUE/' {file.source.name}",
                problem.span,
            )
            continue
        edits = (Edit(problem.span, certain),) if certain else ()
        yield Hit(problem.text, _problem_fix(problem, written), problem.span, edits=edits)
    yield from _omitted(config, mistake)


def _certain_text(problem: Problem, written: str) -> str | None:
    """Return what surely was meant; a similar name alone may mean something else."""
    if problem.descriptor is None:
        return None
    if problem.mistake == "unknown":
        return certain_field(written, problem.descriptor.fields_by_name)
    if not isinstance(problem.value, Scalar):
        return None
    return certain_value(problem.descriptor, problem.value, written)


def _problem_fix(problem: Problem, written: str) -> str:
    remedy, names = None, problem.names
    if problem.mistake == "unknown":
        names = tuple(problem.descriptor.fields_by_name)
        remedy = field_remedy(written, problem.descriptor, problem.value, problem.path)
    elif isinstance(problem.value, Scalar):
        remedy = value_remedy(problem.descriptor, problem.value, written)
    if remedy:
        return remedy
    candidates = ", ".join(sorted(names))
    if candidates and len(candidates) <= _MAX_LIST_CHARS:
        return f"it is one of {candidates}"
    return "remove it" if problem.mistake == "unknown" else "write such a value"


@error(
    "TC106 given-again",
    summary="a single-value field that is repeated, or set together with an exclusive one",
    reports_unread_values=True,
)
def given_again(config: ConfigMessage) -> Iterator[Hit]:
    return _problem_hits(config, "again")


@warning(
    "TC108 key-again",
    summary="a repeated key of a map",
    reason="Triton silently uses the last value; earlier ones have no effect.",
    reports_unread_values=True,
)
def key_again(config: ConfigMessage) -> Iterator[Hit]:
    return _problem_hits(config, "key-again")


@warning(
    "TC110 default-overwritten",
    summary="a field that is repeated after its default value: 0, false or an empty string",
    reason="Triton refuses a repeated field, but cannot tell a default value from an unset field: "
    "it silently uses the last value.",
    reports_unread_values=True,
)
def default_overwritten(config: ConfigMessage) -> Iterator[Hit]:
    return _problem_hits(config, "overwritten")


@error(
    "TC107 field-too-new",
    summary="a field that the target version does not know",
    reason="An unknown field makes the whole file unreadable: Triton refuses the model.",
    reports_unread_values=True,
)
def newer_field(config: ConfigMessage, repository: Repository) -> Iterator[Hit]:
    version = repository.target.version
    if version is None:
        return
    newer = newer_fields(version)
    for path, span in config.name_spans.items():
        name = ".".join(part for part in path if isinstance(part, str))
        if first := newer.get(name):
            yield Hit(
                f"{name} came with Triton {first}: {version} cannot read a file that has it",
                f"remove it, or serve with Triton {first} or later",
                span,
            )
