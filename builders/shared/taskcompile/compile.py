# SPDX-License-Identifier: Apache-2.0
"""Compiles a checkpoint's files to a text task. Standard library only.

An unknown setting is refused by name, never guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasklib.task_file import TextSettings

from buildlib.checkpoint import max_vocabulary_id
from buildlib.problems import BuildError, read_json_object
from buildlib.request_types import BuilderRequest
from buildlib.weights import DOWNLOAD_AGAIN, refuse_lfs_pointer
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
    vector_width,
)
from taskcompile.task import (
    CLASSIFICATION,
    EMBEDDING,
    RERANK,
    TAGGING,
    TEXT_TASKS,
    TYPE_IDS,
    EmbeddingStep,
    Normalize,
    Pooling,
    TextTask,
    refuse_remote_code,
)

_TRANSFORMERS, _SENTENCE_TRANSFORMERS = "transformers", "sentence-transformers"
# The transformers class of each task's checkpoint. Embeddings use the model without a head.
_HEADS = {
    CLASSIFICATION: "ForSequenceClassification",
    RERANK: "ForSequenceClassification",
    TAGGING: "ForTokenClassification",
}
_SIDES = ("right", "left")
# transformers' classes for any tokenizer.json: they give token types only if model_input_names says
# so. Classes of a model know better.
_GENERIC_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")
_SAVE_TOKENIZER = "Save it again: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."


@dataclass(frozen=True)
class EncoderFacts:
    """The encoder's properties that the task depends on."""

    architecture: str
    vocab_size: int
    hidden_size: int
    positions: int  # tokens it was trained for
    pad_id: int
    inputs: tuple[str, ...]


def exported_class(task: str | None, architecture: str) -> str:
    """Return the class to export. For embeddings it has no head, whatever the checkpoint has.

    Raises:
        BuildError: the checkpoint's class has another head than the task needs.
    """
    if task == EMBEDDING:
        base, _, head = architecture.partition("For")
        return f"{base}Model" if head else architecture
    required_head = _HEADS.get(task or "")
    if required_head is None or architecture.endswith(required_head):
        return architecture
    matching_tasks = [name for name, head in _HEADS.items() if architecture.endswith(head)]
    raise BuildError(
        f"the task {task} needs a checkpoint of a class ...{required_head}, and this one is "
        f"{architecture}",
        remedy=f"Set task to {' or '.join(matching_tasks or [EMBEDDING])}, or use another "
        "checkpoint.",
    )


def compile_task(
    request: BuilderRequest, encoder: EncoderFacts, *, pooling: str | None, normalize: bool
) -> TextTask:
    """Compile the task of the request's checkpoint.

    `pooling` and `normalize`: the project's settings for a checkpoint without modules.json.

    Raises:
        BuildError: the files are incomplete or have an unknown setting.
    """
    name = request.task
    if name not in TEXT_TASKS:
        raise BuildError(
            f"the task {name} is not a text task", remedy=f"Use one of: {', '.join(TEXT_TASKS)}."
        )
    folder = request.checkpoint
    file = folder / "config.json"
    config = read_json_object(file, remedy=DOWNLOAD_AGAIN)
    refuse_remote_code(folder, config, trust_remote_code=request.trust_remote_code, task=name)
    if name == EMBEDDING:
        return _compile_embedding(request, encoder, pooling, normalize=normalize)
    if pooling is not None or normalize:
        raise BuildError(
            f"engine.options sets pooling or normalize, and the task {name} has no vectors",
            remedy="Remove pooling and normalize from engine.options.",
        )
    labels = read_labels(file, config)
    if name == RERANK:
        return _compile_rerank(request, encoder, config, labels)
    if name == CLASSIFICATION:
        return TextTask(
            name=name,
            text=_text_settings(request, encoder, None),
            library=_TRANSFORMERS,
            reference="TextClassificationPipeline",
            labels=labels,
            activation=classifier_activation(file, config, labels),
        )
    return TextTask(
        name=name,
        text=_text_settings(request, encoder, None),
        library=_TRANSFORMERS,
        reference="TokenClassificationPipeline",
        labels=labels,
        activation=SOFTMAX,
    )


