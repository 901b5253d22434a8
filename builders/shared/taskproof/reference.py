# SPDX-License-Identifier: Apache-2.0
"""The reference library's answers, in fp32, each input alone.

Importing this imports torch, transformers and sentence-transformers.
"""

import os
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from buildlib.request import Request
from taskproof.answers import Answer
from taskproof.cases import Case
from taskproof.served import MOST_TOKENS

# Read when the libraries below are imported: the network is never needed here.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import numpy as np
import sentence_transformers
import torch
import transformers
from sentence_transformers.sentence_transformer.modules import Normalize as NormalizeModule
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
from sentence_transformers.sentence_transformer.modules import Transformer

from taskcompile.sentence_modules import has_modules
from taskcompile.task import CLASSIFICATION, EMBEDDING, RERANK, Pooling, Task

_LIBRARIES: dict[str, Any] = {
    "sentence-transformers": sentence_transformers,
    "transformers": transformers,
}


def version_of(task: Task) -> str:
    """Of the task's reference library."""
    return str(_LIBRARIES[task.library].__version__)


class Reference:
    """The checkpoint, as its reference library loads it."""

    def __init__(self, task: Task, request: Request) -> None:
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

    def answers(self, cases: Sequence[Case], *, most: int = MOST_TOKENS) -> list[Answer]:
        """Each case's answer; without values where it has more tokens than `most`."""
        with torch.inference_mode():
            return [self._answer(case, most) for case in cases]

    def values(self, cases: Sequence[Case]) -> list[Any]:
        """Each case's values; vectors in batches, which takes a fifth of the time."""
        if self._task.name != EMBEDDING:
            most = self._task.text.max_seq_len
            return [one.values for one in self.answers(cases, most=most)]
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
        classifies = self._task.name == CLASSIFICATION
        kind = "text-classification" if classifies else "token-classification"
        head = "SequenceClassification" if classifies else "TokenClassification"
        auto = getattr(transformers, f"AutoModelFor{head}")
        model = auto.from_pretrained(self._folder, local_files_only=True, **self._settings)
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            self._folder, local_files_only=True, model_max_length=self._task.text.max_seq_len
        )
        options = {"top_k": None} if classifies else {"aggregation_strategy": "simple"}
        return transformers.pipeline(
            kind, model=model.eval(), tokenizer=tokenizer, device="cpu", **options
        )

    def _answer(self, case: Case, most: int) -> Answer:
        tokens = self._tokens(case)
        ids = tuple(tokens["input_ids"][0].tolist())
        types = None
        if "token_type_ids" in self._task.text.inputs:
            # A tokenizer that does not give them leaves the first type to the model.
            given = tokens.get("token_type_ids")
            types = (0,) * len(ids) if given is None else tuple(given[0].tolist())
        if len(ids) > most:
            return Answer(ids, types, None)
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
            return Answer(ids, types, self._token_scores(tokens), self._entities(case))
        return Answer(ids, types, np.asarray(values, dtype=np.float32))

    def _tokens(self, case: Case) -> Any:
        if self._task.library == "sentence-transformers":
            given: Any = case.text if case.pair is None else (case.text, case.pair)
            prompt = self._model._resolve_prompt(None, case.prompt)
            return self._model.preprocess([given], prompt=prompt)
        return self._model.tokenizer(case.text, case.pair, truncation=True, return_tensors="pt")

    def _label_scores(self, case: Case) -> Any:
        given: Any = case.text if case.pair is None else {"text": case.text, "text_pair": case.pair}
        [made] = self._model([given], truncation=True)
        by_label = {one["label"]: one["score"] for one in made}
        return np.array([by_label[label] for label in self._task.labels], dtype=np.float32)

    def _token_scores(self, tokens: Any) -> Any:
        model = self._model.model
        given = {name: tokens[name] for name in self._task.text.inputs if name in tokens}
        return torch.softmax(model(**given).logits, dim=-1)[0].numpy()

    def _entities(self, case: Case) -> tuple[tuple[str, int, int], ...]:
        made = self._model(case.text) if case.text else []
        return tuple((one["entity_group"], one["start"], one["end"]) for one in made)
