# SPDX-License-Identifier: Apache-2.0
"""The process that tests guides: `python -m openvinolib.guide_compiler`.

OpenVINO GenAI has no call that only compiles a guide. So a trivial model with the real vocabulary
generates an answer, which runs the same compiler. The answer is as long as the guide allows, up to
ANSWER_TOKENS: an ambiguous guide compiles at once, and then each token costs more than the one
before, while every stream of the engine waits.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from openvino import Model, PartialShape, Type, op, opset15

from openvinolib.guides import structured_output_config
from openvinolib.vocabulary import vocabulary_tokenizer
from textlib.engine.guide_worker import CompileGuide, main
from textlib.errors import ModelConfigurationError
from textlib.triton.request_tensors import GuideSpec

_PROMPT = openvino.Tensor(np.zeros((1, 1), dtype=np.int64))
ANSWER_TOKENS = 128
# The first part repeats one text, the rest changes with each token: either may be the costly one.
_REPEATED_TOKENS = ANSWER_TOKENS // 2
_RADIANS_PER_TOKEN = 78.233  # far from a fraction of a turn
# Ids without text come last, end ids before them: a preference is between -1 and 1.
_WITHOUT_TEXT, _END = -8.0, -4.0


def load(setup: Mapping[str, Any]) -> CompileGuide:
    """Return the function that compiles a guide.

    setup: tokenizer, vocab_size and end_ids of the engine's model. Ids are shifted by one here: id
    0 has no text, and is chosen if the guide allows no other.
    """
    size: int = setup["vocab_size"] + 1
    tokens = vocabulary_tokenizer(Path(setup["tokenizer"]), size - 1, leading_ids=1)
    if tokens is None:
        raise ModelConfigurationError(
            "the text of this tokenizer's tokens depends on their neighbours"
        )
    end_ids = {token + 1 for token in setup["end_ids"]}
    with tempfile.TemporaryDirectory() as folder:
        openvino.save_model(_model(size, end_ids), Path(folder) / "openvino_model.xml")
        Path(folder, "config.json").write_text(json.dumps({"vocab_size": size}), encoding="utf-8")
        pipeline = openvino_genai.LLMPipeline(folder, tokens, "CPU", ATTENTION_BACKEND="SDPA")
    config = openvino_genai.GenerationConfig(max_new_tokens=ANSWER_TOKENS)
    config.set_eos_token_id(min(end_ids))
    config.stop_token_ids = end_ids

    def compile_guide(guide: GuideSpec) -> None:
        config.structured_output_config = structured_output_config(guide)
        if pipeline.generate(_PROMPT, config).tokens[0][0] == 0:
            raise ValueError("no text matches it")

    compile_guide(GuideSpec("json"))  # the first guide has additional costs
    return compile_guide


def _model(size: int, end_ids: set[int]) -> Model:
    """Create a model with logits FP32[1, n, size] for ids INT64[1, n].

    They depend only on the number of tokens so far.
    """
    names = {"input_ids": Type.i64, "attention_mask": Type.i64}
    inputs = [_input(name, kind, ["?", "?"]) for name, kind in names.items()]
    beams = _input("beam_idx", Type.i32, ["?"])
    # The pipeline finds only inputs that the graph uses.
    zero = _float(0.0)
    rows = opset15.multiply(opset15.convert(inputs[0], "f32"), zero)
    unused = opset15.multiply(_sum(beams), zero)
    length = opset15.add(_sum(inputs[1]), unused)
    changes = opset15.maximum(opset15.subtract(length, _float(_REPEATED_TOKENS)), zero)
    angles = opset15.multiply(changes, _float(_RADIANS_PER_TOKEN))
    phases = np.random.default_rng(0).uniform(0, 2 * np.pi, (1, 1, size)).astype(np.float32)
    ranks = np.zeros((1, 1, size), dtype=np.float32)
    ranks[..., sorted(end_ids)] = _END
    ranks[..., 0] = _WITHOUT_TEXT
    preferences = opset15.sin(opset15.add(op.Constant(phases), angles))
    logits = opset15.add(preferences, op.Constant(ranks))
    every_row = opset15.add(opset15.unsqueeze(rows, _constant([2])), logits)
    result = opset15.result(every_row)
    result.output(0).set_names({"logits"})
    return Model([result], [*inputs, beams], "nothing")


def _sum(parameter: op.Parameter) -> Any:
    axes = list(range(len(parameter.get_partial_shape())))
    return opset15.reduce_sum(opset15.convert(parameter, "f32"), _constant(axes))


def _input(name: str, kind: Type, shape: list[str]) -> op.Parameter:
    parameter = op.Parameter(kind, PartialShape(shape))
    parameter.output(0).set_names({name})
    return parameter


def _constant(values: list[int]) -> op.Constant:
    return op.Constant(np.array(values, dtype=np.int64))


def _float(value: float) -> op.Constant:
    return op.Constant(np.array(value, dtype=np.float32))


if __name__ == "__main__":
    main(load)
