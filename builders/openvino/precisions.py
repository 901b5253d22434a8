# SPDX-License-Identifier: Apache-2.0
"""The one table of precisions: how weights are stored, and how the engine must be run.

`properties` travel through the manifest to the serving backend. Nothing is left to OpenVINO's
defaults, because those follow the CPU: bf16 arithmetic where AMX or AVX512-BF16 exists, activations
quantised on the fly (group size 32) where VNNI exists, an 8-bit KV cache. With the defaults one
engine would answer differently from machine to machine; with these it does what was evaluated.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# Tokens in one block of the paged KV cache: fixed by OpenVINO's CPU plugin, it is the third
# dimension of key_cache.0 in the compiled graph ([blocks, kv_heads, 32, head_dim]).
BLOCK_SIZE = 32


@dataclass(frozen=True)
class Precision:
    """How one precision is stored and run."""

    weights: Literal["f32", "f16", "int8_asym", "int4_asym"]
    kv_cache: Literal["f32", "f16", "u8"]
    # The precision to try when this one answers too differently from the checkpoint.
    higher: str | None

    @property
    def properties(self) -> dict[str, str | int]:
        """Return the OpenVINO properties of this precision."""
        return {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": self.kv_cache,
            # 0 = activations stay as they are. Quantising them is a property of the CPU
            # (VNNI), not of the engine, and would change the answers with the machine.
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(weights="f32", kv_cache="f32", higher=None),
    "fp16": Precision(weights="f16", kv_cache="f16", higher="fp32"),
    "int8": Precision(weights="int8_asym", kv_cache="u8", higher="fp16"),
    "int4": Precision(weights="int4_asym", kv_cache="u8", higher="int8"),
}


# Weights that fit one core's own cache. A step of such a model is so short that a second thread
# mostly spins: on two cores the speller (1 MB) streams 1.4 times the tokens with one, while models
# of 11 to 110 MB make 24 to 51 % less.
ONE_THREAD_BYTES = 4_000_000


def run_properties(precision: str, weights: Path) -> dict[str, str | int]:
    """Return the OpenVINO properties that an engine is evaluated and served with.

    weights: the graph's `openvino_model.bin`.
    """
    small = weights.stat().st_size < ONE_THREAD_BYTES
    threads: dict[str, str | int] = {"INFERENCE_NUM_THREADS": 1} if small else {}
    return PRECISIONS[precision].properties | threads


def higher_than(precision: str) -> str:
    """What to do about an engine in `precision` that answers too differently."""
    higher = PRECISIONS[precision].higher
    if higher is None:
        return "fp32 should be exact: please report it, with build.log and the prompt above."
    finer = " a smaller options.group_size (32), a lower options.ratio (0.8),"
    return (
        f"Set engine.precision to {higher},{finer if precision == 'int4' else ''} "
        "or accept less with a lower min_exact_match."
    )
