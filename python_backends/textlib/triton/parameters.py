# SPDX-License-Identifier: Apache-2.0
"""Settings of a Python model, read from the `parameters` of its config.pbtxt."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from textlib.errors import ModelConfigurationError

Setting = str | int | float | bool
_BOOLEANS = {"true": True, "false": False}


class ModelParameters:
    """Typed access to string parameters; every error names model, key and remedy."""

    def __init__(self, model: str, values: Mapping[str, str]) -> None:
        self._model = model
        self._values = values

    @classmethod
    def from_model_config(cls, model_config: str) -> "ModelParameters":
        """Read `args["model_config"]`, the JSON form of config.pbtxt that Triton passes."""
        config = json.loads(model_config)
        parameters = config.get("parameters", {})
        values = {key: str(value.get("string_value", "")) for key, value in parameters.items()}
        return cls(str(config.get("name", "model")), values)

    def as_message(self) -> dict[str, Any]:
        """Return model and values for another process."""
        return {"model": self._model, "parameters": dict(self._values)}

    def integer(self, key: str, *, minimum: int = 1, default: int | None = None) -> int:
        """Return an integer of at least `minimum`; `default` if the parameter is absent."""
        if default is not None and key not in self._values:
            return default
        text = self._text(key)
        try:
            number = int(text)
        except ValueError:
            raise self._malformed(key, text, "a whole number") from None
        if number < minimum:
            raise self._malformed(key, text, f"a whole number of at least {minimum}")
        return number

    def boolean(self, key: str, *, default: bool | None = None) -> bool:
        """Return `true` or `false`; `default` if the parameter is absent."""
        if default is not None and key not in self._values:
            return default
        text = self._text(key)
        if text.lower() not in _BOOLEANS:
            raise self._malformed(key, text, "true or false")
        return _BOOLEANS[text.lower()]

    def integers(self, key: str) -> tuple[int, ...]:
        """Return a JSON list of integers, possibly empty."""
        value = self._parse_json(key, "a JSON list of whole numbers, for example [1, 2]")
        if not isinstance(value, list) or any(type(item) is not int for item in value):
            raise self._malformed(
                key, self._text(key), "a JSON list of whole numbers, for example [1, 2]"
            )
        return tuple(value)

    def choice(self, key: str, choices: Sequence[str]) -> str:
        """Return one of `choices`."""
        text = self._text(key)
        if text not in choices:
            raise self._malformed(key, text, f"one of {', '.join(filter(None, choices))}")
        return text

    def text(self, key: str) -> str:
        """Return any text, possibly empty."""
        return self._text(key)

    def json_object(self, key: str) -> dict[str, Any]:
        """Return a JSON object with any nesting."""
        expected = 'a JSON object, for example {"free_gpu_memory_fraction": 0.5}'
        value = self._parse_json(key, expected)
        if not isinstance(value, dict):
            raise self._malformed(key, self._text(key), expected)
        return value

    def settings(self, key: str) -> dict[str, Setting]:
        """Return a flat JSON object."""
        expected = 'a flat JSON object, for example {"INFERENCE_PRECISION_HINT": "f32"}'
        value = self._parse_json(key, expected)
        if not isinstance(value, dict) or not all(
            isinstance(item, Setting) for item in value.values()
        ):
            raise self._malformed(key, self._text(key), expected)
        return value

    def _parse_json(self, key: str, expected: str) -> object:
        text = self._text(key)
        try:
            return json.loads(text)
        except ValueError:
            raise self._malformed(key, text, expected) from None

    def _text(self, key: str) -> str:
        if key not in self._values:
            raise ModelConfigurationError(
                f"{self._model}: config.pbtxt has no parameter '{key}'. Someone wrote it by hand, "
                "or another version did; run `tritonctl render` again."
            )
        return self._values[key].strip()

    def _malformed(self, key: str, text: str, expected: str) -> ModelConfigurationError:
        return ModelConfigurationError(
            f"{self._model}: parameter '{key}' in config.pbtxt is '{text}', expected {expected}. "
            "Correct it in tritonctl.yaml and run `tritonctl render` again."
        )
