# SPDX-License-Identifier: Apache-2.0
"""Whether the ids of an answer that broke off elsewhere mean the same text here."""

import hashlib
from collections.abc import Mapping
from typing import Any

from textlib.detokenize import text_so_far
from textlib.errors import RequestError
from textlib.request_tensors import GenerationRequest
from textlib.token_bytes import TokenTable

# Beside `resume_ids`: the SHA-256, in hexadecimal digits, of the text that the client has so far.
DIGEST = "resume_text_sha256"


def check_resumed(
    request: GenerationRequest, table: TokenTable, parameters: Mapping[str, Any]
) -> None:
    """Raise RequestError where the client tells its text, and its ids are another one here.

    Ids of a release with another tokenizer would go on as a mixture of two texts.
    """
    told = parameters.get(DIGEST)
    if told is None:
        return
    ids = request.token_ids[request.num_input_tokens :].tolist()
    text = text_so_far(table, ids)
    if hashlib.sha256(text.encode()).hexdigest() != told:
        raise RequestError(
            f"resume_ids: with the tokenizer of this model, these {len(ids)} ids are not the text "
            "that the answer has so far; it began on a release with another tokenizer. Send the "
            "request without resume_ids, for a new answer."
        )
