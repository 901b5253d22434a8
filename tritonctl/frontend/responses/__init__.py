# SPDX-License-Identifier: Apache-2.0
"""POST /v1/responses: a conversation as items, answered with items or with typed events.

It is a form of the same generation as /v1/chat/completions: `request` and `input_items` convert its
fields, `output` and `answer` format the text. Nothing is stored between two requests.
Shapes: https://platform.openai.com/docs/api-reference/responses
"""
