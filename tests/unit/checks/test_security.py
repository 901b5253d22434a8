# SPDX-License-Identifier: Apache-2.0
"""Secrets, permissions, links and pickles; cases of code are in `cases/security.yaml`."""

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
from tritonctl.checks.findings import CheckFinding
from tritonctl.checks.report.formats import FORMATS
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.rules import RULES
from tritonctl.host import bundled
from tritonctl.host.progress import Silent
from tritonctl.repository.publish import render
from tritonctl.repository.server_environment import SERVER_VERSION

OURS = [rule for rule in RULES.values() if rule.family == "security"]

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

TOKEN = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ012345"


def reported(folder: Path, files: Example) -> list[CheckFinding]:
    """Return the findings of the family's rules."""
    put(folder, files)
    return list(check_repository(folder, rules=OURS).findings)


def code(text: str) -> Example:
    """Return a repository with this model.py."""
    return {"m/config.pbtxt": CONFIG, "m/1/model.py": text}


def line(statement: str, imports: str = "") -> Example:
    """Return a repository whose model.py has this statement on line 2."""
    return code(f"{imports}\n{statement}\n{MODEL}")


def parameter(key: str, value: str) -> Example:
    """Return a repository with a parameter on line 6."""
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
    """The value or the parameter's name reveals a secret; no report format prints it."""
    put(tmp_path, parameter(key, value))
    report = check_repository(tmp_path, rules=OURS)
    [finding] = report.findings
    assert (finding.rule, finding.line) == ("TC910", 6)
    assert "*" in finding.text
    for shown in FORMATS.values():
        assert value not in shown(report)


def test_secrets_in_code(tmp_path: Path) -> None:
    """Each secret on a line is a finding, and no finding prints another secret."""
    found = reported(tmp_path, line(f'HUB = ("{TOKEN}", "{TOKEN[::-1]}", "{TOKEN}")'))
    assert [(finding.rule, finding.line) for finding in found] == [("TC910", 2), ("TC910", 2)]
    assert not any(TOKEN in finding.text for finding in found)


def test_private_keys(tmp_path: Path) -> None:
    """The content identifies a private key; a certificate is public."""
    key = "-----BEGIN " + "RSA PRIVATE KEY-----\nAAAA\n"
    files = {"m/1/tls.pem": key, "m/ca.pem": "-----BEGIN CERTIFICATE-----\n", "m/id_rsa": key}
    found = reported(tmp_path, python_model() | files)
    assert [finding.path.partition("/m/")[2] for finding in found] == ["1/tls.pem", "id_rsa"]
    assert {finding.rule for finding in found} == {"TC909"}


def test_writable(tmp_path: Path) -> None:
    """One finding for each model counts its writable paths; one for a writable repository."""
    put(tmp_path, {"a/1/x": "", "a/1/y": "", "b/1/x": ""})
    (tmp_path / "a" / "1").chmod(0o777)
    (tmp_path / "a" / "1" / "y").chmod(0o646)
    (tmp_path / "b" / "1").chmod(0o1777)  # sticky: nobody else's files
    [finding] = reported(tmp_path, {})
    assert finding.message == "every user of this machine may change a/1, and 1 more below a"
    assert finding.path.endswith("/a/1")
    (tmp_path / "b").chmod(0o757)
    assert len(reported(tmp_path, {})) == 2
    tmp_path.chmod(0o777)
    [finding] = reported(tmp_path, {})
    assert "may add models to" in finding.message


def test_links(tmp_path: Path) -> None:
    """Only links that lead out of the repository are reported."""
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
    """Write a zip file of empty members."""
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, "")


def test_pickled_files(tmp_path: Path) -> None:
    """The content identifies a pickle; a model.py that unpickles has its own finding."""
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
    """The PyTorch backend loads TorchScript, so its pickle is no finding."""
    files = {"m/config.pbtxt": CONFIG.replace("python", "pytorch"), "m/1/model.pt": ""}
    put(tmp_path, files)
    archive(tmp_path / "m" / "1" / "model.pt", "m/data.pkl")
    assert reported(tmp_path, {}) == []


def test_known_vulnerabilities(cli: Cli, sandbox: Sandbox, tmp_path: Path) -> None:
    """One finding names the vulnerabilities of an explicit target version."""
    config = CONFIG.replace('name: "m"', "")
    for name in "ab":
        put(tmp_path / "r", {f"{name}/config.pbtxt": config, f"{name}/1/model.py": MODEL})
    unnamed = check_repository(tmp_path / "r", CheckTarget(SERVER_VERSION), rules=OURS)
    assert unnamed.findings == ()
    done = cli("check", tmp_path / "r", "--target-version", "25.06", "--select", "TC911")
    assert done.returncode == 0
    assert done.stdout.count("known vulnerabilities") == 1
    assert "serve with release 26.07 or later" in done.stdout
    latest = cli("check", tmp_path / "r", "--target-version", "26.07", "--select", "TC911")
    assert "nothing found" in latest.stdout


def test_our_backends_are_clean(tmp_path: Path) -> None:
    """No model.py that this project ships has a finding."""
    folder = bundled.find("python_backends")
    sources = {path.parent.name: path for path in folder.glob("*/model.py")}
    assert len(sources) > 3
    for name, path in sources.items():
        text = path.read_text(encoding="utf-8")
        put(tmp_path, {f"{name}/config.pbtxt": 'backend: "python"\n', f"{name}/1/model.py": text})
    assert reported(tmp_path, {}) == []


def test_what_render_writes_is_clean(built: Sandbox) -> None:
    """A rendered repository has no finding, whoever owns it."""
    project = built.load()
    render(project, Silent())
    report = check_repository(project.repository, rules=OURS)
    assert report.models == 4
    assert report.findings == ()


def test_junk(tmp_path: Path) -> None:
    """Odd names and bytes, pipes, folders and unreadable files raise nothing."""
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
    """Return a model.py that executes these statements for each request."""
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
    "deep", ["a + " * 900 + "a", "a" + ".b" * 900 + "(a)", "(" * 80 + ")" * 80]
)
def test_deep_expressions(tmp_path: Path, deep: str) -> None:
    """Deeply nested expressions, as in generated code, raise nothing."""
    reported(tmp_path, execute("a = t.as_numpy()", f"x = open({deep})", f"y = eval({deep})"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can give files away")
def test_owners(tmp_path: Path) -> None:
    """A file whose owner differs from its model's is reported; a model of another owner is not."""
    put(tmp_path, {"a/1/x": "", "a/1/y": "", "b/1/x": ""})
    for path in (tmp_path / "b", *(tmp_path / "b").rglob("*")):
        os.chown(path, 4711, 4711)
    assert reported(tmp_path, {}) == []
    os.chown(tmp_path / "a" / "1" / "y", 4711, 4711)
    [finding] = reported(tmp_path, {})
    assert finding.rule == "TC905"
    assert finding.message.startswith("a/1/y belongs to user 4711, who may change it")
