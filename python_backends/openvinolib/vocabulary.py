# SPDX-License-Identifier: Apache-2.0
"""The bytes of each token, in the form that OpenVINO GenAI's guided decoding reads.

xgrammar reads them from the decoder of a tokenizer in OpenVINO's form. Our pipeline works on ids
without a tokenizer, so it gets a decoder that contains the vocabulary and never runs. The bytes are
the ones with which the text path decodes.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
import openvino_tokenizers
from openvino import Model, PartialShape, Type, op, opset15
from openvino.utils.node_factory import NodeFactory

from textlib.tokens.token_bytes import bytes_per_id, load_token_bytes

_MAX_INT32 = 2**31 - 1

# Kept for the life of the process: destroying it would unload the code of existing nodes.
_FACTORY = NodeFactory()
_FACTORY.add_extension(str(openvino_tokenizers._ext_path))


def vocabulary_tokenizer(
    tokenizer_json: Path, size: int, *, leading_ids: int = 0
) -> openvino_genai.Tokenizer | None:
    """Create a tokenizer with the bytes of the model's `size` ids.

    None if the bytes of ids depend on their neighbours. Special tokens have no bytes: no guide
    contains them. leading_ids: number of ids without bytes to insert in front. Raises
    ModelConfigurationError.
    """
    token_bytes = bytes_per_id(load_token_bytes(tokenizer_json, skip_special_tokens=True))
    if token_bytes is None:
        return None
    empty = [b""]
    tokens = [*empty * leading_ids, *token_bytes[:size], *empty * (size - len(token_bytes))]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "openvino_detokenizer.xml"
        openvino.save_model(_decoder(tokens), file, compress_to_fp16=False)
        return openvino_genai.Tokenizer(folder)


def _decoder(tokens: Sequence[bytes]) -> Model:
    """Create the decoder from ids INT64[n, m] to texts in which the library finds a vocabulary."""
    ids = op.Parameter(Type.i64, PartialShape(["?", "?"]))
    end_offsets = np.cumsum([len(token) for token in tokens], dtype=np.int32)
    start_offsets = np.concatenate([np.zeros(1, np.int32), end_offsets[:-1]]).astype(np.int32)
    joined = np.frombuffer(b"".join(tokens), dtype=np.uint8)
    skipped = opset15.slice(_constant([0]), _constant([0]), _constant([_MAX_INT32]), _constant([1]))
    strings = [op.Constant(values).output(0) for values in (start_offsets, end_offsets, joined)]
    decoder = _FACTORY.create(
        "VocabDecoder", [opset15.convert(ids, "i32").output(0), *strings, skipped.output(0)]
    )
    *ragged, characters = decoder.outputs()
    joined_rows = _FACTORY.create("FuzeRagged", ragged, {})
    packed = opset15.string_tensor_pack(*joined_rows.outputs(), characters)
    return Model(packed.outputs(), [ids], "detokenizer")


def _constant(values: list[int]) -> Any:
    return op.Constant(np.array(values, dtype=np.int32))
