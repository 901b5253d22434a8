# SPDX-License-Identifier: Apache-2.0
"""TC354: how Python makes a text's vector, against the modules.json beside it or elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.repository import Target
from tritonctl.checks.rules import RULES

TARGET = Target("2.51.0")
RULE = RULES["TC354"]
CODE, POOLING = "m/1/model.py", "m/1/1_Pooling/config.json"
NAMED = 'states = pb_utils.get_input_tensor_by_name(request, "last_hidden_state").as_numpy()'
MASKED = "token_embeddings = output[0]\n    mask = mask.unsqueeze(-1).expand(output[0].size())"
FIRST, LAST, LARGEST, MEAN = "first token", "last token", "largest value", "adds up"


def found(repository: Path, code: str, files: dict[str, str] | None = None) -> list[str]:
    """What the rule says of code in a function, beside a checkpoint pooled by the mean."""
    every = dict(RULE.bad) | {CODE: f"def pool(request, output, mask):\n    {code}\n"}
    findings = check_repository(put(repository, every | (files or {})), TARGET, rules=[RULE])
    return [finding.message for finding in findings.findings]


def pooled_by(record: object) -> dict[str, str]:
    """The file of the module Pooling with other content."""
    return {POOLING: json.dumps(record)}


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (f"{NAMED}\n    return states[:, 0]", FIRST),
        (f"{NAMED}\n    return states[:, 0, :]", FIRST),
        (f"{NAMED}\n    return states[:, -1]", LAST),
        (f"{NAMED}\n    return states.mean(axis=1)", MEAN),
        (f"{NAMED}\n    return states.max(1)", LARGEST),
        ("return output.last_hidden_state[:, 0].cpu().numpy()", FIRST),
        ('return output["token_embeddings"].float().mean(dim=1)', MEAN),
        (f"{MASKED}\n    return torch.sum(token_embeddings * mask, 1) / mask.sum(1)", MEAN),
        (f"{MASKED}\n    return torch.max(token_embeddings, 1)[0]", LARGEST),
        ('return np.einsum("nth,nt->nh", output.last_hidden_state, mask)', MEAN),
        ("return np.asarray(output.last_hidden_state).mean(-2)", MEAN),
    ],
)
def test_every_way_to_pool(tmp_path: Path, code: str, what: str) -> None:
    """Each is known for what it is: right beside its own pooling, wrong beside another."""
    modes = {FIRST: "cls", LAST: "lasttoken", LARGEST: "max", MEAN: "mean"}
    assert found(tmp_path, code, pooled_by({"pooling_mode": modes[what]})) == []
    other = "max" if what == MEAN else "mean"
    [message] = found(tmp_path, code, pooled_by({"pooling_mode": other}))
    assert what in message
    assert message.endswith(f"and m/1/1_Pooling/config.json says {other}")


@pytest.mark.parametrize(
    "code",
    [
        f"{NAMED}\n    return states[0]",
        f"{NAMED}\n    return states[:, 1:]",
        f"{NAMED}\n    return states.mean(axis=0)",
        f"{NAMED}\n    return states.sum(axis=2)",
        f"{NAMED}\n    return states / np.linalg.norm(states, axis=1)",
        "return output.pooler_output[:, 0]",
        "return mask[:, 0]",
        "last_hidden_state = 1",
    ],
)
def test_what_is_no_pooling(tmp_path: Path, code: str) -> None:
    """One text of a batch, a slice of tokens, other axes, other arrays."""
    assert found(tmp_path, code) == []


@pytest.mark.parametrize(
    ("record", "modes"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode": ["mean", "max"]}, "mean, max"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, None),
        ({"pooling_mode": "cls"}, None),
        ({}, None),
        ([], None),
    ],
)
def test_what_a_checkpoint_says(tmp_path: Path, record: object, modes: str | None) -> None:
    """Both formats of sentence-transformers, several at once; nothing where it says nothing."""
    said = found(tmp_path, f"{NAMED}\n    return states[:, 0]", pooled_by(record))
    assert [message.rpartition("says ")[2] for message in said] == ([modes] if modes else [])


def test_code_that_can_do_both(tmp_path: Path) -> None:
    """It has a setting for it."""
    both = f"{NAMED}\n    return states[:, 0] if mask is None else states.mean(axis=1)"
    assert found(tmp_path, both) == []


def test_a_checkpoint_elsewhere_in_the_repository(tmp_path: Path) -> None:
    """In the encoder's folder; with two that pool differently nobody knows whose states come."""
    code = f"{NAMED}\n    return states[:, 0]"
    here, pooling = str(RULE.bad["m/1/modules.json"]), str(RULE.bad[POOLING])
    moved = {"m/1/modules.json": "[]", "e/1/modules.json": here}
    assert len(found(tmp_path, code, moved | {"e/1/1_Pooling/config.json": pooling})) == 1
    other = {"f/modules.json": here, "f/1_Pooling/config.json": '{"pooling_mode": "cls"}'}
    assert found(tmp_path, code, moved | other) == []


@pytest.mark.parametrize(
    "modules",
    [
        "{",
        "{}",
        "[1]",
        '[{"path": "../1/1_Pooling", "type": "sentence_transformers.models.Pooling"}]',
        '[{"path": "/etc", "type": "sentence_transformers.models.Pooling"}]',
        '[{"path": "1_Pooling", "type": "own.Modules"}]',
    ],
)
def test_files_that_say_nothing(tmp_path: Path, modules: str) -> None:
    """No JSON, no modules, and paths that lead out of the checkpoint."""
    code = f"{NAMED}\n    return states[:, 0]"
    assert found(tmp_path, code, {"m/1/modules.json": modules}) == []
