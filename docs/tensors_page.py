# SPDX-License-Identifier: Apache-2.0
"""Prints docs/reference/tensors.md, made of ensembles/ and backend.toml: `make reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from tritonctl.repository.backends import backend_named
from tritonctl.repository.ensembles import ensemble_for

# A task's engine is one of these.
ENGINES = ("openvino_engine", "trtllm_engine")
_HEAD = """\
<!-- Made by `make reference` from ensembles/ and python_backends/: edits are lost. -->

# Tensors per task

`task:` of a model says what requests and answers consist of. Data types are Triton's; a shape is
one request's, behind the batch dimension: `BYTES [1]` is `[1, 1]` on the wire. `tritonctl graph
MODEL` draws those of a model of yours, with the steps between. Which clients speak them already:
[clients](clients.md). From Python: [TritonClient](python-client.md).
"""
_TEXT = """\
## `text_generation`

The names of NVIDIA's `ensemble`. A request has `text_input` or `messages`; all else is optional.
It is answered by a stream of responses, by one with `stream` false or absent.
"""
_NEUTRAL = """\
Tensors that change nothing here are taken with their neutral value, so that NVIDIA's clients work
unmodified: [which](clients.md#what-is-refused).
"""
_DECODING = """\
The responses join to what `tokenizers` decodes from the ids without special tokens, except:

- Malformed bytes of a byte-fallback tokenizer (Llama 2, Gemma). The library turns every byte of a
  run of byte tokens into one U+FFFD if one of them is malformed, ASCII too. Here the characters
  before that byte stay: holding back every run until it ends would stop streams in languages with
  few tokens.
- Marks of tool calls, such as `<|python_tag|>` of Llama 3. They are kept by choice, even if the
  library skips them as special tokens: they separate a call from JSON for the reader.
"""
# In the page's order, with what is said of each besides its tensors.
_TASKS = {
    "embedding": """\
A text to a vector, as its sentence-transformers checkpoint makes it: pooling, dense layers and
normalisation are in the engine's graph.
""",
    "classification": """\
A text, or a pair of texts, to labels with scores, after the checkpoint's own activation.
""",
    "rerank": """\
A query and a text to one score. A request that ranks n texts has n items, the query in each.
""",
    "token_classification": """\
A text to the entities in it, joined as transformers does with `aggregation_strategy="simple"`.
""",
    "image_classification": """\
An image file to labels with scores.
""",
    "image_embedding": """\
An image file to a vector.
""",
}
# What no step's backend.toml says, because it comes from the graph.
_FROM_GRAPH = {
    "embedding": "the vector",
    "score": "how well the text answers the query, after the model's activation",
    "logit": "the score before its activation: it ranks texts whose scores are equal in FP32",
}
_ITEMS = """\
A request holds 1 to `engine.max_batch_size` items, each with its own answer. One that cannot be
answered fails its request, with its index, such as `text_input[3] is not valid UTF-8`; other
requests are not touched. Texts of any length may travel together: the engine sorts them
([how](../how-to/serve-embeddings.md#texts-of-different-lengths)).
"""
_TENSORS = """\
## `tensors`

The graph's own inputs and outputs; no ensemble around it. The batch is their first dimension; one of the batch alone, such as
a scikit-learn classifier's `label`, is `[batch, 1]` for clients. With `max_batch_size: 0` shapes are the graph's, `[1]` for a
scalar, and a request is a run.
A `pooling` that contradicts the checkpoint's `modules.json` is refused.

| model | in | out |
|---|---|---|
| encoder of texts, `options: {pooling: mean}` or `cls` | `input_ids`, `attention_mask`, where it has them `token_type_ids`: INT64 [tokens] | `sentence_embedding` FP32 [width] |
| the same without `pooling` | the same | `last_hidden_state` FP32 [tokens, width]; `pooler_output` FP32 [width] where it has one |
| classifier of texts | the same | `logits` FP32 [labels] |
| an ONNX file | its own | its own |

`tritonctl infer MODEL --input NAME=JSON` asks such a model. Tasks of your own:
[own steps](../how-to/own-steps.md).
"""  # noqa: E501 - a table


def page() -> str:
    """The page."""
    task = _task("text_generation")
    docs = _docs(task)
    plain = [one for one in task["inputs"] if not _is_neutral(one["name"], task)]
    parts = [
        _HEAD,
        _TEXT,
        *_rows("in", plain, docs, task),
        _NEUTRAL,
        *_rows("out", task["outputs"], docs, task),
        _DECODING,
    ]
    return "\n".join([*parts, *_tasks(), _TENSORS])


def _tasks() -> Iterator[str]:
    for number, (name, intro) in enumerate(_TASKS.items()):
        task = _task(name)
        optional = {one["name"] for one in task["inputs"] if one.get("optional")}
        found = _FROM_GRAPH | _docs(task)
        docs = {key: f"optional: {doc}" if key in optional else doc for key, doc in found.items()}
        yield f"## `{name}`\n\n{intro}"
        if not number:
            yield _ITEMS
        yield from _rows("in", task["inputs"], docs, task)
        yield from _rows("out", task["outputs"], docs, task)


def _task(name: str) -> dict[str, Any]:
    ensemble, _ = ensemble_for(name)
    return ensemble.model_dump()


def _rows(
    side: str, tensors: list[dict[str, Any]], docs: dict[str, str], task: dict[str, Any]
) -> Iterator[str]:
    yield f"| {side} | type | is |"
    yield "|---|---|---|"
    for one in tensors:
        kind = one["data_type"].removeprefix("TYPE_").replace("STRING", "BYTES")
        shape = ", ".join("n" if size < 0 else str(size) for size in one["dims"])
        only = _only(one["name"], task) if one.get("only_if_read") else ""
        yield f"| `{one['name']}` | {kind} [{shape}] | {docs[one['name']]}{only} |"
    yield ""


def _is_neutral(public: str, task: dict[str, Any]) -> bool:
    """Whether the tokenizer alone reads it, beside those that are a prompt."""
    readers = {name for name, step in task["steps"].items() if public in step["inputs"].values()}
    return readers == {"tokenizer"} and public not in ("text_input", "messages", "prompt_ids")


def _only(public: str, task: dict[str, Any]) -> str:
    """Which engines read it, unless all do."""
    own = {tensor for tensor, edge in task["steps"]["engine"]["inputs"].items() if edge == public}
    owners = [name for name in ENGINES if own & {one["name"] for one in _tensors(name)}]
    listing = ", ".join(f"`{name}`" for name in owners)
    return "" if len(owners) == len(ENGINES) else f" ({listing} only)"


def _docs(task: dict[str, Any]) -> dict[str, str]:
    """What a public tensor is, as the backends say that read or write it."""
    found: dict[str, str] = {}
    for name, step in task["steps"].items():
        backends = ENGINES if name == "engine" else (step["backend"],)
        for own, public in {**step["inputs"], **step["outputs"]}.items():
            if told := _told(backends, own):
                found.setdefault(public, told.replace("|", "\\|"))
    return found


def _told(backends: tuple[str, ...], own: str) -> str:
    """One text where the engines agree, else one of each."""
    texts = {
        backend: one["doc"]
        for backend in backends
        for one in _tensors(backend)
        if one["name"] == own
    }
    if len(set(texts.values())) > 1:
        return "; ".join(f"`{backend}`: {text}" for backend, text in texts.items())
    return next(iter(texts.values()), "")


def _tensors(backend: str) -> list[dict[str, Any]]:
    declared = backend_named(backend)
    return [tensor.model_dump() for tensor in (*declared.inputs, *declared.outputs)]


if __name__ == "__main__":
    sys.stdout.write(page())
