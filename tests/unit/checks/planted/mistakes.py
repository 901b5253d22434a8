# SPDX-License-Identifier: Apache-2.0
"""The planted mistakes: one edit each, and the rule that must find it."""

from __future__ import annotations

from dataclasses import dataclass

# In `new` and `seen`: where the finding must begin.
MARK = "§"
FINAL = "pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL"
GAMMA = '{ name: "gamma" data_type: TYPE_FP32 dims: [ 1 ] }'
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 102400000\n"
TOKEN = "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH"


@dataclass(frozen=True)
class Planted:
    """In `file`, `old` becomes `new`; an absent `new` removes the file, one without `old` adds it.

    at: the path that the finding is about the whole of. seen: what stands where the finding is, if
    that is not in `new`: a file, and a piece of its text. link: what the file becomes a link to.
    """

    rule: str
    file: str
    old: str = ""
    new: str | None = None
    at: str | None = None
    seen: tuple[str, str] | None = None
    link: str | None = None


def config(
    rule: str, model: str, old: str, new: str, seen: tuple[str, str] | None = None
) -> Planted:
    """An edit of a config.pbtxt; `seen` names a model, too."""
    place = (f"{seen[0]}/config.pbtxt", seen[1]) if seen else None
    return Planted(rule, f"{model}/config.pbtxt", old, new, seen=place)


def code(rule: str, model: str, old: str, new: str, seen: str | None = None) -> Planted:
    """An edit of a model.py; `seen` is in the same file."""
    file = f"{model}/1/model.py"
    return Planted(rule, file, old, new, seen=(file, seen) if seen else None)


