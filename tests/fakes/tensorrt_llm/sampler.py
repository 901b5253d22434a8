# SPDX-License-Identifier: Apache-2.0
"""How the next id is chosen: what the samplers of the real package honour, and what they ignore."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .executor import Logprob
from .sampling_params import GuidedDecodingParams, SamplingParams

Logits = NDArray[np.float64]


@dataclass(frozen=True)
class Abilities:
    """C++ samplers have them all; the PyTorch one got them in the summer of 2026."""

    penalties: bool = True
    seed: bool = True
    min_p: bool = True
    bad_words: bool = True


class LiteralGuide:
    """A grammar that knows alternatives of literals alone: regex "(one|two)"."""

    def __init__(self, params: GuidedDecodingParams, tokenizer: Tokenizer, end_id: int) -> None:
        if params.regex is None or not re.fullmatch(r"\([^()\\.*+?\[\]]+\)", params.regex):
            raise ValueError(f"the stand-in has no grammar for {params}")
        self._literals = params.regex[1:-1].split("|")
        self._tokenizer = tokenizer
        self._end_id = end_id

    def allowed(self, made: Sequence[int]) -> list[int]:
        """Ids that keep the text the beginning of a literal; at its end, the end id."""
        text = self._tokenizer.decode(list(made))
        if text in self._literals:
            return [self._end_id]
        rest = [literal[len(text) :] for literal in self._literals if literal.startswith(text)]
        vocabulary = range(self._tokenizer.get_vocab_size())
        pieces = {token: self._tokenizer.decode([token]) for token in vocabulary}
        ids = [t for t, piece in pieces.items() if piece and any(r.startswith(piece) for r in rest)]
        if not ids:
            raise ValueError("no id conforms to the guide")
        return ids


@dataclass
class Chooser:
    """The sampling state of one request."""

    params: SamplingParams
    prompt: Sequence[int]
    abilities: Abilities
    shared: np.random.Generator
    guide: LiteralGuide | None = None
    made: list[int] = field(default_factory=list)
    _own: np.random.Generator | None = None

    def __post_init__(self) -> None:
        """None is the C++ default, 0: the same numbers for every request."""
        if self.abilities.seed:
            self._own = np.random.default_rng(self.params.seed or 0)

    def choose(self, raw: NDArray[np.float32]) -> tuple[int, dict[int, Logprob]]:
        """The next id, and its log probability before everything that bends it."""
        logits = raw.astype(np.float64)
        log_probs = logits - np.logaddexp.reduce(logits)
        token = self._pick(self._bent(logits))
        rank = int((log_probs > log_probs[token]).sum()) + 1
        self.made.append(token)
        return token, {token: Logprob(float(log_probs[token]), rank)}

    def _bent(self, logits: Logits) -> Logits:
        if self.abilities.penalties:
            logits = self._penalised(logits)
        params = self.params
        if len(self.made) < (params.min_tokens or 0) and params.end_id and not params.ignore_eos:
            logits[params.end_id] = -np.inf
        for word in params._get_bad_words() if self.abilities.bad_words else ():
            if self.made[len(self.made) - len(word) + 1 :] == word[:-1]:
                logits[word[-1]] = -np.inf
        if self.guide:
            masked = np.full_like(logits, -np.inf)
            allowed = self.guide.allowed(self.made)
            masked[allowed] = logits[allowed]
            logits = masked
        return logits

    def _penalised(self, logits: Logits) -> Logits:
        params = self.params
        counts = np.bincount([*self.prompt, *self.made], minlength=len(logits))
        repetition = params.repetition_penalty or 1.0
        scaled = np.where(logits < 0, logits * repetition, logits / repetition)
        logits = np.where(counts > 0, scaled, logits)
        logits = logits - (params.frequency_penalty or 0.0) * counts
        return logits - (params.presence_penalty or 0.0) * (counts > 0)

    def _pick(self, logits: Logits) -> int:
        params = self.params
        if params._greedy_decoding and (params.top_k == 1 or not params.temperature):
            return int(logits.argmax())
        logits = logits / (params.temperature or 1.0)
        order = np.argsort(-logits, kind="stable")
        probabilities = np.exp(logits[order] - np.logaddexp.reduce(logits))
        kept = len(order) if not params.top_k else params.top_k
        cumulative = np.cumsum(probabilities)
        nucleus = int(np.searchsorted(cumulative, params.top_p or 1.0)) + 1
        probable = len(order)
        if params.min_p and self.abilities.min_p:
            probable = int((probabilities >= params.min_p * probabilities[0]).sum())
        kept = max(1, min(kept, nucleus, probable))
        weights = probabilities[:kept] / probabilities[:kept].sum()
        return int((self._own or self.shared).choice(order[:kept], p=weights))
