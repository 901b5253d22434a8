# SPDX-License-Identifier: Apache-2.0
"""TC70x: the parameters of NVIDIA's `tensorrt_llm` model.

Sources: as in tritonctl/formats/trtllm_backend.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tritonctl.checks.analysis.releases import meets_minimum
from tritonctl.checks.analysis.trtllm_model import TrtllmDeployment
from tritonctl.checks.findings import Hit
from tritonctl.checks.rule import advice, error, warning
from tritonctl.errors import suggest
from tritonctl.formats.trtllm_backend import (
    DECODING_MODES,
    DEMANDED_PARAMETERS,
    FORMER_PARAMETERS,
    LOOKAHEAD_PARAMETERS,
    PARAMETERS,
    PARAMETERS_WITH_DEFAULT,
    POLICIES,
    STRATEGIES,
    Parameter,
)

# Release 25.06 with TensorRT-LLM 0.20: the first whose source was read.
_FIRST_DEMANDING_VERSION = "2.59.0"
_MIN_SIMILARITY = 0.8
_WHOLE_NUMBER = re.compile(r"\s*([+-]?\d+)")
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+))")


@error(
    "TC701 batching-strategy",
    summary="a TensorRT-LLM model without a known batching strategy",
    reason="The backend says `Invalid gpt_model_type` and refuses the model.",
    shows="elsewhere",
)
def _strategy(template: TrtllmDeployment) -> Iterator[Hit]:
    key, strategy = "gpt_model_type", template.text("gpt_model_type")
    if strategy is None:
        if template.kind == "cpp" and not template.has_placeholder(key):
            yield Hit(
                "gpt_model_type is missing, and the backend tensorrtllm requires it",
                'add parameters { key: "gpt_model_type" value { string_value: '
                '"inflight_fused_batching" } }',
                template.config.span("backend"),
            )
        return
    strategies = (
        {name.lower() for name in STRATEGIES} if template.kind == "python" else set(STRATEGIES)
    )
    if (strategy.lower() if template.kind == "python" else strategy) not in strategies:
        yield Hit(
            f"unknown gpt_model_type: {strategy}",
            _choice_fix(strategy, STRATEGIES),
            template.span(key),
        )


@advice(
    "TC702 static-batching",
    summary="a TensorRT-LLM model that batches whole requests (V1)",
    reason="Requests wait until the longest response of the previous batch is done. TensorRT-LLM "
    "deprecates V1.",
    shows="elsewhere",
)
def _static(template: TrtllmDeployment) -> Iterator[Hit]:
    if (template.text("gpt_model_type") or "").lower() == "v1":
        yield Hit(
            "V1 runs a batch until its longest response is done; no request joins it meanwhile",
            "use inflight_fused_batching",
            template.span("gpt_model_type"),
        )


@error(
    "TC703 no-engine-path",
    summary="a TensorRT-LLM model that names no engine",
    reason="The backend says `Both encoder and decoder model paths are empty` and refuses the "
    "model.",
    answers=("TensorRT-LLM#2440",),
    shows="elsewhere",
)
def _no_engine(template: TrtllmDeployment) -> Iterator[Hit]:
    keys = ("gpt_model_path", "encoder_model_path")
    if any(template.text(key) or template.has_placeholder(key) for key in keys):
        return
    yield Hit(
        "neither gpt_model_path nor encoder_model_path names an engine",
        "set gpt_model_path to the folder that trtllm-build wrote",
        template.span("gpt_model_path")
        if template.has_parameter(keys[0])
        else template.config.span("backend"),
    )


@error(
    "TC704 parameter-demanded",
    summary="a model of the backend tensorrtllm without a required parameter",
    reason="Most parameters are optional. These have no default: the backend says `Cannot find "
    "parameter with name` and refuses the model (from release 25.06 on).",
    shows="elsewhere",
)
def _demanded_parameters(template: TrtllmDeployment) -> Iterator[Hit]:
    missing = [key for key in DEMANDED_PARAMETERS if not template.has_parameter(key)]
    if template.kind != "cpp" or not missing or not _demands_parameters(template):
        return
    plural = "s" if len(missing) > 1 else ""
    yield Hit(
        f"the parameter{plural} {', '.join(missing)} must be set, even if empty",
        f'add parameters {{ key: "{missing[0]}" value {{ string_value: "" }} }}'
        + (", and the others in the same way" if plural else ""),
        template.config.span("backend"),
    )


def _demands_parameters(deployment: TrtllmDeployment) -> bool:
    """Whether the backend certainly supports guided decoding."""
    version = deployment.repository.target.version
    if version is not None:
        return meets_minimum(version, _FIRST_DEMANDING_VERSION)
    return any(tensor.name == "guided_decoding_guide" for tensor in deployment.config.message.input)


@warning(
    "TC705 parameter-unknown",
    summary="a parameter that the model tensorrt_llm does not read",
    reason="A misspelt parameter is silently ignored, and the default applies.",
    shows="elsewhere",
)
def _unknown_parameters(template: TrtllmDeployment) -> Iterator[Hit]:
    for key in template.config.message.parameters:
        if key in PARAMETERS or key.startswith("TRITON_"):  # those are for Triton's core
            continue
        close = suggest(key, PARAMETERS, cutoff=_MIN_SIMILARITY)
        former = FORMER_PARAMETERS.get(key)
        if not (former or close or template.kind == "cpp"):
            continue
        span = template.config.name_span("parameters", key)
        yield Hit(
            f"the model tensorrt_llm has no parameter {key}"
            + (f": {former}" if former else ", and ignores it"),
            f"did you mean {close}?" if close and not former else "rename or remove it",
            span,
        )


@warning(
    "TC706 parameter-unread",
    summary="a parameter of the model tensorrt_llm whose value cannot be read",
    reason="The backend logs a warning and uses the default.",
    shows="elsewhere",
)
def _unreadable_parameters(template: TrtllmDeployment) -> Iterator[Hit]:
    for key in template.config.message.parameters:
        text, parameter = template.text(key), PARAMETERS_WITH_DEFAULT.get(key)
        if text is None or parameter is None or parameter.fits(text):
            continue
        if template.kind == "python" and parameter.expected_format == "true or false":
            if text.lower() in ("true", "false"):
                continue
            effective = "false"
        else:
            effective = _leading_number(template, text, parameter) or parameter.default
        yield Hit(
            f"{key} is {text}, not {parameter.expected_format}: "
            f"the backend uses {effective} instead",
            f"write {parameter.expected_format}",
            template.span(key),
        )
    if template.kind == "cpp":
        yield from _unreadable_choices(template)


def _leading_number(deployment: TrtllmDeployment, text: str, parameter: Parameter) -> str | None:
    """Return the number at the start of a text, which the C++ backend reads."""
    pattern = {"a whole number": _WHOLE_NUMBER, "a number": _NUMBER}.get(parameter.expected_format)
    match = pattern.match(text) if pattern and deployment.kind == "cpp" else None
    return match[1] if match else None


def _unreadable_choices(deployment: TrtllmDeployment) -> Iterator[Hit]:
    for key, choices, default in (
        ("batch_scheduler_policy", POLICIES, "guaranteed_no_evict"),
        ("decoding_mode", DECODING_MODES, "top_k_top_p or beam_search"),
    ):
        text = deployment.text(key)
        if text is not None and text not in choices:
            yield Hit(
                f"unknown {key}: {text}; the backend uses {default} instead",
                _choice_fix(text, choices),
                deployment.span(key),
            )


@error(
    "TC707 parameter-refused",
    summary="a parameter of the model tensorrt_llm with a value out of its range",
    reason="TensorRT-LLM's executor asserts the range and refuses the model.",
    shows="elsewhere",
)
def _refused_parameters(template: TrtllmDeployment) -> Iterator[Hit]:
    for key, parameter in PARAMETERS.items():
        text, limit = template.text(key), parameter.limit
        if not text or limit is None or not limit.asserted or not parameter.fits(text):
            continue
        # The executor handles whole numbers below 0.
        if not limit.holds(float(text)) and (parameter.kind == "number" or float(text) == 0):
            fix = "remove it"
            if parameter.kind == "number":
                fix = "write a share such as 0.9, or remove it"
            yield Hit(
                f"{key} is {text}: it must be {limit.expected_format}", fix, template.span(key)
            )
    if template.kind == "python":
        yield from _refused_choices(template)


def _refused_choices(deployment: TrtllmDeployment) -> Iterator[Hit]:
    """Report choices that the Python model refuses and the C++ backend replaces."""
    policy, mode = deployment.text("batch_scheduler_policy"), deployment.text("decoding_mode")
    if policy is not None and policy.lower() not in POLICIES:
        message = f"unknown batch_scheduler_policy: {policy}"
        yield Hit(message, _choice_fix(policy, POLICIES), deployment.span("batch_scheduler_policy"))
    if mode is not None and mode not in (*DECODING_MODES, "auto"):
        message = f"unknown decoding_mode: {mode}"
        yield Hit(message, _choice_fix(mode, DECODING_MODES), deployment.span("decoding_mode"))


@error(
    "TC708 lookahead-incomplete",
    summary="lookahead decoding without its window, n-gram and verification set sizes",
    reason="Both runtimes refuse the model.",
    shows="elsewhere",
)
def _lookahead(template: TrtllmDeployment) -> Iterator[Hit]:
    missing = [
        k
        for k in LOOKAHEAD_PARAMETERS
        if template.number(k) is None and not template.has_placeholder(k)
    ]
    if template.text("decoding_mode") != "lookahead" or not missing:
        return
    if template.kind == "python" and len(missing) == len(LOOKAHEAD_PARAMETERS):
        return  # valid: the engine's settings apply
    yield Hit(
        f"decoding_mode is lookahead, and {', '.join(missing)} is not a whole number",
        "set all three to the values that the engine was built with",
        template.span("decoding_mode"),
    )


@warning(
    "TC711 gpu-sets",
    summary="gpu_device_ids whose number of sets differs from the number of instances",
    reason="TensorRT-LLM assigns the sets in turn. With too few sets instances share GPUs; with "
    "too many some stay unused.",
    shows="elsewhere",
)
def _devices(template: TrtllmDeployment) -> Iterator[Hit]:
    text = template.text("gpu_device_ids")
    if (
        template.kind != "cpp"
        or not text
        or not PARAMETERS_WITH_DEFAULT["gpu_device_ids"].fits(text)
    ):
        return
    sets = [gpu_set for gpu_set in text.split(";") if gpu_set.strip()]
    if len(sets) != template.instances:
        yield Hit(
            f"gpu_device_ids has {len(sets)} set{'s' if len(sets) > 1 else ''} of GPUs for "
            f"{template.instances} instance{'s' if template.instances > 1 else ''}: "
            + ("several share one" if len(sets) < template.instances else "the rest stays unused"),
            "write one set per instance, separated by ;",
            template.span("gpu_device_ids"),
        )


def _choice_fix(text: str, choices: tuple[str, ...]) -> str:
    close = suggest(text, choices)
    return f"did you mean {close}?" if close else f"expected one of {', '.join(choices)}"
