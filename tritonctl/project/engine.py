# SPDX-License-Identifier: Apache-2.0
"""The section of the project file for building an engine from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tritonctl.project.base import NotNegativeInteger, Positive, Strict


class Target(Strict):
    """The server and GPU that an engine is built for: rows of builders/compatibility.toml."""

    release: str | None = Field(None, description="Triton image, e.g. '26.07'; newest when absent")
    gpu: str | None = Field(None, description="e.g. H100; gives the compute capability")
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d$")] | None = Field(
        None, description="e.g. '9.0', for a GPU missing from the table"
    )
    tensorrt: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+(\.\d+)?$")] | None = Field(
        None, description="builder tensorrt, runner venv: the server's version, e.g. '10.16.1.11'"
    )
    world: Literal["engine", "pytorch"] | None = Field(
        None, description="TensorRT-LLM: compiled engine or PyTorch runtime; default: the release's"
    )
    image: str | None = Field(
        None, description="container image of the builder, best by digest; default: the release's"
    )


class Calibration(Strict):
    """Data for measuring activation ranges, for precisions that need it."""

    data: Path = Field(
        description="text file (a sample per line), JSON lines (text or text_input) or a folder",
        strict=False,
    )
    samples: Positive = Field(512, description="number of samples used")
    max_seq_len: Positive = Field(512, description="tokens used of each sample")
    batch_size: Positive = Field(1, description="samples per batch; more is faster, needs memory")
    seed: Annotated[int, Field(ge=0)] = Field(1234, description="seed of the sample selection")


class Engine(Strict):
    """The build of an engine from the checkpoint."""

    builder: str = Field(description="a folder of builders/, e.g. openvino")
    precision: str = Field(description="one of the builder's precisions, e.g. fp32, int8")
    max_batch_size: NotNegativeInteger = Field(
        32,
        description="maximum sequences processed in parallel; 0 (task tensors): the graph has no "
        "batch dimension and runs once for each request",
    )
    max_input_len: Positive | None = Field(None, description="maximum prompt, tokens")
    max_seq_len: Positive | None = Field(None, description="maximum prompt plus answer, tokens")
    max_num_tokens: Positive | None = Field(None, description="maximum tokens per step or run")
    max_beam_width: Positive = Field(1, description="maximum beams; 1: sampling and greedy only")
    tp_size: Positive = Field(1, description="tensor parallelism, GPUs")
    pp_size: Positive = Field(1, description="pipeline parallelism, GPUs")
    kv_cache_dtype: str | None = Field(
        None, description="type of the KV cache; the builder's default when absent"
    )
    runner: Literal["current", "venv", "container"] | None = Field(
        None, description="where the builder runs; the builder's first runner when absent"
    )
    trust_remote_code: bool = Field(False, description="run Python code of the checkpoint")
    allow_pickle: bool = Field(
        False, description="read weights from Python pickles, which can run any code"
    )
    target: Target = Field(Target(), description="server and GPU that the engine is built for")
    calibration: Calibration | None = Field(
        None, description="calibration data; the evaluation's prompts when absent"
    )
    options: dict[str, Any] = Field(
        {}, description="options of the builder, by stage if it has several"
    )
