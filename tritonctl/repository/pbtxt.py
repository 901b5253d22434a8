# SPDX-License-Identifier: Apache-2.0
"""config.pbtxt in and out; the only module that imports Triton's protobuf schema.

Importing that schema takes about 0.3 s, so it happens inside the functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tritonctl.errors import ConfigurationError, suggest


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
            f"not a valid config.pbtxt: {error}", remedy="correct that line"
        ) from error
    record: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return record


def _message(config: Mapping[str, Any]) -> Any:
    from google.protobuf import json_format
    from tritonclient.grpc import model_config_pb2

    try:
        return json_format.ParseDict(dict(config), model_config_pb2.ModelConfig())
    except json_format.ParseError as error:
        # The lines after the first list all fields, in names that config.pbtxt does not use.
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"model {config.get('name')}: Triton's model configuration refuses it: {reason}",
            remedy=_remedy(str(error)),
        ) from error


def _remedy(problem: str) -> str:
    from tritonclient.grpc import model_config_pb2

    match = re.search(r'Message type "([^"]+)" has no field named "([^"]+)"', problem)
    if match:
        pool = model_config_pb2.DESCRIPTOR.pool
        known = [field.name for field in pool.FindMessageTypeByName(match[1]).fields]
        if nearest := suggest(match[2], known):
            return f"did you mean `{nearest}`? Correct `serving.config` in tritonctl.yaml"
    return "correct `serving.config` in tritonctl.yaml"
