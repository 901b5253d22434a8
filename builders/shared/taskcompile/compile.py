# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint's files to its task. What is not known is refused by its name, never guessed.

Standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from buildlib.checkpoint import largest_token_id
from buildlib.problems import BuildError, read_json_object
from buildlib.request import Request
from buildlib.weights import DOWNLOAD_AGAIN, refuse_pointer
from taskcompile.prompts import (
    CROSS_ENCODER,
    SENTENCE_TRANSFORMER,
    read_model_config,
    read_prompts,
    require_family,
)
from taskcompile.scores import (
    SOFTMAX,
    classifier_activation,
    read_labels,
    reranker_activation,
)
from taskcompile.sentence_modules import (
    MODES,
    has_modules,
    read_modules,
    read_settings,
    refuse_other_modules,
    width_of,
)
from taskcompile.task import (
    CLASSIFICATION,
    EMBEDDING,
    RERANK,
    TAGGING,
    TEXT_TASKS,
    Normalize,
    Pooling,
    Step,
    Task,
    Text,
    refuse_remote_code,
)

_TRANSFORMERS, _SENTENCE_TRANSFORMERS = "transformers", "sentence-transformers"
# Which class of transformers a task's checkpoint is; embeddings come of the model without a head.
_HEADS = {
    CLASSIFICATION: "ForSequenceClassification",
    RERANK: "ForSequenceClassification",
    TAGGING: "ForTokenClassification",
}
_SIDES = ("right", "left")
_SAVE_TOKENIZER = "Save it again: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."


@dataclass(frozen=True)
class Encoder:
    """What the task needs to know of the encoder. `positions`: tokens it was trained for."""

    architecture: str
    vocab_size: int
    hidden_size: int
    positions: int
    pad_id: int
    inputs: tuple[str, ...]


def head_for(task: str | None, architecture: str) -> str:
    """The class that is exported: without a head for embeddings, whatever it was saved as.

    Raises:
        BuildError: the checkpoint's class has another head than the task needs.
    """
    if task == EMBEDDING:
        base, _, head = architecture.partition("For")
        return f"{base}Model" if head else architecture
    wanted = _HEADS.get(task or "")
    if wanted is None or architecture.endswith(wanted):
        return architecture
    fitting = [name for name, head in _HEADS.items() if architecture.endswith(head)]
    raise BuildError(
        f"the task {task} needs a checkpoint of a class ...{wanted}, and this one is "
        f"{architecture}",
        remedy=f"Set task to {' or '.join(fitting or [EMBEDDING])}, or use another checkpoint.",
    )


def compile_task(
    request: Request, encoder: Encoder, *, pooling: str | None, normalize: bool
) -> Task:
    """The task of the request's checkpoint.

    `pooling` and `normalize`: what the project says of a checkpoint without modules.json.

    Raises:
        BuildError: the files lack something, or name what is not known.
    """
    name = request.task
    if name not in TEXT_TASKS:
        raise BuildError(
            f"the task {name} is not one of texts", remedy=f"Use one of: {', '.join(TEXT_TASKS)}."
        )
    folder = request.checkpoint
    file = folder / "config.json"
    config = read_json_object(file, remedy=DOWNLOAD_AGAIN)
    refuse_remote_code(folder, config, trust_remote_code=request.trust_remote_code, task=name)
    if name == EMBEDDING:
        return _embedding(request, encoder, pooling, normalize=normalize)
    if pooling is not None or normalize:
        raise BuildError(
            f"engine.options sets pooling or normalize, and the task {name} has no vectors",
            remedy="Remove pooling and normalize from engine.options.",
        )
    labels = read_labels(file, config)
    if name == RERANK:
        return _rerank(request, encoder, config, labels)
    if name == CLASSIFICATION:
        return Task(
            name=name,
            text=_text(request, encoder, None),
            library=_TRANSFORMERS,
            reference="TextClassificationPipeline",
            labels=labels,
            activation=classifier_activation(file, config, labels),
        )
    return Task(
        name=name,
        text=_text(request, encoder, None),
        library=_TRANSFORMERS,
        reference="TokenClassificationPipeline",
        labels=labels,
        activation=SOFTMAX,
    )


def _embedding(request: Request, encoder: Encoder, pooling: str | None, *, normalize: bool) -> Task:
    folder = request.checkpoint
    model_config = read_model_config(folder)
    require_family(folder, model_config, SENTENCE_TRANSFORMER, EMBEDDING)
    steps = _steps(request, encoder, pooling, normalize=normalize)
    settings = read_settings(folder)
    prompts, default = read_prompts(folder, model_config)
    pooled = next(step for step in steps if isinstance(step, Pooling))
    text = _text(
        request,
        encoder,
        settings.max_seq_length,
        lower_case=settings.lower_case,
        prompts=prompts,
        default_prompt=default,
        include_prompt=pooled.include_prompt,
    )
    return Task(
        name=EMBEDDING,
        text=text,
        library=_SENTENCE_TRANSFORMERS,
        reference=SENTENCE_TRANSFORMER,
        steps=steps,
        dimension=width_of(steps, encoder.hidden_size),
    )


