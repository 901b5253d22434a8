# SPDX-License-Identifier: Apache-2.0
"""The bytes of each token, in the form in which OpenVINO GenAI's guided decoding looks for them.

Its xgrammar reads them from the decoder of a tokenizer in OpenVINO's form. Our pipeline works on
ids and has none, so it gets a decoder that holds the vocabulary and is never run: the bytes are
those with which the text path decodes.
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

from textlib.token_bytes import load_token_bytes, lone_bytes

_MOST_INT32 = 2**31 - 1

# For as long as the process lives: its end would unload the code of nodes that are still there.
_FACTORY = NodeFactory()
_FACTORY.add_extension(str(openvino_tokenizers._ext_path))


def vocabulary(
    tokenizer_json: Path, size: int, *, before: int = 0
) -> openvino_genai.Tokenizer | None:
    """A tokenizer that holds the bytes of the model's `size` ids; None where ids have none alone.

    Special tokens have no bytes: no guide asks for them. before: so many more without any, which
    have the first ids. Raises ConfigurationError.
    """
    known = lone_bytes(load_token_bytes(tokenizer_json, skip_special_tokens=True))
    if known is None:
        return None
    nothing = [b""]
    tokens = [*nothing * before, *known[:size], *nothing * (size - len(known))]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "openvino_detokenizer.xml"
        openvino.save_model(_decoder(tokens), file, compress_to_fp16=False)
        return openvino_genai.Tokenizer(folder)


def _decoder(tokens: Sequence[bytes]) -> Model:
    """Ids INT64[n, m] to texts, in the form in which the library looks for a vocabulary."""
    ids = op.Parameter(Type.i64, PartialShape(["?", "?"]))
    ends = np.cumsum([len(token) for token in tokens], dtype=np.int32)
    begins = np.concatenate([np.zeros(1, np.int32), ends[:-1]]).astype(np.int32)
    joined = np.frombuffer(b"".join(tokens), dtype=np.uint8)
    skipped = opset15.slice(
        _constant([0]), _constant([0]), _constant([_MOST_INT32]), _constant([1])
    )
    strings = [op.Constant(values).output(0) for values in (begins, ends, joined)]
    decoder = _FACTORY.create(
        "VocabDecoder", [opset15.convert(ids, "i32").output(0), *strings, skipped.output(0)]
    )
    *ragged, characters = decoder.outputs()
    joined_rows = _FACTORY.create("FuzeRagged", ragged, {})
    packed = opset15.string_tensor_pack(*joined_rows.outputs(), characters)
    return Model(packed.outputs(), [ids], "detokenizer")


def _constant(values: list[int]) -> Any:
    return op.Constant(np.array(values, dtype=np.int32))
