# SPDX-License-Identifier: Apache-2.0
"""Reads and writes config.pbtxt; the only module that imports Triton's protobuf schema.

Importing that schema takes about 0.3 s, so it happens inside the functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritonctl.checks.config.lexer import TextprotoError
from tritonctl.checks.config.textproto import parse
from tritonctl.checks.source_span import SourceText, Span
from tritonctl.errors import ConfigurationError


def to_pbtxt(config: Mapping[str, Any], *, header: str) -> str:
    """Return the text of a config.pbtxt from protobuf's JSON form, with `header` as a comment.

    The output is deterministic. Raises ConfigurationError for an unknown field.
    """
    from google.protobuf import text_format

    message = _message(config)
    text: str = text_format.MessageToString(message, as_utf8=True)
    if not message.max_batch_size:
        # proto3 text drops zeros, but Triton auto-completes a missing max_batch_size.
        text += "max_batch_size: 0\n"
    return "".join(f"# {line}\n" for line in header.splitlines()) + text


def parse_pbtxt(text: str) -> dict[str, Any]:
    """Parse a config.pbtxt to protobuf's JSON form. Raises ConfigurationError.

    With the reader of `check`, which reads as Triton does: protobuf's Python parser accepts other
    white space and numbers than its C++ parser.
    """
    from google.protobuf import json_format
    from tritonclient.grpc import model_config_pb2

    from tritonctl.checks.config.message import HARMLESS, read

    try:
        reading = read(parse(text), model_config_pb2.ModelConfig())
    except TextprotoError as error:
        raise _refused(text, error.problem, error.span) from error
    for problem in reading.problems:
        if problem.mistake not in HARMLESS:
            raise _refused(text, problem.text, problem.span)
    record: dict[str, Any] = json_format.MessageToDict(
        reading.message, preserving_proto_field_name=True
    )
    return record


def _refused(text: str, problem: str, span: Span) -> ConfigurationError:
    line, column = SourceText("config.pbtxt", text).position(span.start)
    return ConfigurationError(
        f"not a valid config.pbtxt: {line}:{column}: {problem}", remedy="correct that line"
    )


def _message(config: Mapping[str, Any]) -> Any:
    from google.protobuf import json_format
    from tritonclient.grpc import model_config_pb2

    from tritonctl.repository.refused_values import refused_values

    try:
        return json_format.ParseDict(dict(config), model_config_pb2.ModelConfig())
    except json_format.ParseError as error:
        refused = next(refused_values(config, model_config_pb2.ModelConfig.DESCRIPTOR), None)
        location = f"`{refused.path}`: " if refused else ""
        problem = refused.problem if refused else "this combination of values"
        remedy = refused.remedy if refused else None
        subject = "`serving.config` in tritonctl.yaml"
        raise ConfigurationError(
            f"model {config.get('name')}: Triton does not accept {location}{problem}",
            remedy=f"{remedy}; correct {subject}" if remedy else f"correct {subject}",
        ) from error
