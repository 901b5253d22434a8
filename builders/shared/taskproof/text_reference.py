# SPDX-License-Identifier: Apache-2.0
"""The reference for texts: the reference library in fp32, each input alone.

Importing this module imports torch, transformers and sentence-transformers.
"""

import os
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from buildlib.request_types import BuilderRequest
from taskproof.answers import CaseAnswer
from taskproof.text_cases import TextCase
from taskproof.text_pipeline import MAX_COMPARED_TOKENS

# The libraries below read these on import: this module never uses the network.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import numpy as np
import sentence_transformers
import torch
import transformers
from sentence_transformers.sentence_transformer.modules import Normalize as NormalizeModule
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
from sentence_transformers.sentence_transformer.modules import Transformer

from taskcompile.sentence_modules import has_modules
from taskcompile.task import CLASSIFICATION, EMBEDDING, RERANK, Pooling, TextTask

_LIBRARIES: dict[str, Any] = {
    "sentence-transformers": sentence_transformers,
    "transformers": transformers,
}


def reference_version(task: TextTask) -> str:
    """Return the version of the task's reference library."""
    return str(_LIBRARIES[task.library].__version__)


class TextReference:
    """The checkpoint, loaded by its reference library."""

    def __init__(self, task: TextTask, request: BuilderRequest) -> None:
        transformers.logging.disable_progress_bar()
        transformers.logging.set_verbosity_error()
        self._task, self._folder = task, request.checkpoint
        safe = None if request.allow_pickle else True
        self._settings: dict[str, Any] = {"dtype": torch.float32, "use_safetensors": safe}
        makers = {
            EMBEDDING: self._sentence_transformer,
            RERANK: self._cross_encoder,
            CLASSIFICATION: self._pipeline,
        }
        self._model = makers.get(task.name, self._pipeline)()

    def answers(
        self, cases: Sequence[TextCase], *, max_tokens: int = MAX_COMPARED_TOKENS
    ) -> list[CaseAnswer]:
        """Return the answer of each case; with more than `max_tokens` tokens it has no values."""
        with torch.inference_mode():
            return [self._answer(case, max_tokens) for case in cases]

    def values(self, cases: Sequence[TextCase]) -> list[Any]:
        """Return the values of each case. Vectors run in batches, in a fifth of the time."""
        if self._task.name != EMBEDDING:
            max_tokens = self._task.text.max_seq_len
            return [answer.values for answer in self.answers(cases, max_tokens=max_tokens)]
        made: list[Any] = []
        for prompt, group in groupby(cases, key=attrgetter("prompt")):
            texts = [case.text for case in group]
            made += list(self._model.encode(texts, prompt_name=prompt, show_progress_bar=False))
        return made

    def _sentence_transformer(self) -> Any:
        folder = str(self._folder)
        if has_modules(self._folder):
            model = sentence_transformers.SentenceTransformer(
                folder, device="cpu", local_files_only=True, model_kwargs=self._settings
            )
        else:
            first = Transformer(folder, model_kwargs=self._settings)
            width = first.get_embedding_dimension()
            modules: list[Any] = [first]
            for step in self._task.steps:  # of engine.options: no Dense
                if isinstance(step, Pooling):
                    modules.append(PoolingModule(width, step.modes))
                else:
                    modules.append(NormalizeModule())
            model = sentence_transformers.SentenceTransformer(modules=modules, device="cpu")
        model.max_seq_length = self._task.text.max_seq_len
        return model.eval()

    def _cross_encoder(self) -> Any:
        return sentence_transformers.CrossEncoder(
            str(self._folder),
            device="cpu",
            local_files_only=True,
            max_length=self._task.text.max_seq_len,
            model_kwargs=self._settings,
        ).eval()

    def _pipeline(self) -> Any:
        is_classification = self._task.name == CLASSIFICATION
        kind = "text-classification" if is_classification else "token-classification"
        head = "SequenceClassification" if is_classification else "TokenClassification"
        auto = getattr(transformers, f"AutoModelFor{head}")
        model = auto.from_pretrained(self._folder, local_files_only=True, **self._settings)
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            self._folder, local_files_only=True, model_max_length=self._task.text.max_seq_len
        )
        options = {"top_k": None} if is_classification else {"aggregation_strategy": "simple"}
        return transformers.pipeline(
            kind, model=model.eval(), tokenizer=tokenizer, device="cpu", **options
        )

    def _answer(self, case: TextCase, max_tokens: int) -> CaseAnswer:
        tokens = self._tokens(case)
        ids = tuple(tokens["input_ids"][0].tolist())
        types = None
        if "token_type_ids" in self._task.text.inputs:
            # Without them the model assumes the first type.
            type_ids = tokens.get("token_type_ids")
            types = (0,) * len(ids) if type_ids is None else tuple(type_ids[0].tolist())
        if len(ids) > max_tokens:
            return CaseAnswer(ids, types, None)
        if self._task.name == EMBEDDING:
            [values] = self._model.encode(
                [case.text], prompt_name=case.prompt, show_progress_bar=False
            )
        elif self._task.name == RERANK:
            values = self._model.predict([(case.text, case.pair)], show_progress_bar=False)
            values = values.reshape(1)
        elif self._task.name == CLASSIFICATION:
            values = self._label_scores(case)
        else:
            return CaseAnswer(ids, types, self._token_scores(tokens), self._entities(case))
        return CaseAnswer(ids, types, np.asarray(values, dtype=np.float32))

    def _tokens(self, case: TextCase) -> Any:
        if self._task.library == "sentence-transformers":
            item: Any = case.text if case.pair is None else (case.text, case.pair)
            prompt = self._model._resolve_prompt(None, case.prompt)
            return self._model.preprocess([item], prompt=prompt)
        return self._model.tokenizer(case.text, case.pair, truncation=True, return_tensors="pt")

    def _label_scores(self, case: TextCase) -> Any:
        item: Any = case.text if case.pair is None else {"text": case.text, "text_pair": case.pair}
        [entries] = self._model([item], truncation=True)
        by_label = {entry["label"]: entry["score"] for entry in entries}
        return np.array([by_label[label] for label in self._task.labels], dtype=np.float32)

    def _token_scores(self, tokens: Any) -> Any:
        model = self._model.model
        inputs = {name: tokens[name] for name in self._task.text.inputs if name in tokens}
        return torch.softmax(model(**inputs).logits, dim=-1)[0].numpy()

    def _entities(self, case: TextCase) -> tuple[tuple[str, int, int], ...]:
        entities = self._model(case.text) if case.text else []
        return tuple(
            (entity["entity_group"], entity["start"], entity["end"]) for entity in entities
        )
