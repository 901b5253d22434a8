# SPDX-License-Identifier: Apache-2.0
"""Special tokens that mark a tool call; an answer's text always contains them.

Other special tokens add no text. These separate a call from JSON that the model writes for its
reader. A checkpoint family with such a token writes it nowhere else.
"""

TOOL_MARKS = frozenset(
    {
        # Hermes, Qwen, GLM, Granite 4; Jamba
        *("<tool_call>", "</tool_call>", "<tool_calls>", "</tool_calls>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        # Mistral
        *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        # Llama 3
        "<|python_tag|>",
        # DeepSeek
        *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁sep｜>"),
        *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        # Kimi K2
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        # Granite 3, Phi 4 mini; Command R7B; InternLM 2
        *("<|tool_call|>", "<|/tool_call|>", "<|START_ACTION|>", "<|END_ACTION|>"),
        *("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    }
)
