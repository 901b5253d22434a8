# SPDX-License-Identifier: Apache-2.0
"""Prints docs/reference/openai.md, made of the frontend's request models: `make reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from tritonctl.frontend.app import OPERATIONS
from tritonctl.frontend.json_structure import MAX_MARKS
from tritonctl.frontend.metrics import REASONS
from tritonctl.frontend.openapi import document

_HEAD = """\
<!-- Made by `make reference` from docs/openai_page.py and tritonctl/frontend/: edits are lost. -->

# The OpenAI API

What `tritonctl frontend` and `frontend:` in `tritonctl.yaml` serve. To use it:
[Point your OpenAI client here](../how-to/openai-api.md); programs that work with it:
[clients](clients.md#openai-clients). The same as OpenAPI 3.1, with types and bounds:
`GET /openapi.json`.

A field that is not listed, or one with a value that the model or its engine cannot have, is an
error in OpenAI's shape whose `param` names it. Nothing is ignored silently.

## Endpoints

| method | path | does |
|---|---|---|
"""
_OTHERS = """\
| GET | `/metrics` | for Prometheus; its key: `frontend.metrics_key_file`; [names](metrics.md#of-the-frontend) |
| GET | `/openapi.json` | this page as OpenAPI 3.1 |
"""  # noqa: E501 - a table
_ERRORS = """
## Errors

`{{"error": {{"message", "type", "param", "code"}}}}`, in a stream that has begun as its last event.

| status | when |
|---|---|
{statuses}

Metrics and the access log count them by reason: {reasons}.

## Headers

| header | of | is |
|---|---|---|
| `authorization: Bearer KEY`, `x-api-key: KEY` | requests | the tenant's key |
| `x-request-id` | both | a client's own is kept; it is in the access log |
| `traceparent` | requests | its trace; through a gateway only with `gateway.trust_traces` |
| `x-ratelimit-{{limit,remaining,reset}}-{{requests,tokens}}` | responses | the tenant's budgets |
| `retry-after` | responses 429 and 503 | seconds |
| `origin` | requests | a web page's; answered where `frontend.cors_origins` allows it |
| `x-tritonctl-release` | responses | whose answer it is: the number of the release |
"""

_BODIES = """
## Bodies and messages

- A body has at most `frontend.max_body_bytes` and {marks:,} commas, brackets and texts, and no key
  twice in an object. It must arrive within `frontend.body_timeout_seconds`; a client with many
  bodies that do not arrive loses its oldest.
- `developer` is the system role. Where the chat template has none, a system message begins the next
  user message, followed by an empty line; `frontend.system_messages: {{MODEL: refuse}}` refuses it.
- Text parts are joined by a newline, unless the chat template reads parts.
- A result (role `tool`) belongs to an earlier call; arguments of earlier calls are JSON objects.
- `name` is refused where the chat template shows none, except a result's, if it is its call's.
- `dimensions` needs a model whose config.json or model card says that it was trained for shorter
  vectors (Matryoshka), or `frontend.matryoshka: {{MODEL: true}}`.
"""

_TOOLS = """
## Tools

`tools` go to the checkpoint's chat template as they were sent, with the calls of earlier messages
(`tool_calls`) and their results (role `tool`). How the model writes a call is read from that
template when the frontend starts; `frontend.tool_formats` names it instead, or refuses tools with
`none`:

```yaml
frontend:
  tool_formats: {assistant: hermes}
```

| format | checkpoints | a call |
| --- | --- | --- |
| `hermes` | Hermes, Qwen 2.5 and 3, Granite 4 | `<tool_call>{"name": …, "arguments": …}</tool_call>` |
| `qwen_coder` | Qwen3-Coder | `<tool_call><function=…><parameter=…>…</parameter></function></tool_call>` |
| `glm` | GLM 4.5 | `<tool_call>name<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>` |
| `mistral` | Mistral | `[TOOL_CALLS] [{"name": …, "arguments": …}]`, `[TOOL_CALLS]name[ARGS]{…}` |
| `llama3` | Llama 3.1 to 3.3 | `{"name": …, "parameters": …}`, perhaps behind <code>&lt;&#124;python_tag&#124;&gt;</code> |
| `pythonic` | Llama 4 | `[name(argument="…")]` |
| `deepseek` | DeepSeek V3, V3.1 | between its marks `tool▁calls▁begin` and `tool▁calls▁end` |
| `kimi` | Kimi K2 | between `tool_calls_section_begin` and `tool_calls_section_end` |
| `jamba` | Jamba | `<tool_calls>[…]</tool_calls>` |
| `granite` | Granite 3 | `tool_call` and a list |
| `command_r` | Command R7B | a list between `START_ACTION` and `END_ACTION` |
| `internlm` | InternLM 2 | an object between `action_start` and `action_end` |

- Text is sent at once. An opener that is not complete, and whitespace, wait for what follows; a
  call is sent when it is complete. Half a call is never text.
- Anything that is not a call is text, whole and in its place: broken JSON, a function that was not
  offered, a call that `max_completion_tokens` cut off.
- `finish_reason` is `tool_calls` where the answer has calls and ended by itself.
- `parallel_tool_calls: false` ends the answer, and the engine's work, after the first call.
- `tool_choice: none`: the model is shown no tools. `required`, or a function by its name, needs
  guided decoding: the engine then writes the arguments by the function's schema, streamed.
- `tool_choice` of type `allowed_tools`: the model is shown the allowed tools alone.
- A `response_format` next to tools that may be called: the guide allows an object of its schema, or
  calls. The schema must be of `type: object`. Next to calls that are forced, it guides nothing.

## JSON

`response_format` of type `json_object` or `json_schema` needs guided decoding. The answer follows
the schema whether it is `strict` or not, and is whole unless `max_completion_tokens` cuts it off
(`finish_reason: length`). OpenVINO has guided decoding, TensorRT-LLM has it with
`serving.runtime.guided_decoding_backend: xgrammar`. An engine without it refuses the field.

Properties come in the order of the schema, and no others unless `additionalProperties` asks for
them. Ask for JSON in the messages, too.

With OpenVINO a separate process compiles a guide first, within 2 s of CPU time and 512 MB. A guide
that takes more, has more than 64 levels or 64 KiB, or does not compile, is refused with the reason;
other requests are not affected. The first guide after a start waits about two seconds.

- Integers have up to 18 digits and are never written `42.0`; a space may follow a comma and a
  colon, and there is no other whitespace. Where a schema has `pattern`, `format`,
  `patternProperties`, `prefixItems`, bounds of a `number`, or `additionalProperties` next to
  `properties`, the engine's own library writes it: it allows any whitespace, and a small model may
  write that until its limit. `frequency_penalty` helps.
- `not`, `if`, `contains`, `uniqueItems`, `multipleOf`, `dependentRequired`, several schemas in
  `allOf`, and a `$ref` to elsewhere are refused.
- Not together with `min_tokens` or `resume_ids`: a guided answer that breaks off is not continued
  on another server.
- [Triton's own clients](tensors.md) have further guides: `regex` and `ebnf_grammar`.
- After 256 MB of compiled guides (five hundred different ones with 128,000 tokens) the engine lets
  its streams finish and loads its model again.

## Responses

`/v1/responses` is another form of the same conversation, and the default of OpenAI's agents SDK and
Vercel's AI SDK. Tools, JSON and reasoning work as in `/v1/chat/completions`.

- Nothing is stored: send the whole conversation in `input`. `store: true` is accepted, and the
  answer has `store: false`; `previous_response_id`, `conversation`, `prompt`, `background` and items
  of type `item_reference` are refused. The AI SDK sends whole items with `store: false`.
- Items of `input`: messages with text, `function_call`, `function_call_output`, `reasoning`. Items
  of an answer can be sent back as they came. Items of the assistant in a row are one message of the
  chat template.
- A stream has OpenAI's typed events. One that fails ends with `error` and `response.failed`.
- An answer that `max_output_tokens` cut off is `incomplete`, as is its last item.
- Reasoning is an item with `content`; `encrypted_content` is neither written nor read.
- `usage` has `reasoning_tokens`. Engines do not report cached tokens: `cached_tokens` is 0.

## Log probabilities

`logprobs` gives each token's text, bytes and log probability; half a character is U+FFFD in
`token`, and whole in `bytes`. Tokens that add no text are left out. Engines report the chosen
token's alone, so `top_logprobs` is 0, or 1 where the choice is greedy (`temperature: 0`, no
penalties). The frontend reads the checkpoint's tokenizer.json; where it cannot, or where a token
has no text, `logprobs` is refused.

## Reasoning

Models that reason write `<think>…</think>` before their answer. `frontend.reasoning` separates
`reasoning_content` and `content` of a message and of a stream's deltas:

```yaml
frontend:
  reasoning: {qwen: tags, r1: opened}    # opened: the chat template has written <think> already
```

Newlines around the tags belong to neither. A tool call inside the reasoning does not count. With
guided decoding an answer has no reasoning. `reasoning_content` of earlier messages reaches the chat
template, which also decides whether a model reasons:
`chat_template_kwargs: {enable_thinking: false}` where it knows that. Models that are not named here
have everything in `content`.
"""  # noqa: E501 - a table


def page() -> str:
    """The page: endpoints, the fields of each body, errors, headers, tools and JSON."""
    described = document(OPERATIONS)
    schemas = described["components"]["schemas"]
    lines = [_HEAD]
    bodies: dict[str, list[str]] = {}
    for one in OPERATIONS:
        path = one.path.replace(":path", "")
        lines.append(f"| {one.method} | `{path}` | {one.summary} |\n")
        if one.body is not None:
            bodies.setdefault(one.body.__name__, []).append(f"`{path}`")
    lines.append(_OTHERS)
    for name, paths in bodies.items():
        lines.append(
            f"\n## Fields of {', '.join(paths)}\n\n| field | type | does |\n|---|---|---|\n"
        )
        lines += _rows(schemas[name], schemas)
    operation = next(iter(described["paths"].values()))["post"]
    statuses = "\n".join(
        f"| {status} | {response['description']} |"
        for status, response in operation["responses"].items()
        if status != "200"
    )
    lines.append(_ERRORS.format(statuses=statuses, reasons=", ".join(f"`{r}`" for r in REASONS)))
    lines.append(_BODIES.format(marks=MAX_MARKS))
    return "".join([*lines, _TOOLS])


def _rows(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        needed = ", required" if name in required else ""
        text = field.get("description", "").replace("|", "\\|").replace("\n", " ")
        yield f"| `{name}` | {_type(field, schemas)}{needed} | {text} |\n"


def _type(field: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """In a few words."""
    if "$ref" in field:
        return _type(schemas[field["$ref"].rsplit("/", 1)[1]], schemas)
    if "anyOf" in field or "oneOf" in field:
        kinds = [_type(each, schemas) for each in field.get("anyOf", field.get("oneOf", ()))]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null")) or "null"
    if "const" in field or "enum" in field:
        values = field.get("enum", [field.get("const")])
        return " or ".join(f"`{value if value != '' else repr('')}`" for value in values).lower()
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}), schemas)}"
    bounds = [
        f"{sign} {field[key]:g}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if key in field and abs(field[key]) < (1 << 31) - 1
    ]
    return " ".join([field.get("type", "any"), *bounds])


if __name__ == "__main__":
    sys.stdout.write(page())
