# SPDX-License-Identifier: Apache-2.0
"""What opens a server to others: told where it stands, never with the secret itself."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.check_models.models import CONFIG, MODEL, python_model
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import Example
from tritonctl.checks.findings import Finding
from tritonctl.checks.report.formats import FORMATS
from tritonctl.checks.repository import Target
from tritonctl.checks.rules import RULES
from tritonctl.host import bundled
from tritonctl.host.progress import Silent
from tritonctl.repository.publish import render
from tritonctl.repository.server_environment import SERVER_VERSION

OURS = [rule for rule in RULES.values() if rule.family == "security"]

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

TOKEN = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ012345"


def reported(folder: Path, files: Example) -> list[Finding]:
    """What this family says of a repository."""
    put(folder, files)
    return list(check_repository(folder, rules=OURS).findings)


def code(text: str) -> Example:
    """A repository with this model.py."""
    return {"m/config.pbtxt": CONFIG, "m/1/model.py": text}


def line(statement: str, imports: str = "") -> Example:
    """A model.py with this one statement beside what a model needs, on line 2."""
    return code(f"{imports}\n{statement}\n{MODEL}")


@pytest.mark.parametrize(
    ("imports", "statement", "rule"),
    [
        ("import pickle", "pickle.loads(b'')", "TC902"),
        ("import pickle as p", "p.Unpickler(f).load()", "TC902"),
        ("from pickle import load as read", "read(f)", "TC902"),
        ("import joblib", "joblib.load('m.joblib')", "TC902"),
        ("import pandas as pd", "pd.read_pickle('m')", "TC902"),
        ("import torch", "torch.load('m.pt')", "TC902"),
        ("import torch", "torch.load('m.pt', map_location='cpu', weights_only=False)", "TC902"),
        ("import numpy as np", "np.load('m.npy', allow_pickle=True)", "TC902"),
        ("import yaml", "yaml.load(f)", "TC902"),
        ("import yaml", "yaml.load(f, Loader=yaml.UnsafeLoader)", "TC902"),
        ("", "eval(text)", "TC903"),
        ("", "exec('x = ' + text)", "TC903"),
        ("", "eval(f'{text}')", "TC903"),
        ("import os", "os.system('rm ' + name)", "TC903"),
        ("from os import popen", "popen(name)", "TC903"),
        ("import subprocess as sp", "sp.run(text, shell=True)", "TC903"),
        ("import subprocess", "subprocess.getoutput(f'file {name}')", "TC903"),
        ("import x", "x.from_pretrained('m', trust_remote_code=True)", "TC901"),
        ("import x", "x.load('m', **{'trust_remote_code': True})", "TC901"),
        ("import requests", "requests.get('http://models.company.com/a')", "TC904"),
        ("from urllib.request import urlopen", "urlopen('http://8.8.8.8/a')", "TC904"),
    ],
)
def test_code(tmp_path: Path, imports: str, statement: str, rule: str) -> None:
    """By whatever name a function goes; at its place in model.py."""
    [finding] = reported(tmp_path, line(statement, imports))
    assert (finding.rule, finding.line) == (rule, 2)
    assert finding.path.endswith("m/1/model.py")
    assert finding.text == statement


@pytest.mark.parametrize(
    ("imports", "statement"),
    [
        ("import pickle", "pickle.dumps(1)"),
        ("import json", "json.load(f)"),
        ("import torch", "torch.load('m.pt', weights_only=True)"),
        ("import torch", "torch.load('m.pt', weights_only=careful)"),
        ("import torch", "torch.load('m.pt', **options)"),
        ("import torch", "torch.jit.load('m.pt')"),
        ("import numpy as np", "np.load('m.npy')"),
        ("import numpy as np", "np.load('m.npy', allow_pickle=False)"),
        ("import yaml", "yaml.safe_load(f)"),
        ("import yaml", "yaml.load(f, Loader=yaml.CSafeLoader)"),
        ("import yaml", "yaml.load(f, yaml.SafeLoader)"),
        ("import yaml", "yaml.load(f, Loader=chosen_loader())"),
        ("import pickle", "self.pickle.load(f)"),
        ("", "model.eval()"),
        ("", "eval('1 + 1')"),
        ("from tools import eval", "eval(text)"),
        ("def exec(x): pass", "exec(text)"),
        ("", "inference_request.exec()"),
        ("import os", "os.system('nvidia-smi')"),
        ("import subprocess", "subprocess.run(['ls', name])"),
        ("import subprocess", "subprocess.run(['ls', name], shell=False)"),
        ("import x", "x.from_pretrained('m', trust_remote_code=False)"),
        ("import x", "x.from_pretrained('m', trust_remote_code=allowed)"),
        ("import requests", "requests.get('http://localhost:8000/v2')"),
        ("import requests", "requests.get('http://triton:8000/v2')"),
        ("import requests", "requests.get('http://triton.models.svc.cluster.local/v2')"),
        ("import requests", "requests.get('http://10.1.2.3/v2')"),
        ("import requests", "requests.get('https://models.company.com/a')"),
        ("import requests", "requests.get(url)"),
    ],
)
def test_code_that_is_no_mistake(tmp_path: Path, imports: str, statement: str) -> None:
    """The safe forms, what is not known, and other things of the same name."""
    assert reported(tmp_path, line(statement, imports)) == []


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("model.yaml", "model: m\ntrust_remote_code: true\n", (2, 1)),
        ("model.json", '{"model": "m",\n "trust_remote_code": true}', (2, 3)),
        ("llm_args.json", '{"trust_remote_code":true}', (1, 3)),
    ],
)
def test_trust_in_settings(tmp_path: Path, name: str, text: str, place: tuple[int, int]) -> None:
    """Of llmapi, of vLLM, of our own engines; false is fine, and so is a comment."""
    [finding] = reported(tmp_path / "a", python_model() | {f"m/1/{name}": text})
    assert (finding.rule, finding.line, finding.column) == ("TC901", *place)
    assert (
        reported(tmp_path / "b", python_model() | {f"m/1/{name}": text.replace("true", "false")})
        == []
    )
    comment = {"m/1/model.yaml": "# trust_remote_code: true\n"}
    assert reported(tmp_path / "c", python_model() | comment) == []


def parameter(key: str, value: str) -> Example:
    """A repository with a parameter, on line 6."""
    text = f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    return python_model(CONFIG + text)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hub", TOKEN),
        ("key", "AKIA" + "2E5K8N1Q4T7W0Z3C"),
        ("HF_TOKEN", "s3cr3t-enough"),
        ("db_password", "correct horse"),
        ("API_KEY", "0123456789"),
    ],
)
def test_secrets(tmp_path: Path, key: str, value: str) -> None:
    """By their form or by the name of the parameter; no format of the report shows them."""
    put(tmp_path, parameter(key, value))
    report = check_repository(tmp_path, rules=OURS)
    [finding] = report.findings
    assert (finding.rule, finding.line) == ("TC910", 6)
    assert "*" in finding.text
    for shown in FORMATS.values():
        assert value not in shown(report)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hub", "hf_" + "x" * 34),
        ("key", "AKIAIOSFODNN7EXAMPLE"),
        ("eos_token", "<|endoftext|>"),
        ("max_tokens", "1000000000"),
        ("HF_TOKEN", "/run/secrets/hf_token"),
        ("HF_TOKEN", "${HF_TOKEN}"),
        ("password", ""),
    ],
)
def test_no_secrets(tmp_path: Path, key: str, value: str) -> None:
    """Examples, paths, placeholders, and the tokens of language models."""
    assert reported(tmp_path, parameter(key, value)) == []


def test_secrets_in_code(tmp_path: Path) -> None:
    """Several, each at its place, none of them shown beside another."""
    found = reported(tmp_path, line(f'HUB = ("{TOKEN}", "{TOKEN[::-1]}", "{TOKEN}")'))
    assert [(finding.rule, finding.line) for finding in found] == [("TC910", 2), ("TC910", 2)]
    assert not any(TOKEN in finding.text for finding in found)


def test_private_keys(tmp_path: Path) -> None:
    """By what is in them: a certificate is public."""
    key = "-----BEGIN " + "RSA PRIVATE KEY-----\nAAAA\n"
    files = {"m/1/tls.pem": key, "m/ca.pem": "-----BEGIN CERTIFICATE-----\n", "m/id_rsa": key}
    found = reported(tmp_path, python_model() | files)
    assert [finding.path.partition("/m/")[2] for finding in found] == ["1/tls.pem", "id_rsa"]
    assert {finding.rule for finding in found} == {"TC909"}


def test_writable(tmp_path: Path) -> None:
    """Once per model, with how many more; once in all where the repository itself is."""
    put(tmp_path, {"a/1/x": "", "a/1/y": "", "b/1/x": ""})
    (tmp_path / "a" / "1").chmod(0o777)
    (tmp_path / "a" / "1" / "y").chmod(0o646)
    (tmp_path / "b" / "1").chmod(0o1777)  # sticky: nobody else's files
    [finding] = reported(tmp_path, {})
    assert finding.message == "everybody on this machine may change a/1, and 1 more below a"
    assert finding.path.endswith("/a/1")
    (tmp_path / "b").chmod(0o757)
    assert len(reported(tmp_path, {})) == 2
    tmp_path.chmod(0o777)
    [finding] = reported(tmp_path, {})
    assert "may put models into" in finding.message


def test_links(tmp_path: Path) -> None:
    """Out of the repository; inside it, to nowhere and in circles is another matter."""
    outside = tmp_path / "outside"
    put(outside, {"weights": "", "model/1/model.py": ""})
    root = tmp_path / "models"
    put(root, {"m/1/model.py": "", "n/1/model.py": "import x\n"})
    (root / "m" / "1" / "inside").symlink_to("../../n/1/model.py")
    (root / "m" / "1" / "circle").symlink_to("circle")
    (root / "m" / "1" / "nowhere").symlink_to(tmp_path / "nowhere")
    assert reported(root, {}) == []
    (root / "m" / "1" / "weights").symlink_to("../../../outside/weights")
    (root / "whole").symlink_to(outside / "model")
    (outside / "model" / "1" / "own").symlink_to("model.py")
    found = reported(root, {})
    assert [finding.rule for finding in found] == ["TC907", "TC907"]
    assert [finding.path.rpartition("/models/")[2] for finding in found] == ["m/1/weights", "whole"]


def archive(path: Path, *names: str) -> None:
    """A zip file of empty members."""
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, "")


def test_pickled_files(tmp_path: Path) -> None:
    """By what is in them, beside a model.py that does not unpickle by itself."""
    put(tmp_path, python_model())
    folder = tmp_path / "m" / "1"
    (folder / "a.pkl").write_bytes(pickle.dumps({"a": 1}))
    (folder / "b.pkl").write_text("not a pickle", encoding="utf-8")
    (folder / "c.joblib").write_bytes(b"\x78\x9c" + bytes(8))
    archive(folder / "d.pth", "d/data.pkl", "d/data/0")
    archive(folder / "script.pt", "s/data.pkl", "s/code/x.py", "s/constants.pkl")
    archive(folder / "e.bin", "something/else")
    (folder / "f.pt").write_bytes(b"PK\x03\x04 torn")
    found = reported(tmp_path, {})
    assert [Path(one.path).name for one in found] == ["a.pkl", "c.joblib", "d.pth"]
    assert {(one.rule, one.severity) for one in found} == {("TC908", "advice")}
    careful = line("torch.load('d.pth', weights_only=True)", "import torch")
    assert [Path(one.path).name for one in reported(tmp_path, careful)] == ["a.pkl", "c.joblib"]
    careless = line("torch.load('d.pth', weights_only=False)", "import torch")
    assert [one.rule for one in reported(tmp_path, careless)] == ["TC902"]


def test_torchscript_of_the_pytorch_backend(tmp_path: Path) -> None:
    """That is what the backend loads."""
    files = {"m/config.pbtxt": CONFIG.replace("python", "pytorch"), "m/1/model.pt": ""}
    put(tmp_path, files)
    archive(tmp_path / "m" / "1" / "model.pt", "m/data.pkl")
    assert reported(tmp_path, {}) == []


def test_known_holes(cli: Cli, sandbox: Sandbox, tmp_path: Path) -> None:
    """Of a version that somebody asked for, once for all models; not of the one that is here."""
    config = CONFIG.replace('name: "m"', "")
    for name in "ab":
        put(tmp_path / "r", {f"{name}/config.pbtxt": config, f"{name}/1/model.py": MODEL})
    unnamed = check_repository(tmp_path / "r", Target(SERVER_VERSION), rules=OURS)
    assert unnamed.findings == ()
    done = cli("check", tmp_path / "r", "--target-version", "25.06", "--select", "TC911")
    assert done.returncode == 0
    assert done.stdout.count("known vulnerabilities") == 1
    assert "serve with release 26.07 or later" in done.stdout
    latest = cli("check", tmp_path / "r", "--target-version", "26.07", "--select", "TC911")
    assert "nothing found" in latest.stdout


def test_our_backends_are_clean(tmp_path: Path) -> None:
    """Every model.py that this project ships, with what lies beside it."""
    folder = bundled.find("python_backends")
    sources = {path.parent.name: path for path in folder.glob("*/model.py")}
    assert len(sources) > 3
    for name, path in sources.items():
        text = path.read_text(encoding="utf-8")
        put(tmp_path, {f"{name}/config.pbtxt": 'backend: "python"\n', f"{name}/1/model.py": text})
    assert reported(tmp_path, {}) == []


def test_what_render_writes_is_clean(built: Sandbox) -> None:
    """Whoever the user is."""
    project = built.load()
    render(project, Silent())
    report = check_repository(project.repository, rules=OURS)
    assert report.models == 4
    assert report.findings == ()


def test_junk(tmp_path: Path) -> None:
    """Odd names, odd bytes, what nobody may read, a folder for a file: nothing is raised."""
    put(tmp_path, python_model())
    folder = tmp_path / "m" / "1"
    os.mkfifo(folder / "pipe.pkl")
    (folder / "model.json").mkdir()
    (folder / "model.yaml").write_bytes(bytes(range(256)))
    (folder / "new\nline.key").write_bytes(b"-----BEGIN \x00\xff")
    (folder / "closed.pkl").write_bytes(b"")
    (folder / "closed.pkl").chmod(0)
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.pkl")).write_bytes(b"\x80\x04.")
    found = reported(tmp_path, {})
    assert [finding.rule for finding in found] == ["TC908"]
    json.dumps([finding.as_record() for finding in found])


def execute(*statements: str) -> Example:
    """A model.py with these statements for each request."""
    body = "".join(f"            {statement}\n" for statement in statements)
    text = (
        "import os\nfrom pathlib import Path\nimport numpy as np\n"
        "import triton_python_backend_utils as pb_utils\n\n\n"
        "class TritonPythonModel:\n    def execute(self, requests):\n"
        "        for request in requests:\n"
        f'            t = pb_utils.get_input_tensor_by_name(request, "NAME")\n{body}'
        "        return []\n"
    )
    return code(text)


@pytest.mark.parametrize(
    "statements",
    [
        ("f = open(t.as_numpy()[0].decode())",),
        ("name = t.as_numpy().item().decode('utf-8')", "x = np.load('/data/' + name)"),
        ("name: str = str(t.as_numpy()[0])", "x = Path('/data', name).read_text()"),
        ("x = (Path('/data') / t.as_numpy()[0].decode()).read_bytes()",),
        ("for name in t.as_numpy():", "    os.remove(os.path.join('/data', name.decode()))"),
        ("names = t.as_numpy().tolist()", "x = [open('%s.txt' % name) for name in names]"),
    ],
)
def test_paths_of_requests(tmp_path: Path, statements: tuple[str, ...]) -> None:
    """As they came, at the call that opens them."""
    [finding] = reported(tmp_path, execute(*statements))
    assert (finding.rule, finding.line) == ("TC913", 10 + len(statements))


@pytest.mark.parametrize(
    "statements",
    [
        ("f = open('words.txt')",),
        ("f = open(self.files[t.as_numpy()[0]])",),
        ("f = open(self.path(t.as_numpy()[0]))",),
        ("f = open(f'{t.as_numpy().shape[0]}.txt')",),
        ("f = open(f'{len(t.as_numpy())}.txt')",),
        ("name = os.path.basename(t.as_numpy()[0])", "f = open(name)"),
        ("name = t.as_numpy()[0].decode()", "if name in self.known:", "    f = open(name)"),
        ("name = t.as_numpy()[0].decode()", "assert name.isalnum()", "f = open(name)"),
        ("self.socket.open(t.as_numpy()[0])",),
    ],
)
def test_paths_that_may_have_been_looked_at(tmp_path: Path, statements: tuple[str, ...]) -> None:
    """Chosen from a table, made by a function, tested: silence."""
    assert reported(tmp_path, execute(*statements)) == []


@pytest.mark.parametrize(
    "deep", ["a + " * 900 + "a", "a" + ".b" * 900 + "(a)", "(" * 80 + ")" * 80]
)
def test_deep_expressions(tmp_path: Path, deep: str) -> None:
    """As generated code has them."""
    reported(tmp_path, execute("a = t.as_numpy()", f"x = open({deep})", f"y = eval({deep})"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can give files away")
def test_owners(tmp_path: Path) -> None:
    """Somebody else's file among the others; a whole model of another owner is as it may be."""
    put(tmp_path, {"a/1/x": "", "a/1/y": "", "b/1/x": ""})
    for path in (tmp_path / "b", *(tmp_path / "b").rglob("*")):
        os.chown(path, 4711, 4711)
    assert reported(tmp_path, {}) == []
    os.chown(tmp_path / "a" / "1" / "y", 4711, 4711)
    [finding] = reported(tmp_path, {})
    assert finding.rule == "TC905"
    assert finding.message.startswith("a/1/y belongs to user 4711, who may change it")