LAYOUT = (
    config("TC001", "llm", 'name: "llm"', 'name: §"llm_ensemble"'),
    config("TC001", "sentiment", 'name: "sentiment"', 'name: §"sentiments"'),
    Planted("TC002", "image_pipeline/1/.gitkeep", at="image_pipeline"),
    Planted("TC003", "sentiment/v2/model.py", new="", at="sentiment/v2"),
    Planted("TC003", "router/02/model.py", new="", at="router/02"),
    Planted("TC004", "llm_engine/2/modle.py", new="", at="llm_engine/2"),
    Planted("TC005", "resnet/2", link="nowhere", at="resnet/2"),
    Planted("TC012", "sentiment/model.py", new="", at="sentiment/model.py"),
    config("TC014", "resnet", "latest { num_versions: 1 }", "specific §{ versions: 2 }"),
    config("TC020", "resnet", '"labels.txt"', '§"label.txt"'),
    Planted(
        "TC021",
        "resnet/labels.txt",
        new="cat\ndog\n",
        seen=("resnet/config.pbtxt", '§"labels.txt"'),
    ),
)
TEXT = (
    config("TC102", "llm_engine", "size: 32\n", "size: §${batch}\n"),
    config("TC102", "resnet", "count: 1", "count: §{{ instances }}"),
    config("TC102", "llm", "model_version: -1", "model_version: §<%= v %>"),
    config("TC103", "resnet", "dims: [ 1000 ]\n    ", "dims: [ 1000\n    §"),
    config("TC103", "sentiment", '"python"', '§"python'),
    config("TC103", "router", "backend:", 'backend §"python" #'),
    config("TC103", "llm", "  ]\n}\n", "  ]\n§"),
    config("TC104", "image_pipeline", "max_batch_size", "§max_batchsize"),
    config("TC104", "llm_tokenizer", "data_type", "§datatype"),
    config("TC104", "resnet", "label_filename", "§label_file"),
    config("TC104", "llm", "input_map", "§inputmap"),
    config("TC104", "resnet", "max_queue_delay_micro", "§queue_delay_micro"),
    config("TC105", "resnet", "TYPE_FP32", "§FP32"),
    config("TC105", "llm_engine", "TYPE_INT32", '§"TYPE_INT32"'),
    config("TC105", "image_preprocess", "KIND_CPU", "§CPU"),
    config("TC105", "dialogue_state", "size: 4", 'size: §"4"'),
    config("TC105", "llm_engine", "decoupled: true", "decoupled: §yes"),
    config("TC106", "sentiment", "\ninput", "\n§max_batch_size: 4\ninput"),
    config("TC106", "dialogue_state", "  oldest", "  direct { }\n  §oldest"),
    config("TC107", "router", "\ninput", "\n§model_metrics { }\ninput"),
    config(
        "TC108", "resnet", "parameters {", 'parameters {key:"intra_op_thread_count"}\nparameters §{'
    ),
    config("TC109", "llm_tokenizer", ': "tokenizer"', ': "§${folder}"'),
)
TENSORS = (
    config("TC160", "router", '{ name: "strict" ', "§{ "),
    config("TC161", "router", '{ name: "strict" data_type: TYPE_BOOL', '§{ name: "strict"'),
    config(
        "TC162", "router", "TYPE_BOOL dims: [ 1 ]", "TYPE_BOOL", ("router", '§{ name: "strict"')
    ),
    config("TC163", "router", "dims: [ 1 ] optional", "dims: [ §0 ] optional"),
    config("TC164", "llm_engine", "{ shape: [ ] }", "§{ shape: [ 2 ] }"),
    config("TC166", "sentiment", "dims: [ 1 ]", "dims: [ 1 ] format: §FORMAT_NCHW"),
    config("TC170", "dialogue_state", "size: 4", "size: §-1"),
    config("TC206", "landmarks", '"points"', '§"point"'),
    config("TC208", "landmarks", "TYPE_FP32", "§TYPE_FP16"),
    config("TC211", "landmarks", "dims: [ 3,", "dims: [ §-1, 3,"),
    config("TC213", "landmarks", "[ 5, 2 ]", "[ §68, 2 ]"),
    Planted("TC201", "landmarks/1/model.onnx", new="<html>404</html>", at="landmarks/1/model.onnx"),
    Planted("TC016", "landmarks/1/model.onnx", new=POINTER, at="landmarks/1/model.onnx"),
)
CODE = (
    code("TC220", "sentiment", "for request in requests:", "for request in requests§"),
    code("TC221", "router", "class Triton", "§class My"),
    code("TC222", "router", "def execute", "def exec", "§class TritonPythonModel"),
    code("TC230", "sentiment", 'request, "text")', 'request, "texts")', "§pb_utils.get_input_t"),
    code("TC232", "sentiment", 'Tensor("sentiment"', 'Tensor("sentiments"', "§pb_utils.Tensor"),
    code("TC234", "sentiment", "np.float32", "np.float64", "§pb_utils.Tensor"),
    code("TC411", "llm_engine", "_stream(request)\n", "_stream(request)\n        §return [None]\n"),
    code("TC414", "llm_engine", f"sender.send(flags={FINAL})", "del sender", "§sender.send("),
    code("TC652", "router", 'name="sentiment"', 'name="sentiments"', "§pb_utils.InferenceRequest"),
    code("TC653", "router", 'Tensor("text"', 'Tensor("texts"', "§pb_utils.InferenceRequest"),
    code(
        "TC902",
        "sentiment",
        "GOOD, BAD",
        'import pickle\n\nWORDS = §pickle.loads(b"N.")\nGOOD, BAD',
    ),
)
ENSEMBLES = (
    config("TC301", "image_pipeline", '"ensemble"', '§"ensembl"'),
    config("TC303", "llm", "\nensemble_s", "\n§instance_group { kind: KIND_CPU }\nensemble_s"),
    config("TC305", "llm", '"llm_engine"', '§"llm_engin"'),
    config("TC306", "image_pipeline", "version: -1", "version: §2"),
    config(
        "TC311",
        "llm",
        '"input_ids" value: "_input_ids" }\n      input',
        '"input_ids" value: §"_ids" }\n      input',
    ),
    config("TC312", "image_pipeline", 'output [ { name: "scores"', 'output [ { name: §"score"'),
    config("TC321", "image_pipeline", 'input_map { key: "image"', 'input_map { key: §"img"'),
    config("TC322", "llm", 'output_map { key: "output_ids"', 'output_map { key: §"ids"'),
    config(
        "TC323",
        "image_preprocess",
        "input [",
        f"input [ {GAMMA},",
        ("image_pipeline", '§"image_pre'),
    ),
    config("TC324", "image_pipeline", "TYPE_UINT8", "TYPE_FP32", ("image_pipeline", '§"image" }')),
    config(
        "TC324",
        "llm_detokenizer",
        "TYPE_INT32",
        "TYPE_INT64",
        ("llm", '"output_ids" value: §"_output_ids" }\n      input'),
    ),
    config("TC325", "image_pipeline", "[ 1000 ]", "[ 10 ]", ("image_pipeline", '§"scores" }')),
    config("TC331", "image_preprocess", "size: 16", "size: 8", ("image_pipeline", '§"image_pre')),
)
SCHEDULING = (
    config("TC171", "sentiment", "batching {", "batching {\n  preferred_batch_size: [ §16 ]"),
    config("TC172", "llm_engine", "default_priority_level: 2", "default_priority_level: §3"),
    config("TC181", "dialogue_state", "CONTROL_SEQUENCE_READY", "§CONTROL_SEQUENCE_START"),
    config("TC182", "dialogue_state", "[ 0, 1 ]", "[ §1 ]"),
    config("TC183", "dialogue_state", "TYPE_UINT64", "§TYPE_FP32"),
    config("TC190", "sentiment", "KIND_CPU", "KIND_CPU gpus: [ §0 ]"),
    config("TC192", "resnet", "zero_data: true", "", ("resnet", "value §{\n        data")),
    config(
        "TC401",
        "llm_detokenizer",
        "instance_group [ { kind: KIND_CPU count: 1",
        "§instance_group [ { kind: KIND_CPU count: 2",
    ),
    config(
        "TC402", "llm_detokenizer", "dynamic_batching { }", "", ("llm_detokenizer", "§max_batch")
    ),
    config("TC501", "router", "\ninstance", "\n§dynamic_batching { }\ninstance"),
    config("TC504", "resnet", "microseconds: 500", "microseconds: §5000000"),
    config(
        "TC512", "llm_engine", "priority_levels: 2\n", "\n", ("llm_engine", "§default_priority")
    ),
    config("TC605", "image_preprocess", "count: 2", "count: §0"),
    Planted("TC907", "sentiment/words.txt", link="/etc/hostname", at="sentiment/words.txt"),
    config("TC910", "llm_tokenizer", '"tokenizer"', f'"§{TOKEN}"'),
)
MISTAKES = (*LAYOUT, *TEXT, *TENSORS, *CODE, *ENSEMBLES, *SCHEDULING)
