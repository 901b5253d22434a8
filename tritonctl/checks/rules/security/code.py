# SPDX-License-Identifier: Apache-2.0
"""TC90x: what a model.py, or the files that it is set up by, would let others run in the server.

Sources: https://docs.python.org/3/library/pickle.html;
https://pytorch.org/docs/stable/generated/torch.load.html;
https://huggingface.co/docs/transformers/main/en/model_doc/auto (trust_remote_code);
https://github.com/triton-inference-server/python_backend
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tritonctl.checks.analysis.small_files import small_files
from tritonctl.checks.analysis.trtllm_model import filled
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.imports import Named, called
from tritonctl.checks.model_py.source import PythonSource
from tritonctl.checks.places import Span
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import warning

_TRUST = "trust_remote_code"
_SET = re.compile(r"""^\s*["']?trust_remote_code["']?\s*:\s*(?:true|True|TRUE)\b""", re.MULTILINE)
_SET_IN_JSON = re.compile(r'"trust_remote_code"\s*:\s*true\b')
_UNPICKLING = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "_pickle.load", "_pickle.loads"),
    *("cloudpickle.load", "cloudpickle.loads", "dill.load", "dill.loads", "joblib.load"),
    *("pandas.read_pickle", "shelve.open", "jsonpickle.decode", "yaml.unsafe_load"),
    *("torch.load", "numpy.load", "yaml.load"),
}
_SAFE_LOADERS = ("SafeLoader", "CSafeLoader", "BaseLoader", "FullLoader", "CBaseLoader")
_SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
_PROCESSES = {
    f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")
}
_DOWNLOADS = {
    *("urllib.request.urlopen", "urllib.request.urlretrieve"),
    *("requests.get", "requests.post", "httpx.get", "httpx.post"),
}
_URL = re.compile(r"http://([^\s/:?#\"']+)")
_NEAR = re.compile(
    r"localhost|[^.]+|.*\.(?:local|localhost|internal|svc|lan|test|example|invalid)|.*\.svc\..*"
    r"|(?:127|10|0)\.[\d.]+|192\.168\.[\d.]+|172\.(?:1[6-9]|2\d|3[01])\.[\d.]+|169\.254\.[\d.]+"
)


@warning(
    "TC901 remote-code-trusted",
    summary="trust_remote_code, in model.py, in a parameter or in the engine's settings",
    why="Python files that come with the checkpoint, or are fetched from a hub when the model "
    "loads, run with all that the server may do.",
    shows="elsewhere",
)
def trusts_remote_code(config: ConfigMessage, code: PythonSource, model: Model) -> Iterator[Hit]:
    message = f"{_TRUST} lets the code that comes with a checkpoint run in the server"
    fix = "leave it out; if the model needs it, pin a revision that you have read"
    if (filled(config, _TRUST) or "").lower() in ("true", "1"):
        yield Hit(message, fix, config.span("parameters", _TRUST, "string_value"))
    if _TRUST in code.source.text:
        for node in _trusting(code):
            yield Hit(message, fix, *code.at(node))
    for source in small_files(model):
        if _TRUST in source.text:
            pattern = _SET_IN_JSON if source.name.endswith(".json") else _SET
            for match in pattern.finditer(source.text):
                at = match.start() + match.group().index(_TRUST)
                yield Hit(message, fix, Span(at, at + len(_TRUST)), source)


def _trusting(code: PythonSource) -> Iterator[ast.expr]:
    """Each True that is given under the name."""
    for node in code.nodes:
        if isinstance(node, ast.keyword) and node.arg == _TRUST and _is_true(node.value):
            yield node.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == _TRUST and _is_true(value):
                    yield value


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


@warning(
    "TC902 unpickling",
    summary="a model.py that unpickles",
    why="Reading a pickle runs a program: whoever can replace the file, or send the "
    "bytes, runs code in the server. torch.load refuses that by default from PyTorch 2.6 on.",
)
def unpickling(code: PythonSource) -> Iterator[Hit]:
    for named, fix in unpickles(code):
        yield Hit(
            f"{named.call.dotted} runs the code that is in what it reads",
            fix,
            *code.at(named.call.node),
        )


def unpickles(code: PythonSource) -> tuple[tuple[Named, str], ...]:
    """The calls that may run what they read, with what to write instead."""
    return tuple((named, fix) for named in called(code, _UNPICKLING) if (fix := _unsafe(named)))


def _unsafe(named: Named) -> str | None:
    """What to write instead of a call; None where it is safe, or unclear."""
    if named.name == "torch.load":
        safe = named.keyword_is("weights_only", True) or named.keyword_varies("weights_only")
        return None if safe else "give weights_only=True, or read safetensors"
    if named.name == "numpy.load":
        allowed = named.keyword_is("allow_pickle", True)
        return "leave allow_pickle out, and store arrays of plain numbers" if allowed else None
    if named.name == "yaml.load":
        loader = named.call.argument(1, "Loader")
        known = isinstance(loader, ast.Name | ast.Attribute)
        unsafe = loader is None or (known and not ast.unparse(loader).endswith(_SAFE_LOADERS))
        return "call yaml.safe_load" if unsafe and not named.spread else None
    if named.name == "yaml.unsafe_load":
        return "call yaml.safe_load"
    return "store data as JSON, and weights as safetensors, NumPy or ONNX"


@warning(
    "TC903 text-run-as-code",
    summary="a model.py that runs text as Python or in a shell",
    why="If any of the text comes with a request, whoever can send one runs code in the server.",
)
def evaluating(code: PythonSource) -> Iterator[Hit]:
    own = {node.name for node in code.nodes if isinstance(node, ast.FunctionDef)}
    for named in called(code, {"eval", "exec", *_SHELLS, *_PROCESSES} - own):
        if named.name in _PROCESSES and not named.keyword_is("shell", True):
            continue
        given = named.call.argument(0, "args" if named.name in _PROCESSES else "cmd")
        if given is None or _is_fixed(given):
            continue
        shell = named.name not in ("eval", "exec")
        yield Hit(
            f"{named.call.dotted} runs whatever text it is given, "
            + ("in a shell" if shell else "as Python"),
            "call subprocess.run with a list of arguments, without shell=True"
            if shell
            else "read values with ast.literal_eval or json.loads",
            *code.at(named.call.node),
        )


def _is_fixed(node: ast.expr) -> bool:
    """Whether it is the same text every time: constants, and what is put together of them."""
    fixed = (ast.Constant, ast.JoinedStr, ast.BinOp, ast.operator)
    return all(isinstance(part, fixed) for part in ast.walk(node))


@warning(
    "TC904 fetched-in-the-clear",
    summary="something that is fetched over http from another network",
    why="Whoever is on the way can change what arrives: a tokenizer, labels, or weights.",
)
def plain_http(config: ConfigMessage, code: PythonSource) -> Iterator[Hit]:
    fix = "use https, or keep the file in the repository"
    for key, value in config.message.parameters.items():
        host = _far(value.string_value) if value.string_value.startswith("http://") else None
        if host:
            message = f"{key} is fetched from {host} without encryption"
            yield Hit(message, fix, config.span("parameters", key, "string_value"))
    for named in called(code, _DOWNLOADS) if "http://" in code.source.text else ():
        host = _far(named.call.text(0, "url") or "")
        if host:
            message = f"{named.call.dotted} fetches from {host} without encryption"
            yield Hit(message, fix, *code.at(named.call.node))


def _far(text: str) -> str | None:
    """The host of an http URL, where it is not in the own network, as far as its name tells."""
    match = _URL.match(text)
    return match[1] if match and not _NEAR.fullmatch(match[1].lower()) else None
