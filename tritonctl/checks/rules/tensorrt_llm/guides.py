# SPDX-License-Identifier: Apache-2.0
"""TC709, TC710: guided decoding by NVIDIA's `tensorrt_llm` model.

Source: https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/guided_decoding.md
and the sources of tritonctl/checks/analysis/trtllm_parameters.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis.trtllm_model import Deployment, of_template
from tritonctl.checks.findings import Hit
from tritonctl.checks.rule import rule


@rule(
    "TC709",
    "guided-decoding-off",
    "warning",
    summary="guided decoding that is asked for and stays off",
    why="The model loads, and requests with a guide are answered without it or refused.",
    shows="elsewhere",
)
@of_template
def _guides_off(found: Deployment) -> Iterator[Hit]:
    asked = found.text("guided_decoding_backend")
    if asked is None:
        return
    if found.kind == "cpp" and _missing(found, "xgrammar_tokenizer_info_path"):
        yield Hit(
            f"guided decoding by {asked} stays off: the C++ backend reads the tokenizer from "
            "xgrammar_tokenizer_info_path, which is not given",
            "write that file with TensorRT-LLM's examples/generate_xgrammar_tokenizer_info.py "
            "and name it there",
            found.span("guided_decoding_backend"),
        )
    elif found.kind == "python" and asked != "xgrammar":
        yield Hit(
            f"guided decoding stays off: this model knows xgrammar alone, not {asked}",
            "set guided_decoding_backend to xgrammar",
            found.span("guided_decoding_backend"),
        )


@rule(
    "TC710",
    "guided-decoding-refused",
    "error",
    summary="guided decoding that the model cannot be set up with",
    why="The model is refused when it loads.",
    shows="elsewhere",
)
@of_template
def _guides_refused(found: Deployment) -> Iterator[Hit]:
    asked = found.text("guided_decoding_backend")
    if asked is None:
        return
    place = found.span("guided_decoding_backend")
    if found.kind == "cpp" and asked != "xgrammar" and found.text("xgrammar_tokenizer_info_path"):
        yield Hit(
            f"guided_decoding_backend is {asked}: the backend tensorrtllm knows xgrammar alone",
            "set it to xgrammar",
            place,
        )
    elif found.kind == "python" and asked == "xgrammar" and _missing(found, "tokenizer_dir"):
        yield Hit(
            "guided decoding needs tokenizer_dir here, which is not given",
            "set tokenizer_dir to the folder with the model's tokenizer",
            place,
        )


def _missing(found: Deployment, key: str) -> bool:
    """Whether it is not given; an unfilled placeholder has a finding of its own."""
    return found.text(key) is None and not found.unfilled(key)
