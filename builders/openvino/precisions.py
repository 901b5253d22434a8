# SPDX-License-Identifier: Apache-2.0
"""The precisions of decoders: how weights are stored and how the engine runs.

`properties` reach the serving backend through the manifest. They set everything that OpenVINO
would derive from the CPU: bf16 arithmetic with AMX or AVX512-BF16, quantised activations (group
size 32) with VNNI, an 8-bit KV cache. With OpenVINO's defaults an engine would answer differently
on each machine; with these it behaves as evaluated.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# Tokens in one block of the paged KV cache. OpenVINO's CPU plugin fixes it: the third dimension of
# key_cache.0 in the compiled graph ([blocks, kv_heads, 32, head_dim]).
BLOCK_SIZE = 32


@dataclass(frozen=True)
class DecoderPrecision:
    """Storage and execution of one precision."""

    weights: Literal["f32", "f16", "int8_asym", "int4_asym"]
    kv_cache: Literal["f32", "f16", "u8"]
    # The precision to try if this one differs too much from the checkpoint.
    higher: str | None

    @property
    def properties(self) -> dict[str, str | int]:
        """Return the OpenVINO properties of this precision."""
        return {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": self.kv_cache,
            # 0: activations are not quantised. Quantising depends on the CPU (VNNI) and would
            # make the answers differ between machines.
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }


PRECISIONS: dict[str, DecoderPrecision] = {
    "fp32": DecoderPrecision(weights="f32", kv_cache="f32", higher=None),
    "fp16": DecoderPrecision(weights="f16", kv_cache="f16", higher="fp32"),
    "int8": DecoderPrecision(weights="int8_asym", kv_cache="u8", higher="fp16"),
    "int4": DecoderPrecision(weights="int4_asym", kv_cache="u8", higher="int8"),
}


# Weights that fit the cache of one core. A step of such a model is so short that a second thread
# mostly spins: on two cores the speller (1 MB) streams 1.4 times the tokens with one thread, while
# models of 11 to 110 MB stream 24 to 51 % less.
ONE_THREAD_BYTES = 4_000_000


def run_properties(precision: str, weights: Path) -> dict[str, str | int]:
    """Return the OpenVINO properties of evaluation and serving.

    `weights`: the graph's openvino_model.bin.
    """
    small = weights.stat().st_size < ONE_THREAD_BYTES
    threads: dict[str, str | int] = {"INFERENCE_NUM_THREADS": 1} if small else {}
    return PRECISIONS[precision].properties | threads


def remedy_for(precision: str) -> str:
    """Return the remedy for an engine that differs too much from the checkpoint."""
    higher = PRECISIONS[precision].higher
    if higher is None:
        return "fp32 should be exact: please report it, with build.log and the prompt above."
    finer = " a smaller options.group_size (32), a lower options.ratio (0.8),"
    return (
        f"Set engine.precision to {higher},{finer if precision == 'int4' else ''} "
        "or accept less with a lower min_exact_match."
    )
