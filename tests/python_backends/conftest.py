# SPDX-License-Identifier: Apache-2.0
"""Makes `textlib` importable, as it is in Triton's stub; small tokenizers of four kinds."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests import sample_tokenizers

BACKENDS = Path(__file__).parents[2] / "python_backends"
LIBRARIES = frozenset(folder.name for folder in BACKENDS.glob("*lib"))
sys.path.insert(0, str(BACKENDS))


@pytest.fixture
def triton_utils(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A stand-in of `triton_python_backend_utils`, empty at first.

    What is imported with it is forgotten afterwards: each test's modules know its own stand-in.
    """
    before = set(sys.modules)
    assert "textlib.triton.edge" not in before, "an earlier test left it, with its own stand-in"
    module = ModuleType("triton_python_backend_utils")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield module
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in LIBRARIES:
            del sys.modules[name]


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tokenizer.json of a byte-level BPE with special and ordinary added tokens."""
    return sample_tokenizers.byte_level(tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="session")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tokenizer.json in the style of Llama 2: Prepend, byte tokens, Strip of one space."""
    return sample_tokenizers.byte_fallback(tmp_path_factory.mktemp("byte_fallback"))


@pytest.fixture(scope="session")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tokenizer.json of a Unigram model with the Metaspace decoder (T5's kind)."""
    return sample_tokenizers.unigram(tmp_path_factory.mktemp("metaspace"))


@pytest.fixture(scope="session")
def bpe_suffix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tokenizer.json of a BPE whose words end in </w>: the last one is known at the end."""
    return sample_tokenizers.bpe_suffix(tmp_path_factory.mktemp("bpe_suffix"))
