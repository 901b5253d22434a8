# SPDX-License-Identifier: Apache-2.0
"""TC70x: the parameters of NVIDIA's `tensorrt_llm` model, by themselves.

Sources: as in tritonctl/formats/trtllm_backend.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tritonctl.checks.analysis.releases import reaches
from tritonctl.checks.analysis.trtllm_model import Deployment
from tritonctl.checks.findings import Edit, Hit
from tritonctl.checks.rule import advice, error, warning
from tritonctl.errors import suggest
from tritonctl.formats.trtllm_backend import (
    DECODING_MODES,
    DEMANDED,
    FORMER,
    LOOKAHEAD,
    PARAMETERS,
    POLICIES,
    READ,
    STRATEGIES,
    Parameter,
)

# Triton of release 25.06, with TensorRT-LLM 0.20: the first whose source was read.
_DEMANDING = "2.59.0"
_CLOSE = 0.8
_WHOLE = re.compile(r"\s*([+-]?\d+)")
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+))")


@error(
    "TC701 batching-strategy",
    summary="a TensorRT-LLM model without a known batching strategy",
    why="The backend says `Invalid gpt_model_type` and refuses the model.",
)
def _strategy(template: Deployment) -> Iterator[Hit]:
    key, given = "gpt_model_type", template.text("gpt_model_type")
    if given is None:
        if template.kind == "cpp" and not template.unfilled(key):
            yield Hit(
                "gpt_model_type is missing, and the backend tensorrtllm requires it",
                'add parameters { key: "gpt_model_type" value { string_value: '
                '"inflight_fused_batching" } }',
                template.config.span("backend"),
            )
        return
    known = {name.lower() for name in STRATEGIES} if template.kind == "python" else set(STRATEGIES)
    if (given.lower() if template.kind == "python" else given) not in known:
        yield Hit(
            f"unknown gpt_model_type: {given}",
            _nearest(given, STRATEGIES),
            template.span(key),
        )


@advice(
    "TC702 static-batching",
    summary="a TensorRT-LLM model that batches whole requests (V1)",
    why="Requests wait until the longest answer of the batch before is done; TensorRT-LLM "
    "calls V1 deprecated.",
)
def _static(template: Deployment) -> Iterator[Hit]:
    if (template.text("gpt_model_type") or "").lower() == "v1":
        yield Hit(
            "V1 runs a batch until its longest answer is done; nothing joins it meanwhile",
            "use inflight_fused_batching",
            template.span("gpt_model_type"),
        )


@error(
    "TC703 no-engine-path",
    summary="a TensorRT-LLM model that names no engine",
    why="The backend says `Both encoder and decoder model paths are empty` and refuses the model.",
    answers=("TensorRT-LLM#2440",),
)
def _no_engine(template: Deployment) -> Iterator[Hit]:
    keys = ("gpt_model_path", "encoder_model_path")
    if any(template.text(key) or template.unfilled(key) for key in keys):
        return
    yield Hit(
        "neither gpt_model_path nor encoder_model_path names an engine",
        "set gpt_model_path to the folder that trtllm-build wrote",
        template.span("gpt_model_path")
        if template.given(keys[0])
        else template.config.span("backend"),
    )


@error(
    "TC704 parameter-demanded",
    summary="a model of the backend tensorrtllm without a parameter that it demands",
    why="Almost all of its parameters may be left out; these it looks up without a default, "
    "says `Cannot find parameter with name` and refuses the model (from release 25.06 on).",
)
def _demanded(template: Deployment) -> Iterator[Hit]:
    missing = [key for key in DEMANDED if not template.given(key)]
    if template.kind != "cpp" or not missing or not _recent(template):
        return
    several = "s" if len(missing) > 1 else ""
    yield Hit(
        f"the parameter{several} {', '.join(missing)} must be given, even if empty",
        f'add parameters {{ key: "{missing[0]}" value {{ string_value: "" }} }}'
        + (", and the others in the same way" if several else ""),
        template.config.span("backend"),
    )


def _recent(deployment: Deployment) -> bool:
    """Whether the backend certainly supports guided decoding."""
    version = deployment.repository.target.version
    if version is not None:
        return reaches(version, _DEMANDING)
    return any(tensor.name == "guided_decoding_guide" for tensor in deployment.config.message.input)


@warning(
    "TC705 parameter-unknown",
    summary="a parameter that the model tensorrt_llm does not read",
    why="A misspelt parameter is silently ignored, and the default applies.",
)
def _unknown(template: Deployment) -> Iterator[Hit]:
    for key in template.config.message.parameters:
        if key in PARAMETERS or key.startswith("TRITON_"):  # those are for Triton's core
            continue
        close = suggest(key, PARAMETERS, likeness=_CLOSE)
        former = FORMER.get(key)
        if not (former or close or template.kind == "cpp"):
            continue
        span = template.config.name_span("parameters", key)
        yield Hit(
            f"the model tensorrt_llm has no parameter {key}"
            + (f": {former}" if former else ", and ignores it"),
            f"did you mean {close}?" if close and not former else "rename or remove it",
            span,
            edits=(Edit(span, f'"{close}"'),) if close and not former else (),
        )


@warning(
    "TC706 parameter-unread",
    summary="a parameter of the model tensorrt_llm whose value cannot be read",
    why="The backend writes a warning into its log and goes on with the default.",
)
def _unread(template: Deployment) -> Iterator[Hit]:
    for key in template.config.message.parameters:
        text, wanted = template.text(key), READ.get(key)
        if text is None or wanted is None or wanted.fits(text):
            continue
        if template.kind == "python" and wanted.words == "true or false":
            if text.lower() in ("true", "false"):
                continue
            taken = "false"
        else:
            taken = _beginning(template, text, wanted) or wanted.default
        yield Hit(
            f"{key} is {text}, not {wanted.words}: the backend uses {taken} instead",
            f"write {wanted.words}",
            template.span(key),
        )
    if template.kind == "cpp":
        yield from _unread_choices(template)


def _beginning(deployment: Deployment, text: str, wanted: Parameter) -> str | None:
    """The number that a text begins with, which is enough for C++."""
    pattern = {"a whole number": _WHOLE, "a number": _NUMBER}.get(wanted.words)
    match = pattern.match(text) if pattern and deployment.kind == "cpp" else None
    return match[1] if match else None


def _unread_choices(deployment: Deployment) -> Iterator[Hit]:
    for key, choices, default in (
        ("batch_scheduler_policy", POLICIES, "guaranteed_no_evict"),
        ("decoding_mode", DECODING_MODES, "top_k_top_p or beam_search"),
    ):
        text = deployment.text(key)
        if text is not None and text not in choices:
            yield Hit(
                f"unknown {key}: {text}; the backend uses {default} instead",
                _nearest(text, choices),
                deployment.span(key),
            )


@error(
    "TC707 parameter-refused",
    summary="a parameter of the model tensorrt_llm with a value out of its range",
    why="TensorRT-LLM's executor asserts it and the model is refused.",
)
def _refused(template: Deployment) -> Iterator[Hit]:
    for key, parameter in PARAMETERS.items():
        text, limit = template.text(key), parameter.limit
        if not text or limit is None or not limit.asserted or not parameter.fits(text):
            continue
        # Below 0, what stands for a whole number is left to the executor.
        if not limit.holds(float(text)) and (parameter.kind == "number" or float(text) == 0):
            fix = "leave it out"
            if parameter.kind == "number":
                fix = "give a share such as 0.9, or leave it out"
            yield Hit(f"{key} is {text}: it must be {limit.words}", fix, template.span(key))
    if template.kind == "python":
        yield from _refused_choices(template)


def _refused_choices(deployment: Deployment) -> Iterator[Hit]:
    """The Python model raises where the C++ backend shrugs."""
    policy, mode = deployment.text("batch_scheduler_policy"), deployment.text("decoding_mode")
    if policy is not None and policy.lower() not in POLICIES:
        message = f"unknown batch_scheduler_policy: {policy}"
        yield Hit(message, _nearest(policy, POLICIES), deployment.span("batch_scheduler_policy"))
    if mode is not None and mode not in (*DECODING_MODES, "auto"):
        message = f"unknown decoding_mode: {mode}"
        yield Hit(message, _nearest(mode, DECODING_MODES), deployment.span("decoding_mode"))


@error(
    "TC708 lookahead-incomplete",
    summary="lookahead decoding without its window, n-gram and verification set sizes",
    why="Both runtimes refuse the model.",
)
def _lookahead(template: Deployment) -> Iterator[Hit]:
    missing = [k for k in LOOKAHEAD if template.number(k) is None and not template.unfilled(k)]
    if template.text("decoding_mode") != "lookahead" or not missing:
        return
    if template.kind == "python" and len(missing) == len(LOOKAHEAD):
        return  # allowed there: the engine decides
    yield Hit(
        f"decoding_mode is lookahead, and {', '.join(missing)} is not given as a whole number",
        "give all three, as the engine was built with",
        template.span("decoding_mode"),
    )


@warning(
    "TC711 gpu-sets",
    summary="gpu_device_ids with another number of sets than there are instances",
    why="Sets are dealt out in turn: too few, and instances share GPUs; too many, and some "
    "stay unused.",
)
def _devices(template: Deployment) -> Iterator[Hit]:
    text = template.text("gpu_device_ids")
    if template.kind != "cpp" or not text or not READ["gpu_device_ids"].fits(text):
        return
    sets = [one for one in text.split(";") if one.strip()]
    if len(sets) != template.instances:
        yield Hit(
            f"gpu_device_ids has {len(sets)} set{'s' if len(sets) > 1 else ''} of GPUs for "
            f"{template.instances} instance{'s' if template.instances > 1 else ''}: "
            + ("several share one" if len(sets) < template.instances else "the rest stays unused"),
            "give one set per instance, with ; between them",
            template.span("gpu_device_ids"),
        )


def _nearest(text: str, choices: tuple[str, ...]) -> str:
    close = suggest(text, choices)
    return f"did you mean {close}?" if close else f"expected one of {', '.join(choices)}"
