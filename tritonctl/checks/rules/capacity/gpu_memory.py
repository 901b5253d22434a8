# SPDX-License-Identifier: Apache-2.0
"""TC81x: total memory of all models on the GPUs and the machine.

Sources: those of tritonctl.checks.analysis.gpu_memory, and
https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/llama_multi_instance.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tritonctl.checks.analysis.gpu_memory import (
    FRACTION_KEY,
    HOST,
    MemoryClaim,
    trtllm_memory_claim,
    vllm_memory_claim,
    weight_bytes_by_gpu,
)
from tritonctl.checks.analysis.placement import count_span, join_some
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import warning
from tritonctl.host.units import human_bytes

# Tolerance for sums of decimal fractions in binary floating point.
_ROUNDING = 1e-9
_OTHER_GPU = "make fewer instances, or put models on other GPUs: `gpus` of instance_group"
_OTHER_MACHINE = "make fewer instances, or serve some models on another machine"


@warning(
    "TC810 weights-over-memory",
    summary="weights that do not fit into a GPU's memory together",
    reason="The model that is loaded last fails with an out-of-memory error. Each instance of "
    "onnxruntime and PyTorch has a copy; activations and the CUDA context need further memory.",
    shows="elsewhere",
)
def weights_over_memory(repository: Repository) -> Iterator[Hit]:
    gpus = repository.target.gpus
    if not gpus:
        return
    weights_by_model = _weights_by_model(repository)
    claims = {} if any(vllm_over_one(repository)) else _vllm_claims(repository)
    for gpu, memory in enumerate(gpus):
        shares = {name: by_gpu[gpu] for name, by_gpu in weights_by_model.items() if by_gpu[gpu]}
        shares |= {n: int(c.share * c.gpus[gpu] * memory) for n, c in claims.items() if c.gpus[gpu]}
        if sum(shares.values()) > memory:
            yield _over_memory_hit(repository, f"GPU {gpu}", memory, shares, _OTHER_GPU)
            return


@warning(
    "TC813 weights-over-host-memory",
    summary="weights on the CPU that do not fit into the machine's memory together",
    reason="The kernel kills the server while it loads the models. Each instance of onnxruntime "
    "and PyTorch has a copy; OpenVINO's instances share one.",
    shows="elsewhere",
)
def weights_over_host(repository: Repository) -> Iterator[Hit]:
    memory = repository.target.memory_bytes
    if memory is None:
        return
    shares = {
        name: by_gpu[HOST] for name, by_gpu in _weights_by_model(repository).items() if by_gpu[HOST]
    }
    if sum(shares.values()) > memory:
        yield _over_memory_hit(repository, "the machine", memory, shares, _OTHER_MACHINE)


def _weights_by_model(repository: Repository) -> dict[str, Counter[int]]:
    return {
        name: weight_bytes_by_gpu(model, repository) for name, model in repository.models.items()
    }


def _over_memory_hit(
    repository: Repository, device: str, memory: int, shares: dict[str, int], fix: str
) -> Hit:
    listed = join_some(
        f"{n} {human_bytes(shares[n])}" for n in sorted(shares, key=lambda n: -shares[n])
    )
    model = repository.models[max(sorted(shares), key=lambda name: shares[name])]
    return Hit(
        f"{device} has {human_bytes(memory)}, models take {human_bytes(sum(shares.values()))} "
        "there "
        f"before any request: {listed}",
        fix,
        count_span(model, repository.target),
        model=model,
    )


@warning(
    "TC811 vllm-over-one",
    summary="instances of vLLM that claim more than a GPU's whole memory",
    reason="gpu_memory_utilization is a share of the GPU's total memory, 0.9 by default. An engine "
    "refuses to start if less memory than its share is free.",
    answers=("vllm#20305",),
    shows="elsewhere",
)
def vllm_over_one(repository: Repository) -> Iterator[Hit]:
    for model, gpu, added in _claims_over_one(repository, _vllm_claims(repository)):
        yield Hit(
            f"instances of vLLM claim {added} of GPU {gpu}'s memory",
            "write a gpu_memory_utilization into each model.json, with a sum below 1",
            count_span(model, repository.target),
            model=model,
        )


def _vllm_claims(repository: Repository) -> dict[str, MemoryClaim]:
    claims = (
        (n, vllm_memory_claim(m, repository.target)) for n, m in sorted(repository.models.items())
    )
    return {name: claim for name, claim in claims if claim}


@warning(
    "TC812 caches-over-free-memory",
    summary="models of TensorRT-LLM whose KV caches take more than the free memory together",
    reason="kv_cache_free_gpu_mem_fraction is a share of the memory that is free when the model is "
    "loaded, 0.9 by default. The first model takes nearly all, and the next ones fail or hold few "
    "tokens.",
    answers=("TensorRT-LLM#1400", "tensorrtllm_backend#59", "tensorrtllm_backend#168"),
    shows="elsewhere",
)
def trtllm_over_one(repository: Repository) -> Iterator[Hit]:
    claims = ((n, trtllm_memory_claim(m, repository)) for n, m in sorted(repository.models.items()))
    for model, gpu, added in _claims_over_one(
        repository, {name: claim for name, claim in claims if claim}
    ):
        yield Hit(
            f"KV caches claim {added} of GPU {gpu}'s free memory",
            "limit each by a number of tokens (max_tokens_in_paged_kv_cache; for the LLM API "
            "kv_cache_config.max_tokens), or give them fractions with a sum below 1",
            model.config.span("parameters", FRACTION_KEY)
            if FRACTION_KEY in model.config.message.parameters
            else count_span(model, repository.target),
            model=model,
        )


def _claims_over_one(
    repository: Repository, claims: dict[str, MemoryClaim]
) -> Iterator[tuple[Model, int, str]]:
    """Yield the first GPU whose claims exceed 1, with the last claiming model and the sum."""
    for gpu in sorted({gpu for claim in claims.values() for gpu in claim.gpus}):
        claimants = [(name, c.share, c.gpus[gpu]) for name, c in claims.items() if c.gpus[gpu]]
        total = sum(share * times for _, share, times in claimants)
        if total > 1 + _ROUNDING:
            each = join_some(
                f"{n} {f'{times} × ' if times > 1 else ''}{s:g}" for n, s, times in claimants
            )
            yield repository.models[claimants[-1][0]], gpu, f"{total:g} times the whole ({each})"
            return
