# SPDX-License-Identifier: Apache-2.0
"""Which TensorRT-LLM this is, what it can do, and its LLM made from an artefact.

Two worlds share one API (https://nvidia.github.io/TensorRT-LLM/llm-api/): compiled engines, up to
1.2.1 through `tensorrt_llm._tensorrt_engine.LLM`, and checkpoints in the PyTorch runtime through
`tensorrt_llm.LLM`. The PyTorch runtime's own sampler takes every sampling parameter and ignores
those that it does not implement; what is ignored must be refused here.
"""

import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from textlib.errors import ConfigurationError, RequestError
from textlib.parameters import ModelParameters
from textlib.triton_edge import existing

ENGINE = "engine"
PYTORCH = "pytorch"
WORLDS = (ENGINE, PYTORCH)
GUIDED_BACKENDS = ("", "xgrammar", "llguidance")
_CPP_SAMPLER = "TRTLLMSampler"
# The earliest release of the PyTorch runtime that is sure to have it. The changes were merged in
# the summer of 2026 (pull requests 16052, 16485 and 17172); the releases in between are not known
# one by one, and the earlier ones silently ignore the parameter.
_TORCH_SAMPLER_SINCE = {"bad_words": "1.3.0rc29", "penalties": "1.3.0rc29", "seed": "1.3.0rc29"}
_FINAL = 10_000
_NEMO = ".nemo"


@dataclass(frozen=True, slots=True)
class Runtime:
    """What this TensorRT-LLM, as it is set up, honours.

    seed, penalties, bad_words: the sampler does. log_probs: the logits reach us. guided: guided
    decoding is switched on. adapters: LoRA adapters by name.
    """

    world: str
    version: str
    seed: bool = True
    penalties: bool = True
    bad_words: bool = True
    log_probs: bool = True
    guided: bool = False
    adapters: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        world: str,
        version: str,
        arguments: Mapping[str, Any],
        adapters: Mapping[str, Path] | None = None,
    ) -> "Runtime":
        """The runtime of an LLM with these arguments."""
        complete = world == ENGINE or arguments.get("sampler_type") == _CPP_SAMPLER
        honoured = {
            name: complete or at_least(version, since)
            for name, since in _TORCH_SAMPLER_SINCE.items()
        }
        return cls(
            world,
            version,
            seed=honoured["seed"],
            penalties=honoured["penalties"],
            bad_words=honoured["bad_words"],
            log_probs=world == PYTORCH or bool(arguments.get("gather_generation_logits")),
            guided=bool(arguments.get("guided_decoding_backend")),
            adapters=adapters or {},
        )

    def lora_request(self, name: str) -> Any:
        """TensorRT-LLM's LoRARequest; raises RequestError for an unknown name."""
        if name not in self.adapters:
            known = ", ".join(self.adapters) or "no adapters"
            raise RequestError(f"lora_name is '{name}', the model has {known}.")
        executor = importlib.import_module("tensorrt_llm.executor")
        number = list(self.adapters).index(name) + 1
        path = self.adapters[name]
        nemo = {"lora_ckpt_source": "nemo"} if path.suffix == _NEMO else {}
        return executor.LoRARequest(name, number, str(path), **nemo)


def at_least(version: str, since: str) -> bool:
    """Whether a version of TensorRT-LLM is that one or a later one."""
    return _order(version) >= _order(since)


def _order(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"\d+", version.split("rc", maxsplit=1)[0])]
    candidate = re.search(r"rc(\d+)", version)
    return (*numbers[:3], int(candidate[1]) if candidate else _FINAL)


def open_llm(folder: Path, parameters: ModelParameters) -> tuple[Any, Runtime]:
    """The LLM of a version folder. Raises ConfigurationError; `shutdown` it at the end."""
    world = parameters.choice("world", WORLDS)
    library = _library()
    _check_version(world, library.__version__, parameters.word("tensorrt_llm"))
    adapters = _adapters(folder, parameters)
    arguments = llm_arguments(folder, parameters, adapters)
    runtime = Runtime.of(world, library.__version__, arguments, adapters)
    try:
        return _llm_class(world, library)(**arguments), runtime
    except (ValueError, TypeError, RuntimeError, AssertionError, OSError) as error:
        shown = {key: value for key, value in arguments.items() if key != "model"}
        raise ConfigurationError(
            f"TensorRT-LLM {library.__version__} cannot load {arguments['model']} with {shown}: "
            f"{error}. Build the model again for this version, or correct serving.runtime."
        ) from error


def _library() -> Any:
    try:
        return importlib.import_module("tensorrt_llm")
    except ImportError as error:
        raise ConfigurationError(
            f"tensorrt_llm cannot be imported here: {error}. This model needs a Triton image with "
            "TensorRT-LLM, for example tritonserver:26.07-trtllm-python-py3."
        ) from error


