# SPDX-License-Identifier: Apache-2.0
"""The table of sampling parameters, `sampling.json`.

From it come the tensors of ensembles and engines, the limits and defaults of requests, the options
of `tritonctl generate` and `chat`, the fields of the OpenAI API and their pages. An engine lists
what it supports under `[sampling]` of its backend.toml. It is JSON because Python 3.10, in
Triton's images up to 24.10, has no reader for TOML.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Number = float | int
_FILE = Path(__file__).with_name("sampling.json")
_CLIENT_KEYS = ("client_field", "openai")  # for tritonctl's clients


@dataclass(frozen=True, slots=True)
class RequestParameter:
    """A parameter: its entry in the table, whose key is the name of its public tensor [1]."""

    data_type: str  # Triton's
    doc: str  # what it does, for tensors, options and fields
    # The value of an absent parameter, which changes nothing. None: it then has no value.
    neutral: Number | None = None
    minimum: Number | None = None
    exclusive_minimum: Number | None = None
    maximum: Number | None = None
    engine_tensor: str = ""  # its tensor in the engine's model; empty: the public name
    aliases: Sequence[str] = ()  # further public tensors of the same value
    greedy: Number | None = None  # makes an answer greedy, whatever the others are
    # Another value than the neutral one asks for sampling; an answer is greedy without any.
    starts_sampling: bool = False
    changes_greedy: bool = False  # it changes greedy answers, too

    def allows(self, value: Number) -> bool:
        """Whether a value lies in the parameter's range."""
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.exclusive_minimum is None or value > self.exclusive_minimum)
            and (self.maximum is None or value <= self.maximum)
        )

    def range_text(self) -> str:
        """Return the range for messages, such as `from 0 to 1`."""
        if self.exclusive_minimum is not None:
            return f"above {self.exclusive_minimum:g}"
        if self.maximum is None:
            return f"{self.minimum:g} or more"
        return f"from {self.minimum:g} to {self.maximum:g}"

    def to_number(self, value: Number) -> Number:
        """Convert a value to the parameter's type."""
        return float(value) if self.data_type == "TYPE_FP32" else int(value)


def _read_table() -> dict[str, RequestParameter]:
    table = json.loads(_FILE.read_text(encoding="utf-8"))
    return {
        name: RequestParameter(
            **{key: value for key, value in entry.items() if key not in _CLIENT_KEYS}
        )
        for name, entry in table.items()
    }


# By public name, in the order of the file.
PARAMETERS: Mapping[str, RequestParameter] = _read_table()


def public_names() -> dict[str, str]:
    """Return the public name of each engine tensor, aliases included."""
    names = {parameter.engine_tensor or name: name for name, parameter in PARAMETERS.items()}
    return names | {alias: alias for entry in PARAMETERS.values() for alias in entry.aliases}
