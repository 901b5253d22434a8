# SPDX-License-Identifier: Apache-2.0
"""Models of the Python backend whose auto_complete_config the backend refuses."""

from __future__ import annotations

from tests.strangers.configurations import CODE, STRICT_SERVER, TENSORS, Case, Files, cases, model

_METHOD = """
    @staticmethod
    def auto_complete_config(config):
{}
"""
_INITIALIZE = """
    def initialize(self, args):
        self.settings = json.loads(args["model_config"])
"""
IN = 'config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [16]})'
OUT = 'config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [16]})'
RETURN = "return config"


def completing(*lines: str, config: str = TENSORS) -> Files:
    """A model whose auto_complete_config has these lines."""
    method = _METHOD.format("\n".join(f"        {line}" for line in lines))
    text = f'name: "m"\nbackend: "python"\n{config}'
    return {"m/config.pbtxt": text, "m/1/model.py": CODE.format(method)}


def _named(dictionary: str) -> tuple[str, ...]:
    """Lines that add an input by way of a name for its dictionary."""
    return f"tensor = {dictionary}", "config.add_input(tensor)", OUT, RETURN


def bare(*lines: str) -> Files:
    """The same without a config.pbtxt."""
    return {"m/1/model.py": completing(*lines)["m/1/model.py"]}


def _batched(more: str) -> str:
    return f"max_batch_size: 4\n{TENSORS}{more}\n"


_DECOUPLED = "model_transaction_policy {{ decoupled: {} }}\n"
_MISSING = {
    "name": '{"data_type": "TYPE_FP32", "dims": [16]}',
    "data_type": '{"name": "IN", "dims": [16]}',
    "dims": '{"name": "IN", "data_type": "TYPE_FP32"}',
}
_LIST = 'tensors = [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}]'
_LOOP = (
    'tensors = [{"name": "IN", "dims": [16]}]',
    "for one in tensors:",
    "    config.add_input(one)",
)
_KNOWN = 'names = [known["name"] for known in config.as_dict()["input"]]'
_NEW = 'if one["name"] not in names:'
_UNKNOWN = '{"name": "IN", "data_type": "TYPE_FP32", "dims": [16], "is_shape_tensor": True}'

