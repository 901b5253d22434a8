# SPDX-License-Identifier: Apache-2.0
"""Reshapes of any dims; the other cases of the family are in `cases/config.yaml`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tritonctl.checks.rules.config.tensors import element_counts


@examples(200)
@given(dims=st.lists(st.sampled_from([-1, 1, 2, 3, 4, 6]), max_size=5), data=st.data())
def test_splitting_and_joining_dims_is_a_reshape(dims: list[int], data: st.DataObject) -> None:
    """A reshape may add or drop sizes of 1 and join fixed neighbours; nothing else."""
    shape = [part for size in dims for part in ([2, 3] if size == 6 else [size, 1])]
    assert element_counts(dims) == element_counts(shape)
    index = data.draw(st.integers(0, len(shape)))
    assert element_counts(dims) != element_counts([*shape[:index], 5, *shape[index:]])
    assert element_counts(dims) != element_counts([*shape[:index], -1, *shape[index:]])