def _check_version(world: str, version: str, built_for: str) -> None:
    # An engine is bound to the very TensorRT that made it; a checkpoint is not.
    if world == ENGINE and built_for and version != built_for:
        raise ConfigurationError(
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
        raise ConfigurationError(
            f"TensorRT-LLM {library.__version__} cannot run compiled engines: the last release "
            "that can is 1.2.1 (Triton 26.07). Serve with that image, or build the model for the "
            "PyTorch runtime."
        ) from error


def llm_arguments(
    folder: Path, parameters: ModelParameters, adapters: Mapping[str, Path]
) -> dict[str, Any]:
    """The keyword arguments of LLM()."""
    engine = parameters.choice("world", WORLDS) == ENGINE
    arguments: dict[str, Any] = _saved_arguments(folder)
    arguments |= {
        "model": str(existing(folder / ("engine" if engine else "checkpoint"))),
        "tensor_parallel_size": parameters.integer("tp_size"),
        "pipeline_parallel_size": parameters.integer("pp_size"),
        "max_batch_size": parameters.integer("max_num_seqs"),
        "max_num_tokens": parameters.integer("max_num_batched_tokens"),
        "kv_cache_config": _kv_cache_config(arguments, parameters),
    }
    if engine:
        arguments["gather_generation_logits"] = parameters.boolean("gather_generation_logits")
    else:
        # An id per response; statistics are off there unless asked for.
        arguments |= {"stream_interval": 1, "enable_iter_perf_stats": True}
        arguments["max_seq_len"] = parameters.integer("max_seq_len")
    if arguments.get("speculative_config"):
        arguments["speculative_config"] = _speculation(arguments["speculative_config"])
    if adapters:
        arguments |= _lora_arguments(arguments, adapters, engine=engine)
    return arguments | _tokenizer_arguments(folder, parameters)


def _saved_arguments(folder: Path) -> dict[str, Any]:
    file = existing(folder / "llm_args.json")
    try:
        arguments = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(
            f"{file} is not JSON: {error}. Build the model again with `tritonctl build --force`."
        ) from error
    if not isinstance(arguments, dict):
        raise ConfigurationError(f"{file} holds no JSON object. Build the model again.")
    return arguments


def _kv_cache_config(arguments: Mapping[str, Any], parameters: ModelParameters) -> Any:
    llmapi = importlib.import_module("tensorrt_llm.llmapi")
    settings = {**arguments.get("kv_cache_config", {}), **parameters.record("kv_cache_config")}
    if parameters.word("world") == ENGINE and settings.get("dtype", "auto") != "auto":
        raise ConfigurationError(
            f"kv_cache_config.dtype is {settings['dtype']}, but an engine's was fixed when it was "
            "compiled. Leave it out of serving.runtime; engine.kv_cache_dtype is for the builder."
        )
    try:
        return llmapi.KvCacheConfig(**settings)
    except (TypeError, ValueError) as error:  # pydantic's error is a ValueError
        raise ConfigurationError(
            f"TensorRT-LLM refuses the KV cache settings {settings}: {error}. "
            "Correct serving.runtime.kv_cache_config."
        ) from error


def _speculation(settings: Mapping[str, Any]) -> Any:
    """As LLM() takes it: 1.3 reads the kind itself, earlier ones want an object of its class."""
    llm_args = importlib.import_module("tensorrt_llm.llmapi.llm_args")
    make = getattr(llm_args.DecodingBaseConfig, "from_dict", None)
    if make is None:
        return settings
    try:
        return make(dict(settings))  # it takes the kind out
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigurationError(
            f"TensorRT-LLM refuses the speculative decoding {dict(settings)}: {error}. "
            "Correct engine.options.package.speculative_config and run `tritonctl build`."
        ) from error


def _adapters(folder: Path, parameters: ModelParameters) -> dict[str, Path]:
    declared = parameters.record("lora_adapters")
    return {name: existing(folder / path) for name, path in sorted(declared.items())}


def _lora_arguments(
    arguments: Mapping[str, Any], adapters: Mapping[str, Path], *, engine: bool
) -> dict[str, Any]:
    if engine:  # modules and rank were fixed when it was compiled
        return {"enable_lora": True}
    helper = importlib.import_module("tensorrt_llm.lora_helper")
    folders = [str(path) for path in adapters.values()]
    settings = {**(arguments.get("lora_config") or {}), "lora_dir": folders}
    try:
        return {"enable_lora": True, "lora_config": helper.LoraConfig(**settings)}
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigurationError(
            f"TensorRT-LLM refuses the LoRA settings {settings}: {error}. "
            "Correct engine.options.package.lora_config and run `tritonctl build`."
        ) from error


def _tokenizer_arguments(folder: Path, parameters: ModelParameters) -> dict[str, Any]:
    """Ids come in and go out; only a grammar has to know what they spell."""
    guided = parameters.choice("guided_decoding_backend", GUIDED_BACKENDS)
    if not guided:
        return {"skip_tokenizer_init": True}
    return {"tokenizer": str(existing(folder / "tokenizer")), "guided_decoding_backend": guided}
