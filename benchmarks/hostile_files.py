"""Files that an adversary made to eat memory or time: what each costs before it is refused.

    python benchmarks/hostile_files.py --json benchmarks/results/hostile_files.json

Each file is opened, and run if it opens, by a fresh process. The columns: the most memory that the process
that examines it held (about 160 MB of it before it saw the file), what the one that asks took beyond what it
began with, and how long it took until there was an answer. Every answer must be one sentence, and the two may
take no more than 2 GB beyond that and the file's own size.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import struct
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from common import command_line, write_result
from sigil.errors import SigilError
from sigil.suspect import open_suspect

LIMIT_MB = 2048
Maker = Callable[[Path], dict[str, Any]]
HOSTILE: dict[str, Maker] = {}
"""What each file does, and who makes it: writes the file, returns the options to open it with."""

VGG = {"architecture": "vgg11", "width": 4, "cut": "pool2"}


def hostile(what: str) -> Callable[[Maker], Maker]:
    def register(make: Maker) -> Maker:
        HOSTILE[what] = make
        return make

    return register


def node(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(operator, inputs, [output], **attributes)


def graph(
    nodes: Sequence[NodeProto], weights: dict[str, Any] | None = None, shape: Sequence[Any] = ("n", 3, 4, 4)
) -> ModelProto:
    """A model from x of this shape to y."""
    made = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def stored(path: Path, model: ModelProto, **options: Any) -> dict[str, Any]:
    path.write_bytes(model.SerializeToString())
    return options


def summed(tensor: str) -> list[NodeProto]:
    """y = x + the largest number of a tensor: the whole of it must be computed."""
    return [node("ReduceMax", [tensor], "m", keepdims=0), node("Add", ["x", "m"], "y")]


@hostile("ONNX: an input of 40,000 × 40,000")
def large_input(path: Path) -> dict[str, Any]:
    return stored(path, graph([node("Relu", ["x"], "y")], shape=("n", 1, 40_000, 40_000)))


@hostile("ONNX: a batch of 40,000 images of 3 × 200 × 200")
def large_batch(path: Path) -> dict[str, Any]:
    return stored(path, graph([node("Relu", ["x"], "y")], shape=(40_000, 3, 200, 200)))


@hostile("ONNX: a batch of 60 million inputs of unknown size")
def large_unknown_batch(path: Path) -> dict[str, Any]:
    return stored(path, graph([node("Relu", ["x"], "y")], shape=(60_000_000, "c", "h", "w")))


@hostile("ONNX: 40 functions, each calling the one before twice")
def doubling_functions(path: Path) -> dict[str, Any]:
    model = graph([helper.make_node("f40", ["x"], ["y"], domain="local")])
    model.opset_import.append(helper.make_opsetid("local", 1))
    for level in range(41):
        calls = [node("Neg", ["a"], "b")]
        if level:
            calls = [
                helper.make_node(f"f{level - 1}", ["a"], ["c"], domain="local"),
                helper.make_node(f"f{level - 1}", ["c"], ["b"], domain="local"),
            ]
        model.functions.append(
            helper.make_function("local", f"f{level}", ["a"], ["b"], calls, model.opset_import)
        )
    return stored(path, model, activation_shape=(3, 4, 4))


@hostile("ONNX: a chain of products of 8000 × 8000 matrices")
def large_products(path: Path) -> dict[str, Any]:
    nodes = [node("ConstantOfShape", ["size"], "p0", value=helper.make_tensor("v", 1, [1], [1e-5]))]
    nodes += [node("MatMul", [f"p{step}", f"p{step}"], f"p{step + 1}") for step in range(30)]
    return stored(path, graph([*nodes, *summed("p30")], {"size": np.array([8000, 8000])}))


@hostile("ONNX: ConstantOfShape of 10^12 numbers")
def large_constant(path: Path) -> dict[str, Any]:
    nodes = [node("ConstantOfShape", ["size"], "huge"), *summed("huge")]
    return stored(path, graph(nodes, {"size": np.array([10**6, 10**6])}))


@hostile("ONNX: Range of 10^11 numbers")
def large_range(path: Path) -> dict[str, Any]:
    numbers = {"a": np.float32(0), "b": np.float32(1e11), "c": np.float32(1)}
    return stored(path, graph([node("Range", ["a", "b", "c"], "huge"), *summed("huge")], numbers))


@hostile("ONNX: Expand to 3 · 10^9 numbers")
def large_expand(path: Path) -> dict[str, Any]:
    nodes = [node("Expand", ["x", "size"], "huge"), *summed("huge")]
    return stored(path, graph(nodes, {"size": np.array([10**8, 1, 3, 4, 4])}))


@hostile("ONNX: Tile of 10^9 repetitions")
def large_tile(path: Path) -> dict[str, Any]:
    nodes = [node("Tile", ["x", "times"], "huge"), *summed("huge")]
    return stored(path, graph(nodes, {"times": np.array([1, 10**9, 1, 1])}))


@hostile("ONNX: Resize to 10^5 × 10^5")
def large_resize(path: Path) -> dict[str, Any]:
    resize = node("Resize", ["x", "", "", "size"], "huge", mode="nearest")
    return stored(path, graph([resize, *summed("huge")], {"size": np.array([1, 3, 10**5, 10**5])}))


@hostile("ONNX: a tensor concatenated with itself 40 times")
def doubling(path: Path) -> dict[str, Any]:
    nodes = [node("Identity", ["x"], "p0")]
    nodes += [node("Concat", [f"p{step}"] * 2, f"p{step + 1}", axis=1) for step in range(40)]
    return stored(path, graph([*nodes, *summed("p40")]))


@hostile("ONNX: Pad by 10^9 on every side")
def large_pad(path: Path) -> dict[str, Any]:
    nodes = [node("Pad", ["x", "by"], "huge"), *summed("huge")]
    return stored(path, graph(nodes, {"by": np.array([0, 0, 10**9, 10**9] * 2)}))


@hostile("ONNX: a convolution with 10^5 zeros around each side")
def large_convolution(path: Path) -> dict[str, Any]:
    convolution = node("Conv", ["x", "w"], "huge", pads=[10**5] * 4)
    return stored(path, graph([convolution, *summed("huge")], {"w": np.ones((1, 3, 4, 4), np.float32)}))


@hostile("ONNX: an activation of 1.6 GB for each input")
def large_answer(path: Path) -> dict[str, Any]:
    expand = node("Expand", ["x", "size"], "y")
    return stored(path, graph([expand], {"size": np.array([1, 3, 10_000, 13_333])}, ("n", 3, 1, 1)))


def endless_loop() -> NodeProto:
    """From x to y, as often as the number `endless` says."""
    body = helper.make_graph(
        [node("Identity", ["c"], "d"), node("Relu", ["a"], "b")],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("d", TensorProto.BOOL, []),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, None),
        ],
    )
    return helper.make_node("Loop", ["endless", "", "x"], ["y"], body=body)


@hostile("ONNX: a loop without end")
def loop(path: Path) -> dict[str, Any]:
    return stored(path, graph([endless_loop()], {"endless": np.array(2**62)}))


@hostile("ONNX: weights in /dev/zero")
def external(path: Path) -> dict[str, Any]:
    model = graph([node("Add", ["x", "w"], "y")], {"w": np.zeros(3, np.float32)})
    weights = model.graph.initializer[0]
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="/dev/zero")
    return stored(path, model)


@hostile("ONNX: 20 million empty nodes")
def many_nodes(path: Path) -> dict[str, Any]:
    nodes = b"\x0a\x00" * 20_000_000
    length, size = bytearray(), len(nodes)
    while size:
        length.append(size & 127 | (128 if size > 127 else 0))
        size >>= 7
    path.write_bytes(b"\x08\x08\x3a" + bytes(length) + nodes)
    return {}


@hostile("ONNX: 90,000 nodes, one behind the other")
def long_chain(path: Path) -> dict[str, Any]:
    names = ["x", *(f"t{index}" for index in range(89_999)), "y"]
    return stored(
        path,
        graph([node("Relu", [a], b) for a, b in itertools.pairwise(names)]),
        activation_shape=(3,),
    )


def safetensors(path: Path, header: bytes, data: int = 0) -> None:
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + data)


@hostile("safetensors: 900,000 empty tensors")
def many_tensors(path: Path) -> dict[str, Any]:
    entry = '"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    safetensors(path, ("{" + ",".join(entry % index for index in range(900_000)) + "}").encode())
    return VGG


@hostile("safetensors: 15,000 empty tensors within the header's limit")
def fewer_tensors(path: Path) -> dict[str, Any]:
    entry = '"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    safetensors(path, ("{" + ",".join(entry % index for index in range(15_000)) + "}").encode())
    return VGG


@hostile("safetensors: a header nested 10^6 deep")
def deep_header(path: Path) -> dict[str, Any]:
    safetensors(path, b'{"a":' + b"[" * 1_000_000)
    return VGG


@hostile("safetensors: 3 GB in a sparse file")
def sparse(path: Path) -> dict[str, Any]:
    count = 750_000_000
    safetensors(
        path, b'{"a":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}' % (count, 4 * count), 4 * count
    )
    return VGG


@hostile("zip: two archives in one file")
def two_archives(path: Path) -> dict[str, Any]:
    first, second = path.with_suffix(".1"), path.with_suffix(".2")
    torch.save({"stage1.0.weight": torch.zeros(3)}, first)
    torch.save({"stage1.0.weight": torch.ones(3)}, second)
    path.write_bytes(first.read_bytes() + second.read_bytes())
    return VGG


@hostile("zip: 200,000 entries")
def many_entries(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path, "w") as archive:
        for index in range(200_000):
            archive.writestr(f"a/{index}", b"")
    return VGG


@hostile("pickle: 4 million empty dicts")
def many_dicts(path: Path) -> dict[str, Any]:
    pickle = b"\x80\x02" + b"}" * (4 * 1024**2 - 100) + b"."
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickle)
    return VGG


@hostile("pickle: tuples that double 80 times")
def doubling_tuples(path: Path) -> dict[str, Any]:
    pickle = b"\x80\x02K\x01q\x00" + b"h\x00h\x00\x86q\x00" * 80 + b"}h\x00Ns."
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickle)
    return VGG


@hostile("pickle: a tensor of 10^12 numbers in a file of 1 KB")
def large_tensor(path: Path) -> dict[str, Any]:
    torch.save({"stage1.0.weight": torch.zeros(1).expand(10**12)}, path)
    return VGG


def suffix(what: str) -> str:
    return {"ONNX": ".onnx", "safetensors": ".safetensors"}.get(what.partition(":")[0], ".pt")


def examine(path: Path, options: dict[str, Any], *, time_limit: float) -> str:
    """The sentence with which the file is refused, or an empty text if it is not."""
    try:
        suspect = open_suspect(path, time_limit=time_limit, **options)
        shape = suspect.input_shape or (3, 4, 4)
        suspect(torch.zeros(1, *shape))
    except SigilError as error:
        return str(error).replace(str(path), "FILE")
    return ""


def measured(path: Path, options: dict[str, Any], *, time_limit: float) -> dict[str, Any]:
    """Examine in a process of its own; returns the answer, the time and both peaks of memory."""
    reading, writing = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            answer = examine(path, options, time_limit=time_limit)
        except BaseException as error:
            answer = f"NO SENTENCE: {type(error).__name__}"
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start
        examiner = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        os.write(writing, json.dumps([answer, examiner / 1024, own / 1024]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer, examiner, own = json.loads(pipe.read())
    os.waitpid(child, 0)
    return {
        "bytes": path.stat().st_size,
        "examiner MB": round(examiner),
        "asking process MB": round(own),
        "seconds": round(time.monotonic() - began, 1),
        "answer": answer,
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("--only", help="only files whose description holds this text")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, dict[str, Any]] = {}
    print("| file | bytes | examiner, MB | asking process, MB | seconds | answer |\n" + "| --- " * 6 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for what, make in HOSTILE.items():
            if arguments.only and arguments.only not in what:
                continue
            path = Path(folder, "suspect" + suffix(what))
            options = make(path)
            rows[what] = row = measured(path, options, time_limit=arguments.time_limit)
            path.unlink()
            print(f"| {what} | " + " | ".join(str(value) for value in row.values()) + " |", flush=True)
    good = all(
        row["answer"].count("FILE") == 1
        and row["examiner MB"] + row["asking process MB"] < LIMIT_MB + 512 + 2 * row["bytes"] / 2**20
        and row["seconds"] < 2 * arguments.time_limit + 60
        for row in rows.values()
    )
    write_result(arguments.json, {"time_limit": arguments.time_limit, "files": rows})
    print("bounded" if good else "NOT BOUNDED")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
