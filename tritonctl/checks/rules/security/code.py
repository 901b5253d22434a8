# SPDX-License-Identifier: Apache-2.0
"""TC90x: code in a model.py or its settings that lets others run code in the server.

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
from tritonctl.checks.analysis.trtllm_model import filled_parameter
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.imports import QualifiedCall, calls_of
from tritonctl.checks.model_py.source import PythonSource
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import warning
from tritonctl.checks.source_span import Span

_TRUST = "trust_remote_code"
_YAML_SETTING = re.compile(
    r"""^\s*["']?trust_remote_code["']?\s*:\s*(?:true|True|TRUE)\b""", re.MULTILINE
)
_JSON_SETTING = re.compile(r'"trust_remote_code"\s*:\s*true\b')
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
_LOCAL_HOST = re.compile(
    r"localhost|[^.]+|.*\.(?:local|localhost|internal|svc|lan|test|example|invalid)|.*\.svc\..*"
    r"|(?:127|10|0)\.[\d.]+|192\.168\.[\d.]+|172\.(?:1[6-9]|2\d|3[01])\.[\d.]+|169\.254\.[\d.]+"
)


@warning(
    "TC901 remote-code-trusted",
    summary="trust_remote_code, in model.py, in a parameter or in the engine's settings",
    reason="Python files from the checkpoint, or fetched from a hub when the model loads, run with "
    "all permissions of the server.",
    shows="elsewhere",
)
def trusts_remote_code(config: ConfigMessage, code: PythonSource, model: Model) -> Iterator[Hit]:
    message = f"{_TRUST} runs the code of a checkpoint in the server"
    fix = "remove it; if the model needs it, pin a revision that you have reviewed"
    if (filled_parameter(config, _TRUST) or "").lower() in ("true", "1"):
        yield Hit(message, fix, config.span("parameters", _TRUST, "string_value"))
    if _TRUST in code.source.text:
        for node in _trusting_nodes(code):
            yield Hit(message, fix, *code.node_location(node))
    for source in small_files(model):
        if _TRUST in source.text:
            pattern = _JSON_SETTING if source.name.endswith(".json") else _YAML_SETTING
            for match in pattern.finditer(source.text):
                start = match.start() + match.group().index(_TRUST)
                yield Hit(message, fix, Span(start, start + len(_TRUST)), source)


def _trusting_nodes(code: PythonSource) -> Iterator[ast.expr]:
    """Yield each True passed under the name."""
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
    reason="Reading a pickle runs code: anyone who can replace the file, or send the bytes, runs "
    "code in the server. torch.load refuses that by default from PyTorch 2.6 on.",
)
def unpickling(code: PythonSource) -> Iterator[Hit]:
    for qualified_call, fix in unpickling_calls(code):
        yield Hit(
            f"{qualified_call.call.dotted} runs code contained in its input",
            fix,
            *code.node_location(qualified_call.call.node),
        )


def unpickling_calls(code: PythonSource) -> tuple[tuple[QualifiedCall, str], ...]:
    """Return the calls that may run code from their input, each with a safe replacement."""
    return tuple(
        (qualified_call, fix)
        for qualified_call in calls_of(code, _UNPICKLING)
        if (fix := _safe_replacement(qualified_call))
    )


def _safe_replacement(qualified_call: QualifiedCall) -> str | None:
    """Return the replacement of an unsafe call; None if it is safe or unclear."""
    if qualified_call.name == "torch.load":
        safe = qualified_call.has_constant_keyword(
            "weights_only", True
        ) or qualified_call.has_variable_keyword("weights_only")
        return None if safe else "pass weights_only=True, or read safetensors"
    if qualified_call.name == "numpy.load":
        allowed = qualified_call.has_constant_keyword("allow_pickle", True)
        return "remove allow_pickle, and store arrays of plain numbers" if allowed else None
    if qualified_call.name == "yaml.load":
        loader = qualified_call.call.argument(1, "Loader")
        is_named_loader = isinstance(loader, ast.Name | ast.Attribute)
        unsafe = loader is None or (
            is_named_loader and not ast.unparse(loader).endswith(_SAFE_LOADERS)
        )
        return "call yaml.safe_load" if unsafe and not qualified_call.has_spread else None
    if qualified_call.name == "yaml.unsafe_load":
        return "call yaml.safe_load"
    return "store data as JSON, and weights as safetensors, NumPy or ONNX"


@warning(
    "TC903 text-run-as-code",
    summary="a model.py that runs text as Python or in a shell",
    reason="If part of the text comes from a request, any client can run code in the server.",
)
def evaluating(code: PythonSource) -> Iterator[Hit]:
    local_functions = {node.name for node in code.nodes if isinstance(node, ast.FunctionDef)}
    for qualified_call in calls_of(code, {"eval", "exec", *_SHELLS, *_PROCESSES} - local_functions):
        if qualified_call.name in _PROCESSES and not qualified_call.has_constant_keyword(
            "shell", True
        ):
            continue
        text_node = qualified_call.call.argument(
            0, "args" if qualified_call.name in _PROCESSES else "cmd"
        )
        if text_node is None or _is_fixed(text_node):
            continue
        runs_in_shell = qualified_call.name not in ("eval", "exec")
        yield Hit(
            f"{qualified_call.call.dotted} runs any text it gets, "
            + ("in a shell" if runs_in_shell else "as Python"),
            "call subprocess.run with a list of arguments, without shell=True"
            if runs_in_shell
            else "read values with ast.literal_eval or json.loads",
            *code.node_location(qualified_call.call.node),
        )


def _is_fixed(node: ast.expr) -> bool:
    """Whether a text is fixed: constants and their combinations."""
    fixed = (ast.Constant, ast.JoinedStr, ast.BinOp, ast.operator)
    return all(isinstance(part, fixed) for part in ast.walk(node))


@warning(
    "TC904 fetched-in-the-clear",
    summary="a download over http from another network",
    reason="Attackers on the network path can change the data: a tokenizer, labels, or weights.",
)
def plain_http(config: ConfigMessage, code: PythonSource) -> Iterator[Hit]:
    fix = "use https, or keep the file in the repository"
    for key, value in config.message.parameters.items():
        host = (
            _remote_host(value.string_value) if value.string_value.startswith("http://") else None
        )
        if host:
            message = f"{key} is fetched from {host} without encryption"
            yield Hit(message, fix, config.span("parameters", key, "string_value"))
    for qualified_call in calls_of(code, _DOWNLOADS) if "http://" in code.source.text else ():
        host = _remote_host(qualified_call.call.text(0, "url") or "")
        if host:
            message = f"{qualified_call.call.dotted} fetches from {host} without encryption"
            yield Hit(message, fix, *code.node_location(qualified_call.call.node))


def _remote_host(text: str) -> str | None:
    """Return the host of an http URL; None if its name looks like the local network."""
    match = _URL.match(text)
    return match[1] if match and not _LOCAL_HOST.fullmatch(match[1].lower()) else None
