# SPDX-License-Identifier: Apache-2.0
"""TC81x: whether the memory of GPUs and machine is enough for all models together.

Sources: those of tritonctl.checks.analysis.gpu_memory, and
https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/llama_multi_instance.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tritonctl.checks.analysis.gpu_memory import (
    FRACTION,
    HOST,
    Claim,
    trtllm_shares,
    vllm_shares,
    weights,
)
from tritonctl.checks.analysis.placement import count_span, some
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import warning
from tritonctl.host.units import human_bytes

# Of sums of decimal fractions, which are binary ones.
_ROUNDING = 1e-9
_OTHER_GPU = "make fewer instances, or put models on other GPUs: `gpus` of instance_group"
_OTHER_MACHINE = "make fewer instances, or serve some models on another machine"


@warning(
    "TC810 weights-over-memory",
    summary="weights that do not fit into a GPU's memory together",
    why="Whichever model is loaded last fails with an out-of-memory error. Each instance of "
    "onnxruntime and PyTorch has a copy; activations and the CUDA context come on top.",
)
def weights_over_memory(repository: Repository) -> Iterator[Hit]:
    gpus = repository.target.gpus
    if not gpus:
        return
    taken = _weights(repository)
    claims = {} if any(vllm_over_one(repository)) else _vllm(repository)
    for gpu, memory in enumerate(gpus):
        shares = {name: on[gpu] for name, on in taken.items() if on[gpu]}
        shares |= {n: int(c.share * c.gpus[gpu] * memory) for n, c in claims.items() if c.gpus[gpu]}
        if sum(shares.values()) > memory:
            yield _full(repository, f"GPU {gpu}", memory, shares, _OTHER_GPU)
            return


@warning(
    "TC813 weights-over-host-memory",
    summary="weights on the CPU that do not fit into the machine's memory together",
    why="The kernel kills the server while it loads them. Each instance of onnxruntime and "
    "PyTorch has a copy; OpenVINO's share one.",
)
def weights_over_host(repository: Repository) -> Iterator[Hit]:
    memory = repository.target.memory_bytes
    if memory is None:
        return
    shares = {name: on[HOST] for name, on in _weights(repository).items() if on[HOST]}
    if sum(shares.values()) > memory:
        yield _full(repository, "the machine", memory, shares, _OTHER_MACHINE)


def _weights(repository: Repository) -> dict[str, Counter[int]]:
    return {name: weights(model, repository) for name, model in repository.models.items()}


def _full(repository: Repository, where: str, memory: int, shares: dict[str, int], fix: str) -> Hit:
    listed = some(f"{n} {human_bytes(shares[n])}" for n in sorted(shares, key=lambda n: -shares[n]))
    model = repository.models[max(sorted(shares), key=lambda name: shares[name])]
    return Hit(
        f"{where} has {human_bytes(memory)}, models take {human_bytes(sum(shares.values()))} there "
        f"before any request: {listed}",
        fix,
        count_span(model, repository.target),
        model=model,
    )


@warning(
    "TC811 vllm-over-one",
    summary="instances of vLLM that claim more than a GPU's whole memory",
    why="gpu_memory_utilization is a share of all memory, 0.9 by default. An engine that "
    "finds less free than it claims refuses to start.",
    answers=("vllm#20305",),
)
def vllm_over_one(repository: Repository) -> Iterator[Hit]:
    for model, gpu, added in _over_one(repository, _vllm(repository)):
        yield Hit(
            f"instances of vLLM claim {added} of GPU {gpu}'s memory",
            "write a gpu_memory_utilization into each model.json, with a sum below 1",
            count_span(model, repository.target),
            model=model,
        )


def _vllm(repository: Repository) -> dict[str, Claim]:
    shares = ((n, vllm_shares(m, repository.target)) for n, m in sorted(repository.models.items()))
    return {name: claim for name, claim in shares if claim}


@warning(
    "TC812 caches-over-free-memory",
    summary="models of TensorRT-LLM whose KV caches take more than the free memory together",
    why="kv_cache_free_gpu_mem_fraction is a share of what is free when the model is loaded, "
    "0.9 by default: the first takes nearly all, and the next fail or hold a few tokens.",
    answers=("TensorRT-LLM#1400", "tensorrtllm_backend#59", "tensorrtllm_backend#168"),
)
def trtllm_over_one(repository: Repository) -> Iterator[Hit]:
    shares = ((n, trtllm_shares(m, repository)) for n, m in sorted(repository.models.items()))
    for model, gpu, added in _over_one(repository, {name: one for name, one in shares if one}):
        yield Hit(
            f"KV caches are to take {added} of GPU {gpu}'s free memory",
            "bound each by a number of tokens (max_tokens_in_paged_kv_cache; of the LLM API "
            "kv_cache_config.max_tokens), or give them fractions with a sum below 1",
            model.config.span("parameters", FRACTION)
            if FRACTION in model.config.message.parameters
            else count_span(model, repository.target),
            model=model,
        )


def _over_one(repository: Repository, claims: dict[str, Claim]) -> Iterator[tuple[Model, int, str]]:
    """The first GPU on which claims add up to more than 1: the last model there, and the sum."""
    for gpu in sorted({gpu for claim in claims.values() for gpu in claim.gpus}):
        claimants = [(name, c.share, c.gpus[gpu]) for name, c in claims.items() if c.gpus[gpu]]
        total = sum(share * times for _, share, times in claimants)
        if total > 1 + _ROUNDING:
            each = some(
                f"{n} {f'{times} × ' if times > 1 else ''}{s:g}" for n, s, times in claimants
            )
            yield repository.models[claimants[-1][0]], gpu, f"{total:g} times the whole ({each})"
            return
