# SPDX-License-Identifier: Apache-2.0
"""Open the LLM of an artefact, and describe what this TensorRT-LLM supports.

Two worlds share one API (https://nvidia.github.io/TensorRT-LLM/llm-api/): compiled engines, up to
1.2.1 through `tensorrt_llm._tensorrt_engine.LLM`, and checkpoints in the PyTorch runtime through
`tensorrt_llm.LLM`. The PyTorch runtime's sampler accepts every sampling parameter and ignores those
that it does not implement; this package rejects these.
"""

import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from textlib.errors import ModelConfigurationError, RequestError
from textlib.triton.edge import require_path
from textlib.triton.parameters import ModelParameters

ENGINE = "engine"
PYTORCH = "pytorch"
WORLDS = (ENGINE, PYTORCH)
GUIDED_BACKENDS = ("", "xgrammar", "llguidance")
_CPP_SAMPLER = "TRTLLMSampler"
# The earliest release of the PyTorch runtime that certainly supports the parameter; earlier ones
# silently ignore it. The changes were merged in the summer of 2026 (pull requests 16052, 16485,
# 16590 and 17172); the releases in between were not checked one by one.
_TORCH_SAMPLER_SINCE = dict.fromkeys(("bad_words", "min_p", "penalties", "seed"), "1.3.0rc29")
_FINAL = 10_000
_NEMO = ".nemo"


@dataclass(frozen=True, slots=True)
class TrtllmRuntime:
    """The features of this TensorRT-LLM in its current configuration."""

    world: str
    version: str
    seed: bool = True  # the sampler supports it
    min_p: bool = True  # the sampler supports it
    penalties: bool = True  # the sampler supports them
    bad_words: bool = True  # the sampler supports them
    log_probs: bool = True  # the runtime returns logits
    guided: bool = False  # guided decoding is enabled
    adapters: Mapping[str, Path] = field(default_factory=dict)  # LoRA adapters by name

    @classmethod
    def from_arguments(
        cls,
        world: str,
        version: str,
        arguments: Mapping[str, Any],
        adapters: Mapping[str, Path] | None = None,
    ) -> "TrtllmRuntime":
        """Describe the runtime of an LLM with these arguments."""
        complete = world == ENGINE or arguments.get("sampler_type") == _CPP_SAMPLER
        honoured = {
            name: complete or is_same_or_later(version, since)
            for name, since in _TORCH_SAMPLER_SINCE.items()
        }
        return cls(
            world,
            version,
            seed=honoured["seed"],
            min_p=honoured["min_p"],
            penalties=honoured["penalties"],
            bad_words=honoured["bad_words"],
            log_probs=world == PYTORCH or bool(arguments.get("gather_generation_logits")),
            guided=bool(arguments.get("guided_decoding_backend")),
            adapters=adapters or {},
        )

    def lora_request(self, name: str) -> Any:
        """Create TensorRT-LLM's LoRARequest; raises RequestError for an unknown name."""
        if name not in self.adapters:
            adapter_names = ", ".join(self.adapters) or "no adapters"
            raise RequestError(f"lora_name is '{name}', the model has {adapter_names}.")
        executor = importlib.import_module("tensorrt_llm.executor")
        number = list(self.adapters).index(name) + 1
        path = self.adapters[name]
        nemo = {"lora_ckpt_source": "nemo"} if path.suffix == _NEMO else {}
        return executor.LoRARequest(name, number, str(path), **nemo)


def is_same_or_later(version: str, since: str) -> bool:
    """Whether a version of TensorRT-LLM is `since` or a later one."""
    return _sort_key(version) >= _sort_key(since)


def _sort_key(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"\d+", version.split("rc", maxsplit=1)[0])]
    candidate = re.search(r"rc(\d+)", version)
    return (*numbers[:3], int(candidate[1]) if candidate else _FINAL)


def open_llm(folder: Path, parameters: ModelParameters) -> tuple[Any, TrtllmRuntime]:
    """Open the LLM of a version folder. The caller shuts it down.

    Raises ModelConfigurationError.
    """
    world = parameters.choice("world", WORLDS)
    library = _library()
    _check_version(world, library.__version__, parameters.text("tensorrt_llm"))
    adapters = _adapters(folder, parameters)
    arguments = llm_arguments(folder, parameters, adapters)
    runtime = TrtllmRuntime.from_arguments(world, library.__version__, arguments, adapters)
    try:
        return _llm_class(world, library)(**arguments), runtime
    except (ValueError, TypeError, RuntimeError, AssertionError, OSError) as error:
        displayed = {key: value for key, value in arguments.items() if key != "model"}
        raise ModelConfigurationError(
            f"TensorRT-LLM {library.__version__} cannot load {arguments['model']} with "
            f"{displayed}: {error}. Build the model again for this version, or correct "
            "serving.runtime."
        ) from error


def _library() -> Any:
    try:
        return importlib.import_module("tensorrt_llm")
    except ImportError as error:
        raise ModelConfigurationError(
            f"tensorrt_llm cannot be imported here: {error}. This model needs a Triton image with "
            "TensorRT-LLM, for example tritonserver:26.07-trtllm-python-py3."
        ) from error


def _check_version(world: str, version: str, built_for: str) -> None:
    # An engine requires the TensorRT version that compiled it; a checkpoint does not.
    if world == ENGINE and built_for and version != built_for:
        raise ModelConfigurationError(
            f"the engine was compiled by TensorRT-LLM {built_for}, this is {version}, and engines "
            "do not load across versions. Serve it with the image it was built for, or set "
            "engine.target.release to this server's release and run `tritonctl build`."
        )


