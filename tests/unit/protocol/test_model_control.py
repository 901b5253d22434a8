# SPDX-License-Identifier: Apache-2.0
"""In which order models are loaded, and whether what is live is what was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from tritonctl.protocol.model_control import Swap, includes, swap


def ensemble(max_batch_size: int, **more: Any) -> dict[str, Any]:
    return {"max_batch_size": max_batch_size, "ensemble_scheduling": {"step": []}, **more}


def configs(step: int, whole: int) -> dict[str, dict[str, Any]]:
    return {"a": ensemble(whole), "a_engine": {"max_batch_size": step}}


def test_growing_batches_begin_with_the_step() -> None:
    """The ensemble may not be above what its steps allow."""
    assert swap(configs(8, 8), configs(16, 16)) == Swap((), ("a_engine", "a"))


def test_shrinking_batches_begin_with_the_ensemble() -> None:
    """A step below its ensemble would unload the ensemble, and be ready itself."""
    assert swap(configs(16, 16), configs(8, 8)) == Swap((), ("a", "a_engine"))


def test_batches_that_stay_begin_with_the_step() -> None:
    """Only an ensemble that falls goes first."""
    after = {"a": ensemble(8, parameters={"b": 1}), "a_engine": {"max_batch_size": 8, "c": 1}}
    assert swap(configs(8, 8), after) == Swap((), ("a_engine", "a"))


def test_only_what_changes_is_loaded() -> None:
    """Every load costs a second, and looks at the ensemble again."""
    assert swap(configs(8, 8), configs(8, 8)) == Swap()
    assert swap(configs(16, 8), configs(8, 8)) == Swap((), ("a_engine",))


def test_an_unknown_state_is_loaded_again() -> None:
    """After a load that failed nobody knows what is live."""
    assert swap({}, configs(8, 8)) == Swap((), ("a_engine", "a"))


@pytest.mark.parametrize("known", [True, False])
def test_a_decoupled_step_is_not_swapped_under_its_ensemble(known: bool) -> None:
    """Both go before both come, the ensemble first and last, even one whose batches shrink."""
    whole = {"max_batch_size": 8, "ensemble_scheduling": {"step": [{"model_name": "a_engine"}]}}
    step = {"model_transaction_policy": {"decoupled": True}, "max_batch_size": 8}
    before = {"a": whole | {"max_batch_size": 16}, "a_engine": step, "other": ensemble(4)}
    after = before | {"a": whole, "a_engine": step | {"parameters": {"blocks": "9"}}}
    wanted = Swap(("a", "a_engine"), ("a_engine", "a"))
    assert swap(before if known else {"other": ensemble(4)}, after) == wanted
    assert swap(before, before | {"other": ensemble(8)}) == Swap((), ("other",))


def test_a_step_that_is_decoupled_no_longer_goes_first_too() -> None:
    """What runs is what cannot be swapped."""
    whole = {"max_batch_size": 8, "ensemble_scheduling": {"step": [{"model_name": "a_engine"}]}}
    decoupled = {"model_transaction_policy": {"decoupled": True}, "max_batch_size": 8}
    before, after = {"a": whole, "a_engine": decoupled}, {"a": whole, "a_engine": {}}
    assert swap(before, after) == Swap(("a", "a_engine"), ("a_engine", "a"))


@pytest.mark.parametrize(
    ("live", "planned", "equal"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({}, {"a": 1}, False),
        ({"a": {"b": "1", "c": 1}}, {"a": {"b": "1"}}, True),
        ({"a": [{"count": 2, "name": "x"}]}, {"a": [{"count": 2}]}, True),
        ({"a": [{"count": 2}]}, {"a": [{"count": 2}, {"count": 1}]}, False),
        ({"a": "text"}, {"a": {"b": 1}}, False),
        ({"dynamic_batching": {}}, {"dynamic_batching": {}}, True),
        ({}, {"dynamic_batching": {}}, False),
    ],
)
def test_triton_adds_but_must_not_drop(live: Any, planned: Any, equal: bool) -> None:
    """Defaults that it fills in are no difference; a field of ours that is missing is."""
    assert includes(live, planned) is equal
