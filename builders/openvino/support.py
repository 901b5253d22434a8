# SPDX-License-Identifier: Apache-2.0
"""What this builder takes, and what it chooses where the request leaves it open."""

# Each was exported, run in the serving pipeline and compared token for token with transformers
# before it entered this list (tiny random weights, fp32). Keep it equal to builder.toml.
ARCHITECTURES = (
    "ArceeForCausalLM",
    "CohereForCausalLM",
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "Glm4ForCausalLM",
    "GraniteForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "OlmoForCausalLM",
    "Phi3ForCausalLM",
    "PhiForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "SmolLM3ForCausalLM",
    "StableLmForCausalLM",
    "Starcoder2ForCausalLM",
)

# Position scalings that survive the export. The others (longrope, dynamic) choose their
# frequencies by the length of each sequence; traced, the choice becomes a constant, and the
# engine answers wrongly without an error (measured: 13 of 32 prompts with longrope).
ROPE_TYPES = ("default", "linear", "llama3", "yarn")

# Tokens one step of the engine works on: short steps keep streams smooth, because a step holds
# the interpreter lock of the process that serves it.
DEFAULT_MAX_NUM_TOKENS = 256
