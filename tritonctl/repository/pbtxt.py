# SPDX-License-Identifier: Apache-2.0
"""config.pbtxt in and out; the only module that imports Triton's protobuf schema.

Importing that schema takes about 0.3 s, so it happens inside the functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritonctl.checks.config.lexer import TextprotoError
from tritonctl.checks.config.textproto import parse
from tritonctl.checks.places import Source
from tritonctl.errors import ConfigurationError


def to_pbtxt(config: Mapping[str, Any], *, header: str) -> str:
    """The text of a config.pbtxt from protobuf's JSON form, under `header` as a comment.

    Equal input gives equal bytes. Raises ConfigurationError for a field Triton does not know.
    """
    from google.protobuf import text_format

    message = _message(config)
    text: str = text_format.MessageToString(message, as_utf8=True)
    if not message.max_batch_size:
        # proto3 text drops zeros, but to Triton an absent max_batch_size means "complete it".
        text += "max_batch_size: 0\n"
    return "".join(f"# {line}\n" for line in header.splitlines()) + text


def parse_pbtxt(text: str) -> dict[str, Any]:
    """A config.pbtxt in protobuf's JSON form, Triton's field names. Raises ConfigurationError."""
    from google.protobuf import json_format, text_format
    from tritonclient.grpc import model_config_pb2

    try:
        message = text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise ConfigurationError(
            f"not a valid config.pbtxt: {_mistake(text)}", remedy="correct that line"
        ) from error
    record: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return record


def _mistake(text: str) -> str:
    """The first mistake of a config.pbtxt, its line and column, in the words of `check`."""
    from tritonclient.grpc import model_config_pb2

    from tritonctl.checks.config.message import HARMLESS, read

    source = Source("config.pbtxt", text)
    try:
        made = read(parse(text), model_config_pb2.ModelConfig())
    except TextprotoError as error:
        problem, span = error.problem, error.span
    else:
        wrong = [one for one in made.problems if one.mistake not in HARMLESS]
        if not wrong:
            return "Triton does not read it; `tritonctl check` has more"
        problem, span = wrong[0].text, wrong[0].span
    line, column = source.position(span.start)
    return f"{line}:{column}: {problem}"


def _message(config: Mapping[str, Any]) -> Any:
    from google.protobuf import json_format
    from tritonclient.grpc import model_config_pb2

    from tritonctl.repository.refused_values import refused_values

    try:
        return json_format.ParseDict(dict(config), model_config_pb2.ModelConfig())
    except json_format.ParseError as error:
        wrong = next(refused_values(config, model_config_pb2.ModelConfig.DESCRIPTOR), None)
        where = f"`{wrong.place}`: " if wrong else ""
        problem = wrong.problem if wrong else "its values do not go together"
        remedy = wrong.remedy if wrong else None
        what = "`serving.config` in tritonctl.yaml"
        raise ConfigurationError(
            f"model {config.get('name')}: Triton does not take {where}{problem}",
            remedy=f"{remedy}; correct {what}" if remedy else f"correct {what}",
        ) from error
