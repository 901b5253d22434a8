# SPDX-License-Identifier: Apache-2.0
"""Tools of /v1/chat/completions: tool definitions in the prompt, tool calls in the answer.

The chat template writes the tools into the prompt. The model calls them inside its text, in the
markup of its training. `formats` has the markup of each family of checkpoints; `stream` extracts
the calls from streamed text.
"""