PYTHON: tuple[Case, ...] = cases(
    {
        "no return": (completing(IN, OUT), "TC241"),
        "a return of None": (completing(IN, OUT, "return None"), "TC241"),
        "a return of nothing": (completing(IN, OUT, "return"), "TC241"),
        "only a docstring": (completing('"""Nothing to add."""'), "TC241"),
        "a return of the dictionary": (completing(IN, "return config.as_dict()"), "TC241"),
        **{
            f"an added input without {key}": (completing(*_named(tensor), config=""), "TC240")
            for key, tensor in _MISSING.items()
        },
        **{
            f"an added output without {key}": (
                completing(IN, f"config.add_output({tensor})", RETURN, config=""),
                "TC240",
            )
            for key, tensor in _MISSING.items()
        },
        **{
            f"an input of the file added again without {key}": (
                completing(*_named(tensor)),
                "TC240",
            )
            for key, tensor in _MISSING.items()
        },
        **{
            f"an output of the file added again without {key}": (
                completing(IN, f"config.add_output({tensor.replace('IN', 'OUT')})", RETURN),
                "TC240",
            )
            for key, tensor in _MISSING.items()
        },
        "an input of the file added again with an unknown key": (
            completing(*_named(_UNKNOWN)),
            "TC240",
        ),
        "an added input with an unknown key": (
            completing(*_named(_UNKNOWN), config=""),
            "TC240",
        ),
        "an optional output": (
            completing(
                IN,
                f"config.add_output({_UNKNOWN.replace('is_shape_tensor', 'optional')})",
                RETURN,
                config="",
            ),
            "TC240",
        ),
        "an added input of a size 0": (
            completing(IN.replace("16", "0"), OUT, RETURN, config=""),
            "TC240",
        ),
        "an added input without a dimension": (
            completing(IN.replace("16", ""), OUT, RETURN, config=""),
            "TC240",
        ),
        "a list with an input without a type": (
            completing(*_LOOP, RETURN, config=""),
            "TC240",
        ),
        "a list with a new input without a type": (
            completing(
                _LOOP[0], _KNOWN, _LOOP[1], f"    {_NEW}", f"    {_LOOP[2]}", RETURN, config=""
            ),
            "TC240",
        ),
        "a list with an input of other dims": (
            completing(_LIST.replace("[4]", "[8]"), *_LOOP[1:], RETURN),
            "TC223",
        ),
        "a name that nothing defines": (completing(IN, "nothing", OUT, RETURN, config=""), "TC244"),
        "a name that nothing defines, in initialize": (
            model(TENSORS) | {"m/1/model.py": CODE.format(_INITIALIZE)},
            "TC244",
        ),
        "a module that nothing imports": (
            model(TENSORS) | {"m/1/model.py": f"SIZE = np.float32(1)\n\n\n{CODE.format('')}"},
            "TC244",
        ),
        "no return, and no configuration": (bare(IN, OUT), "TC241"),
        "an unknown key, and no configuration": (bare(*_named(_UNKNOWN)), "TC240"),
        "an input of another type": (
            completing(IN.replace("FP32", "INT32"), OUT, RETURN),
            "TC223",
        ),
        "an input of other dims": (completing(IN.replace("16", "4"), OUT, RETURN), "TC223"),
        "dims that are a tuple": (completing(IN.replace("[16]", "(16,)"), RETURN), "TC223"),
        "an output of another type": (
            completing(IN, OUT.replace("FP32", "INT32"), RETURN),
            "TC223",
        ),
        "an output of other dims": (completing(OUT.replace("16", "4"), RETURN), "TC223"),
        "an optional input that is not": (
            completing(IN.replace("}", ', "optional": True}'), RETURN),
            "TC223",
        ),
        "a smaller batch": (
            completing("config.set_max_batch_size(2)", RETURN, config=_batched("")),
            "TC223",
        ),
        "a negative batch": (completing("config.set_max_batch_size(-1)", RETURN), "TC223"),
        "a batcher where sequences are batched": (
            completing(
                "config.set_dynamic_batching()", RETURN, config=_batched("sequence_batching { }")
            ),
            "TC223",
        ),
        "a policy of another key": (
            completing('config.set_model_transaction_policy({"streams": True})', RETURN),
            "TC242",
        ),
        "a policy of another key, by its name": (
            completing(
                'policy = {"decouple": True}',
                "config.set_model_transaction_policy(policy)",
                RETURN,
            ),
            "TC242",
        ),
        "a policy of None": (
            completing("config.set_model_transaction_policy(None)", RETURN),
            "TC242",
        ),
        "a batcher where the file has steps": (
            completing(
                "config.set_dynamic_batching()", RETURN, config=_batched("ensemble_scheduling { }")
            ),
            "TC223 TC301",
        ),
        "not decoupled, and the file says decoupled": (
            completing(
                "config.set_model_transaction_policy(dict(decoupled=False))",
                RETURN,
                config=TENSORS + _DECOUPLED.format("true"),
            ),
            "TC223",
        ),
        "decoupled, and the file says not": (
            completing(
                'config.set_model_transaction_policy({"decoupled": True})',
                RETURN,
                config=TENSORS + _DECOUPLED.format("false"),
            ),
            "TC223",
        ),
    }
)
# Wrong only where the server was told --disable-auto-complete-config.
STRICT: tuple[Case, ...] = cases(
    {
        "no configuration, strictly": (
            {"m/1/model.py": completing(IN, OUT, RETURN)["m/1/model.py"]},
            "TC029",
        ),
        "a type that the code would add, strictly": (
            completing(IN, RETURN, config=TENSORS.replace("data_type: TYPE_FP32", "", 1)),
            "TC161",
        ),
        "dims that the code would add, strictly": (
            completing(IN, RETURN, config=TENSORS.replace("dims: [ 16 ]", "", 1)),
            "TC162",
        ),
    },
    STRICT_SERVER,
)