def _steps(
    request: Request, encoder: Encoder, pooling: str | None, *, normalize: bool
) -> tuple[Step, ...]:
    folder = request.checkpoint
    if has_modules(folder):
        if pooling is not None or normalize:
            raise BuildError(
                f"engine.options sets pooling or normalize, and {folder / 'modules.json'} says "
                "how this model makes its vectors",
                remedy="Remove pooling and normalize from engine.options.",
            )
        return read_modules(folder, encoder.hidden_size, allow_pickle=request.allow_pickle)
    if pooling is None:
        raise BuildError(
            f"{folder} has no modules.json, so nothing says how {encoder.architecture} becomes one "
            "vector of a text; a wrong choice has the right shape and finds the wrong texts",
            remedy="Set engine.options.pooling as the model's authors say (one of "
            f"{', '.join(MODES)}), and normalize: true where they divide by the length. Or save it "
            "with sentence-transformers.",
        )
    return (Pooling((pooling,)), *((Normalize(),) if normalize else ()))


def _rerank(
    request: Request, encoder: Encoder, config: Mapping[str, Any], labels: tuple[str, ...]
) -> Task:
    folder = request.checkpoint
    if len(labels) != 1:
        raise BuildError(
            f"{folder / 'config.json'}: has {len(labels)} labels ({', '.join(labels):.80}), and a "
            "reranker gives one score",
            remedy="Set task to classification: it takes pairs (text_pair), too.",
        )
    model_config = read_model_config(folder)
    require_family(folder, model_config, CROSS_ENCODER, RERANK)
    refuse_other_modules(folder)
    _, default = read_prompts(folder, model_config)
    if default is not None and (model_config.get("prompts") or {}).get(default):
        raise BuildError(
            f"{folder}: puts the prompt {default!r} in front of each query by default, which the "
            "task rerank does not do",
            remedy="Set default_prompt_name to null and send it with the query yourself.",
        )
    settings = read_settings(folder)
    return Task(
        name=RERANK,
        text=_text(
            request, encoder, settings.max_seq_length, lower_case=settings.lower_case, pair=True
        ),
        library=_SENTENCE_TRANSFORMERS,
        reference=CROSS_ENCODER,
        labels=labels,
        activation=reranker_activation(folder, config, model_config),
    )


def _text(request: Request, encoder: Encoder, longest: int | None, **others: Any) -> Text:
    """How texts are read; `longest`: what sentence-transformers keeps, over the tokenizer's own."""
    folder = request.checkpoint
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise BuildError(f"{folder} has no {name}", remedy=_SAVE_TOKENIZER)
        refuse_pointer(folder / name)
    tokenizer = read_json_object(folder / "tokenizer.json", remedy=_SAVE_TOKENIZER)
    largest = largest_token_id(tokenizer)
    if largest >= encoder.vocab_size:
        raise BuildError(
            f"{folder / 'tokenizer.json'}: has token ids up to {largest}, and the model knows "
            f"{encoder.vocab_size} (config.json: vocab_size): the tokenizer is of another model",
            remedy="Put the model's own tokenizer there.",
        )
    settings = read_json_object(folder / "tokenizer_config.json", remedy=_SAVE_TOKENIZER)
    side = settings.get("truncation_side", "right")
    if side not in _SIDES:
        raise BuildError(
            f"{folder / 'tokenizer_config.json'}: truncation_side is {side!r}",
            remedy=f"Set it to one of {', '.join(_SIDES)}.",
        )
    return Text(
        max_seq_len=_max_seq_len(request, encoder, longest, settings.get("model_max_length")),
        pad_id=encoder.pad_id,
        inputs=encoder.inputs,
        truncation_side=side,
        **others,
    )


def _max_seq_len(request: Request, encoder: Encoder, longest: int | None, own: Any) -> int:
    """Tokens of a text. `own`: the tokenizer's, a number as large as 1e30 where it has none."""
    if longest is None and isinstance(own, int | float) and own >= 1:
        longest = int(own)
    most = min(longest or encoder.positions, encoder.positions)
    asked = request.limits.max_seq_len
    if asked is not None and asked > most:
        raise BuildError(
            f"engine.max_seq_len is {asked}, and {request.checkpoint} reads {most} tokens of a "
            "text (its max_seq_length, its tokenizer's model_max_length or its positions)",
            remedy=f"Set engine.max_seq_len to {most} or less.",
        )
    tokens = request.limits.max_num_tokens
    chosen = asked or most
    if tokens is not None and tokens < chosen:
        raise BuildError(
            f"engine.max_num_tokens is {tokens}, and one text may have {chosen} tokens",
            remedy=f"Set engine.max_num_tokens to {chosen} or more, or engine.max_seq_len to "
            f"{tokens}.",
        )
    return chosen
