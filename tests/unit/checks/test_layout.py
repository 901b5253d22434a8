# SPDX-License-Identifier: Apache-2.0
"""Folders and files: what is missing, misnamed or read by nobody."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.check_models.models import CONFIG, MODEL, python_model
from tests.examples import examples
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import Example, ExampleFile
from tritonctl.checks.findings import CheckFinding
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.rules import RULES

OURS = [rule for rule in RULES.values() if rule.family == "layout"]

TARGET = CheckTarget("2.51.0")


def findings(folder: Path, files: Example) -> tuple[CheckFinding, ...]:
    """What these rules say; others may have more to say of the same files."""
    return check_repository(put(folder, files), TARGET, rules=OURS).findings


def reported(folder: Path, files: Example) -> list[tuple[str, str]]:
    """Each rule with where it points to, below the repository."""
    found = findings(folder, files)
    return [(f.rule, f.path.removeprefix(str(folder)).removeprefix("/")) for f in found]


def test_versions_that_are_not_served_need_no_file(tmp_path: Path) -> None:
    """Only what version_policy serves is loaded; the latest, if it says nothing."""
    old = {"m/config.pbtxt": CONFIG, "m/1/notes": "", "m/2/model.py": MODEL}
    assert reported(tmp_path / "latest", old) == []
    every = old | {"m/config.pbtxt": CONFIG + "version_policy { all { } }"}
    assert reported(tmp_path / "all", every) == [("TC004", "m/1")]
    two = old | {"m/config.pbtxt": CONFIG + "version_policy { latest { num_versions: 2 } }"}
    assert reported(tmp_path / "two", two) == [("TC004", "m/1")]


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        ("onnxruntime", "model.onnx"),
        ("tensorrt", "model.plan"),
        ("pytorch", "model.pt"),
        ("openvino", "model.xml"),
        ("tensorflow", "model.savedmodel"),
        ("tensorflow", "model.graphdef"),
        ("vllm", "model.json"),
        ("dali", "model.dali"),
    ],
)
def test_default_files(backend: str, name: str, tmp_path: Path) -> None:
    """Of each backend; a folder may stand for a file."""
    config = CONFIG.replace("python", backend)
    [finding] = findings(tmp_path / "bad", {"m/config.pbtxt": config, "m/1/other": ""})
    assert finding.rule == "TC004"
    assert name in finding.reason
    assert name in finding.message
    folder = {"m/config.pbtxt": config, f"m/1/{name}/part": ""}
    assert "TC004" not in {rule for rule, _ in reported(tmp_path / "good", folder)}


def test_the_remedies_of_what_git_or_people_misplace(tmp_path: Path) -> None:
    """An ensemble whose empty version git did not keep; a config.pbtxt in a version."""
    ensemble = CONFIG.replace('backend: "python"', 'platform: "ensemble"')
    [found] = check_repository(
        put(tmp_path / "git", {"m/config.pbtxt": ensemble}), TARGET, rules=[RULES["TC002"]]
    ).findings
    assert "git does not track empty folders" in found.reason
    assert found.fix.endswith("git keeps it with a file in it: 1/.gitkeep")
    inside = put(tmp_path / "inside", {"m/1/config.pbtxt": CONFIG, "m/1/weights": ""})
    [found] = check_repository(inside, TARGET, rules=[RULES["TC150"]]).findings
    assert found.message.endswith("Triton does not read 1/config.pbtxt: it is in a version folder")
    assert (
        found.fix
        == f"move it next to the version folders: mv {inside}/m/1/config.pbtxt {inside}/m/"
    )


def test_files_named_otherwise(tmp_path: Path) -> None:
    """default_model_filename, below folders, too; several by compute capability."""
    named = {"m/config.pbtxt": CONFIG + 'default_model_filename: "sub/other.py"'}
    assert reported(tmp_path / "bad", named | {"m/1/other.py": MODEL}) == [("TC004", "m/1")]
    assert reported(tmp_path / "good", named | {"m/1/sub/other.py": MODEL}) == []
    plans = CONFIG.replace("python", "tensorrt") + 'cc_model_filenames { key: "9.0" value: "h" }'
    assert reported(tmp_path / "plans", {"m/config.pbtxt": plans, "m/1/h": ""}) == []
    [finding] = findings(tmp_path / "no plan", {"m/config.pbtxt": plans, "m/1/x": ""})
    assert finding.message == "version 1 has no h, which GPUs of compute capability 9.0 load"


LABELLED = CONFIG.replace('"OUTPUT" data_type', '"OUTPUT" label_filename: "l.txt" data_type')


def test_version_folders(tmp_path: Path) -> None:
    """Zero is one; digits at the beginning make one that is not there; others are ignored."""
    model = python_model()
    assert reported(tmp_path / "zero", {"m/config.pbtxt": CONFIG, "m/0/model.py": MODEL}) == []
    for name in ("2_old", "2024-01-01", "+2", " 2", "9" * 19, "1" + "0" * 30):
        assert reported(tmp_path / name, model | {f"m/{name}/x": ""}) == [("TC017", f"m/{name}")], (
            name
        )
    for name in ("old_2", "1_old", "0_old", "-1", "data"):
        assert reported(tmp_path / name, model | {f"m/{name}/x": ""}) == [], name
    for name in ("v2", "02", "V10", "00"):
        assert reported(tmp_path / name, model | {f"m/{name}/x": ""}) == [("TC003", f"m/{name}")], (
            name
        )
    [finding] = findings(tmp_path / "only", {"m/config.pbtxt": CONFIG, "m/1_old/model.py": MODEL})
    assert finding.rule == "TC002"
    assert "1_old is not a whole number" in finding.message


def test_what_lies_in_the_place_of_a_file(tmp_path: Path) -> None:
    """A folder and a link to nowhere are no model.py; a pointer of Git LFS is nothing."""
    config = {"m/config.pbtxt": CONFIG}
    assert reported(tmp_path / "folder", config | {"m/1/model.py/x": ""}) == [("TC004", "m/1")]
    link = config | {"m/1/model.py": ExampleFile(link="gone")}
    assert reported(tmp_path / "link", link) == [("TC004", "m/1")]
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    beside = python_model() | {"m/1/weights.bin": pointer}
    assert reported(tmp_path / "pointer", beside) == [("TC016", "m/1/weights.bin")]


def test_names_and_the_shell(tmp_path: Path) -> None:
    """Only where a shell gets them; what it leaves alone is no mistake."""
    unnamed = CONFIG.replace('name: "m"\n', "")
    for name in ("a b", "a$b", "a;b", "#a", "a`b", "a\nb"):
        files = {f"{name}/config.pbtxt": unnamed, f"{name}/1/model.py": MODEL}
        assert [rule for rule, _ in reported(tmp_path / "bad", files)] == ["TC018"], name
        shutil.rmtree(tmp_path / "bad")
    for name in ("a#b", "a.b", "a:b", "-a", "a+b", "a,b@c"):
        files = {f"{name}/config.pbtxt": unnamed, f"{name}/1/model.py": MODEL}
        assert reported(tmp_path / "good", files) == [], name
    plan = {"a b/config.pbtxt": unnamed.replace("python", "tensorrt"), "a b/1/model.plan": ""}
    assert reported(tmp_path / "plan", plan) == []


def test_labels(tmp_path: Path) -> None:
    """Counted by lines, the last with or without its end; silent where a dimension varies."""
    [finding] = findings(tmp_path / "gone", python_model(LABELLED))
    assert (finding.rule, finding.line, finding.column, finding.end) == ("TC020", 5, 43, 50)
    few = python_model(LABELLED) | {"m/l.txt": "a\nb\nc"}
    [finding] = findings(tmp_path / "few", few)
    assert finding.message == "l.txt has 3 labels, and output OUTPUT 4 elements"
    assert reported(tmp_path / "enough", few | {"m/l.txt": "a\n\nc\nd"}) == []
    varies = few | {"m/config.pbtxt": LABELLED.replace("4 ] } ]", "-1 ] } ]")}
    assert reported(tmp_path / "varies", varies) == []
    assert reported(tmp_path / "folder", few | {"m/l.txt": ExampleFile(link=".")}) == [
        ("TC020", "m/config.pbtxt")
    ]


STATE = (
    CONFIG + 'sequence_batching {\n  state { input_name: "A" output_name: "B"\n'
    "    data_type: TYPE_INT64 dims: [ 2 ]\n"
    '    initial_state { name: "z" data_type: TYPE_INT64 dims: [ 2 ] data_file: "z.raw" } } }\n'
)


def test_first_states(tmp_path: Path) -> None:
    """As warm-up data, in a folder of its own."""
    files = python_model(STATE)
    [finding] = findings(tmp_path / "gone", files)
    assert (finding.rule, finding.message) == ("TC022", "initial_state/z.raw is not a file")
    [finding] = findings(tmp_path / "short", files | {"m/initial_state/z.raw": "12345678"})
    assert finding.message == "initial_state/z.raw has 8 bytes, and the tensor 16"
    assert reported(tmp_path / "good", files | {"m/initial_state/z.raw": "0" * 16}) == []


def test_environments(tmp_path: Path) -> None:
    """In the model's folder it is an error, elsewhere advice: another machine may have it."""
    entry = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }'
    inside = python_model(CONFIG + entry % "$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    assert reported(tmp_path / "gone", inside) == [("TC025", "m/config.pbtxt")]
    assert reported(tmp_path / "there", inside | {"m/env.tar.gz": "PK\x03\x04"}) == []
    dollar = python_model(CONFIG + entry % "$TRITON_MODEL_DIRECTORY/env")
    assert reported(tmp_path / "dollar", dollar | {"m/env/bin/activate": ""}) == [
        ("TC025", "m/config.pbtxt")
    ]
    assert reported(tmp_path / "far", python_model(CONFIG + entry % "/opt/env.tar.gz")) == [
        ("TC036", "m/config.pbtxt")
    ]
    assert reported(tmp_path / "far too", python_model(CONFIG + entry % "")) == []


def test_variants(tmp_path: Path) -> None:
    """Their mistakes are told in their files."""
    good = python_model()
    broken = good | {"m/configs/h100.pbtxt": CONFIG + "dynamic_batching {\n"}
    [finding] = findings(tmp_path / "broken", broken)
    assert (finding.rule, finding.path) == (
        "TC030",
        str(tmp_path / "broken" / "m" / "configs" / "h100.pbtxt"),
    )
    other = good | {"m/configs/h100.pbtxt": CONFIG.replace('"INPUT"', '"IN"')}
    found = findings(tmp_path / "other", other)
    assert [(f.rule, f.line, f.message) for f in found] == [
        ("TC033", 4, "input INPUT of config.pbtxt is missing here"),
        ("TC033", 4, "input IN is not in config.pbtxt"),
    ]
    assert reported(tmp_path / "ignored", good | {"m/configs/README.md": ""}) == [
        ("TC031", "m/configs/README.md")
    ]


def test_the_repository_itself(tmp_path: Path) -> None:
    """Findings that are about no model."""
    assert reported(tmp_path / "none", {"README.md": ""}) == [("TC009", "")]
    assert reported(tmp_path / "model", {"config.pbtxt": CONFIG, "1/model.py": MODEL}) == [
        ("TC009", "")
    ]
    assert reported(tmp_path / "hidden", python_model() | {".git/HEAD": ""}) == [("TC006", ".git")]
    link = python_model() | {"old": ExampleFile(link="gone")}
    assert reported(tmp_path / "link", link) == [("TC005", "old")]


def test_folders_of_another_level(tmp_path: Path) -> None:
    """A model's folder, a version's, the repository's parent, and its parent: one finding each."""
    put(tmp_path, {f"a/b/models/{name}": text for name, text in python_model().items()})
    put(tmp_path, {"a/b/docs/x.md": "", "a/b/src/main.py": "", "a/.git/HEAD": "", "a/b/empty": ""})
    (tmp_path / "a" / "b" / "nothing").mkdir()
    models = tmp_path / "a" / "b" / "models"

    def told(folder: Path) -> list[tuple[str, str, str]]:
        found = check_repository(folder, TARGET, shown_as=".").findings
        return [(one.rule, one.message, one.fix) for one in found if one.rule != "TC006"]

    up = f"pass the folder that contains the models: tritonctl check {models}"
    model = "this is not a repository of models, but a model: it has a config.pbtxt"
    version = "this is not a repository of models, but a version of a model: it has a model.py"
    assert told(models) == []
    assert told(models / "m") == [("TC009", model, up)]
    assert told(models / "m" / "1") == [("TC009", version, up)]
    for folder, lower in ((models.parent, "models"), (models.parent.parent, "b/models")):
        [(rule, message, fix)] = told(folder)
        assert (rule, message.partition("; ")[2]) == ("TC008", f"there are models in {lower}: m")
        assert f"tritonctl check {lower}, --model-repository={lower}" in fix
    (models / "m" / "config.pbtxt").unlink()
    assert told(models / "m")[0][1] == model.replace(
        "it has a config.pbtxt", "1 is one of its versions"
    )


def test_a_link_to_the_shared_file_is_no_stray(tmp_path: Path) -> None:
    """All versions may lead to one file beside them."""
    shared: Example = {
        "m/config.pbtxt": CONFIG,
        "m/model.py": MODEL,
        "m/1/model.py": ExampleFile(link="../model.py"),
    }
    assert reported(tmp_path, shared) == []


def test_one_finding_for_a_model_that_is_none(tmp_path: Path) -> None:
    """Empty, nested, or with a misspelt configuration."""
    nested = {"all/m/config.pbtxt": CONFIG, "all/m/1/model.py": MODEL}
    assert reported(tmp_path / "nested", nested) == [("TC008", "all")]
    assert reported(tmp_path / "empty", {"m/.gitkeep": ""}) == [("TC007", "m")]
    (tmp_path / "bare" / "m").mkdir(parents=True)
    assert reported(tmp_path / "bare", {}) == [("TC007", "m")]
    misspelt = {"m/Config.pbtxt": CONFIG, "m/1/model.py": MODEL}
    assert reported(tmp_path / "misspelt", misspelt) == [("TC010", "m/Config.pbtxt")]


EVERYTHING = (
    LABELLED + 'model_warmup [ { name: "w" batch_size: 1 inputs { key: "INPUT"\n'
    '  value { data_type: TYPE_STRING dims: [ 4 ] input_data_file: "f" } } } ]\n'
)


@examples(100)
@given(content=st.binary(max_size=64), size=st.integers(0, 2**32 - 1))
def test_any_bytes(content: bytes, size: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever lies in the files that are read, nothing is raised."""
    junk = ExampleFile(content), ExampleFile(size.to_bytes(4, "little") + content)
    files = python_model(EVERYTHING) | {"m/configs/h.pbtxt": junk[0], "m/l.txt": junk[0]}
    for file in junk:
        found = findings(tmp_path_factory.mktemp("any"), files | {"m/warmup/f": file})
        assert {finding.rule for finding in found} <= {"TC021", "TC027", "TC030"}


@pytest.mark.parametrize("name", ["", ".", "..", "/", "\\000", "a" * 300, "x/../..", "\\n"])
def test_any_name_of_a_file(name: str, tmp_path: Path) -> None:
    """A name that is no path, or too long for one, is a file that is not there."""
    config = EVERYTHING.replace('"l.txt"', f'"{name}"').replace('"f"', f'"{name}"')
    found = {rule for rule, _ in reported(tmp_path, python_model(config))}
    assert found == {"TC022"} if name == "" else found == {"TC020", "TC022"}
