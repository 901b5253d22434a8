# SPDX-License-Identifier: Apache-2.0
"""Check that the ids of an interrupted answer decode to the same text on this server."""

import hashlib
from collections.abc import Mapping
from typing import Any

from textlib.errors import RequestError
from textlib.tokens.detokenize import text_so_far
from textlib.tokens.token_bytes import TokenTable
from textlib.triton.request_tensors import GenerationRequest

# Sent with `resume_ids`: the hexadecimal SHA-256 of the text that the client has so far.
DIGEST_PARAMETER = "resume_text_sha256"


def check_resumed_text(
    request: GenerationRequest, table: TokenTable, parameters: Mapping[str, Any]
) -> None:
    """Raise RequestError if the client's text digest differs from the text of its ids here.

    Ids of a release with another tokenizer would continue as a mixture of two texts.
    """
    expected_digest = parameters.get(DIGEST_PARAMETER)
    if expected_digest is None:
        return
    ids = request.token_ids[request.num_input_tokens :].tolist()
    text = text_so_far(table, ids)
    if hashlib.sha256(text.encode()).hexdigest() != expected_digest:
        raise RequestError(
            f"resume_ids: this model's tokenizer decodes these {len(ids)} ids to another text than "
            "the answer has so far; a release with another tokenizer started it. Send the "
            "request without resume_ids, for a new answer."
        )
