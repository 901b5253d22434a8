# SPDX-License-Identifier: Apache-2.0
"""Small models over TensorRT-LLM for the rules' examples, with engines that are names only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tritonctl.checks.examples.files import ExampleFile

Files = dict[str, str | ExampleFile]

_HEAD = """\
name: "{name}"
backend: "{backend}"
max_batch_size: {batch}
input [
  {{ name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true }},
  {{ name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] reshape {{ shape: [ ] }} }},
  {{ name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] reshape {{ shape: [ ] }} }}
]
output [
  {{ name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] }},
  {{ name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] }},
  {{ name: "context_logits" data_type: {logits} dims: [ -1, -1 ] }}
]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
# What NVIDIA's template asks for; the engine lies in the model's own version folder.
PARAMETERS: Mapping[str, str] = {
    "gpt_model_type": "inflight_fused_batching",
    "gpt_model_path": "/models/m/1/engine",
    "tokenizer_dir": "",
    "xgrammar_tokenizer_info_path": "",
    "guided_decoding_backend": "",
}
_CODE = """\
import tensorrt_llm.bindings.executor as trtllm


class TritonPythonModel:
    def initialize(self, args):
        self.executor = trtllm.Executor("engine", trtllm.ModelType.DECODER_ONLY)

    def execute(self, requests):
        self.answer(requests)
"""


def trtllm_config(
    parameters: Mapping[str, str | None] = {},
    *,
    name: str = "m",
    backend: str = "tensorrtllm",
    batch: int = 4,
    logits: str = "TYPE_FP32",
    more: str = "",
) -> str:
    """A config.pbtxt as of NVIDIA's template; a parameter that is None is left out."""
    head = _HEAD.format(name=name, backend=backend, batch=batch, logits=logits)
    lines = [
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in {**PARAMETERS, **parameters}.items()
        if value is not None
    ]
    return head + more + "".join(lines)


def engine(
    ranks: int = 1, *, version: str | None = None, folder: str = "m/1/engine", **build: Any
) -> Files:
    """An engine folder; `build`: of build_config, or of its plugin_config, or of the mapping."""
    plugins = {"use_paged_context_fmha": True, "remove_input_padding": True, "lora_plugin": None}
    sizes = {"max_batch_size": 8, "max_beam_width": 1, "max_seq_len": 2048, "max_num_tokens": 8192}
    plugins |= {key: build.pop(key) for key in plugins if key in build}
    pretrained = {
        "architecture": "LlamaForCausalLM",
        "logits_dtype": "float32",
        "mapping": {"world_size": ranks, "tp_size": ranks, "pp_size": 1},
    }
    pretrained |= {key: build.pop(key) for key in pretrained if key in build}
    config = {
        **({"version": version} if version else {}),
        "pretrained_config": pretrained,
        "build_config": {**sizes, "kv_cache_type": "PAGED", "plugin_config": plugins, **build},
    }
    files: Files = {f"{folder}/config.json": json.dumps(config)}
    return files | {f"{folder}/rank{rank}.engine": "" for rank in range(ranks)}


def trtllm_model(
    parameters: Mapping[str, str | None] = {},
    engine_files: Files | None = None,
    *,
    name: str = "m",
    **config: Any,
) -> Files:
    """A model of NVIDIA's backend `tensorrtllm`, without an engine that is seen unless given."""
    files: Files = {f"{name}/config.pbtxt": trtllm_config(parameters, name=name, **config)}
    if config.get("backend") == "python":
        files[f"{name}/1/model.py"] = _CODE
    return files | (engine_files or {f"{name}/1/.keep": ""})


_OWN = """\
name: "m"
backend: "python"
max_batch_size: 8
input [ {{ name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] }} ]
output [ {{ name: "token_chunk" data_type: TYPE_INT32 dims: [ -1 ] }} ]
model_transaction_policy {{ decoupled: true }}
{parameters}"""
_OWN_PARAMETERS: Mapping[str, str] = {
    "world": "engine",
    "tensorrt_llm": "1.2.1",
    "tp_size": "1",
    "pp_size": "1",
    "max_num_seqs": "8",
    "max_seq_len": "2048",
    "kv_cache_config": "{}",
}
_OWN_CODE = """\
from trtllmlib.runtime import open_llm


class TritonPythonModel:
    def execute(self, requests):
        self.answer(requests)
"""


def own_model(parameters: Mapping[str, str] = {}, files: Files | None = None) -> Files:
    """A model of tritonctl's trtllm_engine, as far as rules look at it; `files`: its artefact."""
    lines = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{_quoted(value)}" }} }}\n'
        for key, value in {**_OWN_PARAMETERS, **parameters}.items()
    )
    model: Files = {"m/config.pbtxt": _OWN.format(parameters=lines), "m/1/model.py": _OWN_CODE}
    settings = {"m/1/llm_args.json": "{}", "m/1/tokenizer/tokenizer.json": "{}"}
    if files is None:
        files = engine() if parameters.get("world", "engine") == "engine" else _CHECKPOINT
    return model | settings | files if files else model


_CHECKPOINT: Files = {"m/1/checkpoint/config.json": "{}"}


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


_LLMAPI = """\
name: "m"
backend: "python"
max_batch_size: 0
input [ { name: "text_input" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
"""
_LLMAPI_CODE = """\
import json

import triton_python_backend_utils as pb_utils
from tensorrt_llm import LLM


class TritonPythonModel:
    def initialize(self, args):
        arguments = read_arguments()
        self.decoupled = arguments.pop("triton_config")["decoupled"]
        config = json.loads(args["model_config"])
        self.gpus = config["parameters"]["gpu_device_ids"]
        self.llm = LLM(**arguments)

    def execute(self, requests):
        self.answer(requests)
"""
ARGUMENTS = """\
model: TinyLlama/TinyLlama-1.1B-Chat-v1.0
backend: pytorch
tensor_parallel_size: 1
triton_config:
  max_batch_size: 0
  decoupled: False
"""


def llmapi_model(arguments: str = ARGUMENTS, *, more: str = "") -> Files:
    """A model of NVIDIA's llmapi template."""
    return {
        "m/config.pbtxt": _LLMAPI + more,
        "m/1/model.py": _LLMAPI_CODE,
        "m/1/model.yaml": arguments,
    }