def _llm_class(world: str, library: Any) -> Any:
    if world == PYTORCH:
        return library.LLM
    try:
        return importlib.import_module("tensorrt_llm._tensorrt_engine").LLM
    except ImportError as error:
        raise ModelConfigurationError(
            f"TensorRT-LLM {library.__version__} cannot run compiled engines: the last release "
            "that can is 1.2.1 (Triton 26.07). Serve with that image, or build the model for the "
            "PyTorch runtime."
        ) from error


def llm_arguments(
    folder: Path, parameters: ModelParameters, adapters: Mapping[str, Path]
) -> dict[str, Any]:
    """Return the keyword arguments of LLM()."""
    engine = parameters.choice("world", WORLDS) == ENGINE
    arguments: dict[str, Any] = _saved_arguments(folder)
    arguments |= {
        "model": str(require_path(folder / ("engine" if engine else "checkpoint"))),
        "tensor_parallel_size": parameters.integer("tp_size"),
        "pipeline_parallel_size": parameters.integer("pp_size"),
        "max_batch_size": parameters.integer("max_num_seqs"),
        "max_num_tokens": parameters.integer("max_num_batched_tokens"),
        "kv_cache_config": _kv_cache_config(arguments, parameters),
    }
    if engine:
        arguments["gather_generation_logits"] = parameters.boolean("gather_generation_logits")
    else:
        # One id per response; this runtime disables statistics by default.
        arguments |= {"stream_interval": 1, "enable_iter_perf_stats": True}
        arguments["max_seq_len"] = parameters.integer("max_seq_len")
    if arguments.get("speculative_config"):
        arguments["speculative_config"] = _speculation(arguments["speculative_config"])
    if adapters:
        arguments |= _lora_arguments(arguments, adapters, engine=engine)
    return arguments | _tokenizer_arguments(folder, parameters)


def _saved_arguments(folder: Path) -> dict[str, Any]:
    file = require_path(folder / "llm_args.json")
    try:
        arguments = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelConfigurationError(
            f"{file} is not JSON: {error}. Build the model again with `tritonctl build --force`."
        ) from error
    if not isinstance(arguments, dict):
        raise ModelConfigurationError(f"{file} is not a JSON object. Build the model again.")
    return arguments


def _kv_cache_config(arguments: Mapping[str, Any], parameters: ModelParameters) -> Any:
    llmapi = importlib.import_module("tensorrt_llm.llmapi")
    settings = {**arguments.get("kv_cache_config", {}), **parameters.json_object("kv_cache_config")}
    if parameters.text("world") == ENGINE and settings.get("dtype", "auto") != "auto":
        raise ModelConfigurationError(
            f"kv_cache_config.dtype is {settings['dtype']}, but compiling fixes an engine's dtype. "
            "Leave it out of serving.runtime; engine.kv_cache_dtype is for the builder."
        )
    try:
        return llmapi.KvCacheConfig(**settings)
    except (TypeError, ValueError) as error:  # pydantic's error is a ValueError
        raise ModelConfigurationError(
            f"TensorRT-LLM rejects the KV cache settings {settings}: {error}. "
            "Correct serving.runtime.kv_cache_config."
        ) from error


def _speculation(settings: Mapping[str, Any]) -> Any:
    """Convert the settings for LLM(): 1.3 reads a mapping, earlier releases need an object."""
    llm_args = importlib.import_module("tensorrt_llm.llmapi.llm_args")
    make = getattr(llm_args.DecodingBaseConfig, "from_dict", None)
    if make is None:
        return settings
    try:
        return make(dict(settings))  # from_dict removes the kind
    except (TypeError, ValueError, AssertionError) as error:
        raise ModelConfigurationError(
            f"TensorRT-LLM rejects the speculative decoding {dict(settings)}: {error}. "
            "Correct engine.options.package.speculative_config and run `tritonctl build`."
        ) from error


def _adapters(folder: Path, parameters: ModelParameters) -> dict[str, Path]:
    declared = parameters.json_object("lora_adapters")
    return {name: require_path(folder / path) for name, path in sorted(declared.items())}


def _lora_arguments(
    arguments: Mapping[str, Any], adapters: Mapping[str, Path], *, engine: bool
) -> dict[str, Any]:
    if engine:  # compiling fixes modules and rank
        return {"enable_lora": True}
    # Its own module moved from tensorrt_llm.lora_helper to tensorrt_llm._torch.peft.lora.config in
    # 1.3; llm_args imports it in every release.
    llm_args = importlib.import_module("tensorrt_llm.llmapi.llm_args")
    folders = [str(path) for path in adapters.values()]
    settings = {**(arguments.get("lora_config") or {}), "lora_dir": folders}
    try:
        return {"enable_lora": True, "lora_config": llm_args.LoraConfig(**settings)}
    except (TypeError, ValueError, AssertionError) as error:
        raise ModelConfigurationError(
            f"TensorRT-LLM rejects the LoRA settings {settings}: {error}. "
            "Correct engine.options.package.lora_config and run `tritonctl build`."
        ) from error


def _tokenizer_arguments(folder: Path, parameters: ModelParameters) -> dict[str, Any]:
    """Return the tokenizer arguments: only guided decoding needs a tokenizer."""
    guided = parameters.choice("guided_decoding_backend", GUIDED_BACKENDS)
    if not guided:
        return {"skip_tokenizer_init": True}
    return {"tokenizer": str(require_path(folder / "tokenizer")), "guided_decoding_backend": guided}