def _compile_embedding(
    request: BuilderRequest, encoder: EncoderFacts, pooling: str | None, *, normalize: bool
) -> TextTask:
    folder = request.checkpoint
    model_config = read_model_config(folder)
    require_family(folder, model_config, SENTENCE_TRANSFORMER, EMBEDDING)
    steps = _embedding_steps(request, encoder, pooling, normalize=normalize)
    settings = read_settings(folder)
    prompts, default = read_prompts(folder, model_config)
    pooled = next(step for step in steps if isinstance(step, Pooling))
    text = _text_settings(
        request,
        encoder,
        settings.max_seq_length,
        lower_case=settings.lower_case,
        prompts=prompts,
        default_prompt=default,
        include_prompt=pooled.include_prompt,
    )
    return TextTask(
        name=EMBEDDING,
        text=text,
        library=_SENTENCE_TRANSFORMERS,
        reference=SENTENCE_TRANSFORMER,
        steps=steps,
        dimension=vector_width(steps, encoder.hidden_size),
    )


def _embedding_steps(
    request: BuilderRequest, encoder: EncoderFacts, pooling: str | None, *, normalize: bool
) -> tuple[EmbeddingStep, ...]:
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
            f"{folder} has no modules.json, so nothing says how {encoder.architecture} makes one "
            "vector of a text; a wrong choice has the right shape and finds the wrong texts",
            remedy="Set engine.options.pooling as the model's authors say (one of "
            f"{', '.join(MODES)}), and normalize: true where they divide by the length. Or save it "
            "with sentence-transformers.",
        )
    return (Pooling((pooling,)), *((Normalize(),) if normalize else ()))


def _compile_rerank(
    request: BuilderRequest,
    encoder: EncoderFacts,
    config: Mapping[str, Any],
    labels: tuple[str, ...],
) -> TextTask:
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
    return TextTask(
        name=RERANK,
        text=_text_settings(
            request, encoder, settings.max_seq_length, lower_case=settings.lower_case, pair=True
        ),
        library=_SENTENCE_TRANSFORMERS,
        reference=CROSS_ENCODER,
        labels=labels,
        activation=reranker_activation(folder, config, model_config),
    )


def _text_settings(
    request: BuilderRequest, encoder: EncoderFacts, max_seq_length: int | None, **fields: Any
) -> TextSettings:
    """Return how texts are encoded.

    `max_seq_length`: the limit of sentence-transformers, which overrides the tokenizer's.
    """
    folder = request.checkpoint
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise BuildError(f"{folder} has no {name}", remedy=_SAVE_TOKENIZER)
        refuse_lfs_pointer(folder / name)
    tokenizer = read_json_object(folder / "tokenizer.json", remedy=_SAVE_TOKENIZER)
    max_token_id = max_vocabulary_id(tokenizer)
    if max_token_id >= encoder.vocab_size:
        raise BuildError(
            f"{folder / 'tokenizer.json'}: has token ids up to {max_token_id}, and the model knows "
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
    return TextSettings(
        max_seq_len=_max_seq_len(
            request, encoder, max_seq_length, settings.get("model_max_length")
        ),
        pad_id=encoder.pad_id,
        inputs=_read_inputs(encoder.inputs, settings),
        truncation_side=side,
        **fields,
    )


def _read_inputs(inputs: tuple[str, ...], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the encoder's inputs that the library's tokenizer gives.

    Without token types the model takes zeros, whatever tokenizer.json's post-processor says.
    """
    names = settings.get("model_input_names")
    if not isinstance(names, list):
        if settings.get("tokenizer_class") not in _GENERIC_TOKENIZERS:
            return inputs
        names = []
    return tuple(name for name in inputs if name != TYPE_IDS or name in names)


def _max_seq_len(
    request: BuilderRequest, encoder: EncoderFacts, max_seq_length: int | None, tokenizer_limit: Any
) -> int:
    """Return the tokens of a text. `tokenizer_limit`: up to 1e30 if the tokenizer has no limit."""
    if max_seq_length is None and isinstance(tokenizer_limit, int | float) and tokenizer_limit >= 1:
        max_seq_length = int(tokenizer_limit)
    max_tokens = min(max_seq_length or encoder.positions, encoder.positions)
    requested = request.limits.max_seq_len
    if requested is not None and requested > max_tokens:
        raise BuildError(
            f"engine.max_seq_len is {requested}, and {request.checkpoint} reads {max_tokens} "
            "tokens of a text (its max_seq_length, its tokenizer's model_max_length or its "
            "positions)",
            remedy=f"Set engine.max_seq_len to {max_tokens} or less.",
        )
    max_num_tokens = request.limits.max_num_tokens
    max_seq_len = requested or max_tokens
    if max_num_tokens is not None and max_num_tokens < max_seq_len:
        raise BuildError(
            f"engine.max_num_tokens is {max_num_tokens}, and one text may have {max_seq_len} "
            "tokens",
            remedy=f"Set engine.max_num_tokens to {max_seq_len} or more, or engine.max_seq_len to "
            f"{max_num_tokens}.",
        )
    return max_seq_len
