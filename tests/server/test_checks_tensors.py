# SPDX-License-Identifier: Apache-2.0
"""Rules about tensors whose mistake shows at the first requests: what a real Triton answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.judge import proven
from tests.served import NEVER, VALUES, Served, request_of
from tritonctl.checks.rules import RULES

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all of them."""
    server = Served(tmp_path_factory.mktemp("served"))
    yield server
    server.stop()


@pytest.fixture
def served(one_server: Served, request: pytest.FixtureRequest) -> Served:
    """As it is, or another one."""
    return proven(one_server, request)


def failed(answers: list[Any]) -> list[str]:
    return [answer for answer in answers if isinstance(answer, str)]


@pytest.mark.parametrize(
    ("name", "clients", "message"),
    [
        ("TC222", 1, "execute"),
        ("TC227", 1, "takes 1 positional argument but 2 were given"),
        ("TC229", 1, "incompatible constructor arguments"),
        ("TC230", 1, "'NoneType' object has no attribute 'as_numpy'"),
        ("TC235", 8, "number of"),
    ],
)
def test_requests_fail(name: str, clients: int, message: str, served: Served) -> None:
    """Of the bad example some, of the good one none."""
    served.serve(RULES[name].good_example)
    assert failed(served.answers(clients)) == []
    served.serve(RULES[name].bad_example)
    errors = failed(served.answers(clients))
    assert errors
    assert all(message in error for error in errors)


def test_clients_wait_for_ever(served: Served) -> None:
    """Nothing comes back, not even an error."""
    served.serve(RULES["TC228"].good_example)
    assert failed(served.answers()) == []
    served.serve(RULES["TC228"].bad_example)
    assert served.answers(patience=NEVER) == ["Deadline Exceeded"]
    served.restart()


def test_another_type_than_declared(served: Served) -> None:
    """The answer says so itself, but nobody has been told before."""
    served.serve(RULES["TC234"].bad_example)
    [answer] = served.answers()
    assert answer.outputs[0].datatype == "FP64"
    declared = served.declared()
    assert declared.outputs[0].datatype == "FP32"


@pytest.mark.parametrize(("name", "outputs"), [("TC232", []), ("TC233", ["OUTPUT"])])
def test_outputs_that_nobody_gets(name: str, outputs: list[str], served: Served) -> None:
    """No error; what is made under another name, or not at all, is not in the answer."""
    served.serve(RULES[name].bad_example)
    [answer] = served.answers()
    assert [one.name for one in answer.outputs] == outputs


def test_a_type_that_numpy_has_not(served: Served) -> None:
    """The request is taken, and fails in the code."""
    served.serve(RULES["TC237"].bad_example)
    request = request_of("m", VALUES)
    request.inputs[0].datatype = "BF16"
    request.raw_input_contents[0] = bytes(2 * len(VALUES))
    [answer] = served.answers_to(request)
    assert "cannot be converted to NumPy" in answer
