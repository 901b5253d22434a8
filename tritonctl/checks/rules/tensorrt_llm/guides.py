# SPDX-License-Identifier: Apache-2.0
"""TC709, TC710: guided decoding by NVIDIA's `tensorrt_llm` model.

Source: https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/guided_decoding.md
and the sources of tritonctl/formats/trtllm_backend.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis.trtllm_model import TrtllmDeployment
from tritonctl.checks.findings import Hit
from tritonctl.checks.rule import error, warning


@warning(
    "TC709 guided-decoding-off",
    summary="guided decoding that is requested and stays off",
    reason="The model loads, and requests with a guide are answered without it or refused.",
    shows="elsewhere",
)
def _guides_off(template: TrtllmDeployment) -> Iterator[Hit]:
    backend = template.text("guided_decoding_backend")
    if backend is None:
        return
    if template.kind == "cpp" and _missing(template, "xgrammar_tokenizer_info_path"):
        yield Hit(
            f"guided decoding by {backend} stays off: the C++ backend reads the tokenizer from "
            "xgrammar_tokenizer_info_path, which is not set",
            "write that file with TensorRT-LLM's examples/generate_xgrammar_tokenizer_info.py "
            "and name it there",
            template.span("guided_decoding_backend"),
        )
    elif template.kind == "python" and backend != "xgrammar":
        yield Hit(
            f"guided decoding stays off: this model supports only xgrammar, not {backend}",
            "set guided_decoding_backend to xgrammar",
            template.span("guided_decoding_backend"),
        )


@error(
    "TC710 guided-decoding-refused",
    summary="guided decoding that the model cannot load with",
    reason="The model fails to load.",
    shows="elsewhere",
)
def _guides_refused(template: TrtllmDeployment) -> Iterator[Hit]:
    backend = template.text("guided_decoding_backend")
    if backend is None:
        return
    span = template.span("guided_decoding_backend")
    if (
        template.kind == "cpp"
        and backend != "xgrammar"
        and template.text("xgrammar_tokenizer_info_path")
    ):
        yield Hit(
            f"guided_decoding_backend is {backend}: the backend tensorrtllm supports only xgrammar",
            "set it to xgrammar",
            span,
        )
    elif (
        template.kind == "python" and backend == "xgrammar" and _missing(template, "tokenizer_dir")
    ):
        yield Hit(
            "guided decoding needs tokenizer_dir here, which is not set",
            "set tokenizer_dir to the folder with the model's tokenizer",
            span,
        )


def _missing(deployment: TrtllmDeployment, key: str) -> bool:
    """Whether a parameter is not set; TC109 reports an unfilled placeholder."""
    return deployment.text(key) is None and not deployment.has_placeholder(key)
