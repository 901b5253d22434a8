# SPDX-License-Identifier: Apache-2.0
"""The part of the project file that says how a checkpoint becomes an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tritonctl.project.base import Positive, Strict


class Target(Strict):
    """The server and the GPU that an engine is made for: rows of builders/compatibility.toml."""

    release: str | None = Field(None, description="Triton image, e.g. '26.07'; newest when absent")
    gpu: str | None = Field(None, description="e.g. H100; gives the compute capability")
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d$")] | None = Field(
        None, description="e.g. '9.0', for a GPU that the table does not list"
    )
    tensorrt: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+(\.\d+)?$")] | None = Field(
        None, description="builder tensorrt: the server's version, e.g. '10.16.1.11'; for its venv"
    )
    world: Literal["engine", "pytorch"] | None = Field(
        None, description="TensorRT-LLM: compiled engine or PyTorch runtime; the release's first"
    )
    image: str | None = Field(
        None, description="container image of the builder, best pinned by digest; the release's own"
    )


class Calibration(Strict):
    """The data that activation ranges are measured on, for precisions that need it."""

    data: Path = Field(
        description="text file (a sample per line), JSON lines (text or text_input) or a folder",
        strict=False,
    )
    samples: Positive = Field(512, description="samples of the data that are used")
    max_seq_len: Positive = Field(512, description="tokens of a sample that count")
    batch_size: Positive = Field(1, description="samples at once; more is faster and takes memory")
    seed: Annotated[int, Field(ge=0)] = Field(1234, description="of the choice of samples")


class Engine(Strict):
    """How the checkpoint becomes an engine."""

    builder: str = Field(description="a folder of builders/, e.g. openvino")
    precision: str = Field(description="one of the builder's precisions, e.g. fp32, int8")
    max_batch_size: Positive = Field(32, description="sequences that the engine processes at once")
    max_input_len: Positive | None = Field(None, description="longest prompt, tokens")
    max_seq_len: Positive | None = Field(None, description="longest prompt plus answer, tokens")
    max_num_tokens: Positive | None = Field(None, description="tokens in one engine step or run")
    max_beam_width: Positive = Field(1, description="beams of a search; 1: sampling and greedy")
    tp_size: Positive = Field(1, description="tensor parallelism, GPUs")
    pp_size: Positive = Field(1, description="pipeline parallelism, GPUs")
    kv_cache_dtype: str | None = Field(None, description="the builder's default when absent")
    runner: Literal["current", "venv", "container"] | None = Field(
        None, description="where the builder runs; its first choice when absent"
    )
    trust_remote_code: bool = Field(False, description="run Python code found in the checkpoint")
    allow_pickle: bool = Field(
        False, description="read weights that are Python pickles, which can run any code"
    )
    target: Target = Field(Target(), description="the server and the GPU it is for")
    calibration: Calibration | None = Field(
        None, description="of precisions that need one; the evaluation's prompts when absent"
    )
    options: dict[str, Any] = Field(
        {}, description="passed to the builder unchanged; by stage if it has several"
    )
