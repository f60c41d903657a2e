"""ONNX graphs: cut at the activation, standard operators only, nothing from files elsewhere."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import ModelProto, NodeProto, SparseTensorProto, TensorProto, helper, numpy_helper

import hostile_files
from sigil import models
from sigil.errors import NotReadable, ShapeError, SuspectError
from sigil.keys.key import Key
from sigil.probing import check_finite
from sigil.suspect import graph as suspect_graph
from sigil.suspect import graph_filters, open_suspect
from sigil.suspect.graph import open_graph

ACTIVATION = (8, 4, 4)
TENSOR = "/pool2/MaxPool_output_0"


def test_a_graph_is_cut_at_a_tensor_or_a_node(graph: Path, half: models.Model, images: torch.Tensor) -> None:
    with torch.no_grad():
        expected = half(images)
    for at in (TENSOR, "/pool2/MaxPool"):
        suspect = open_suspect(graph, at=at)
        assert suspect.kind == "onnx"
        assert suspect.module is None
        assert suspect.input_shape == (3, 16, 16)
        # Five images through a graph that was exported for two: pieces, the last one padded.
        found = suspect(images)
        assert found.dtype == torch.float32
        assert found.shape == expected.shape
        assert torch.allclose(found, expected, atol=1e-5)


def test_an_unknown_name_lists_the_nearest(graph: Path) -> None:
    with pytest.raises(SuspectError, match=r"no node or computed tensor .*'/pool2/MaxPool'"):
        open_suspect(graph, at="/pool2/MaxPol")
    with pytest.raises(SuspectError, match="nearest names are"):
        open_suspect(graph, at="x" * 10**5)


def test_without_a_name_the_single_output_is_taken_if_it_fits(
    graph: Path, images: torch.Tensor, model: models.Model
) -> None:
    with torch.no_grad():
        assert torch.allclose(open_suspect(graph)(images), model(images), atol=1e-5)
    assert open_suspect(graph, activation_shape=(10,)).kind == "onnx"


def test_without_a_name_the_tensors_of_the_keys_shape_are_listed(graph: Path) -> None:
    with pytest.raises(SuspectError, match=rf"--at NAME.*'{TENSOR}'") as info:
        open_suspect(graph, activation_shape=ACTIVATION)
    assert "pool3" not in str(info.value)
    with pytest.raises(SuspectError, match="the last are"):
        open_suspect(graph, activation_shape=(77, 1, 1))


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whole network of each architecture as ONNX."""
    folder = tmp_path_factory.mktemp("networks")
    for name in models.names():
        model = models.build(name, width=8, seed=0).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(model, (torch.zeros(1, 3, 32, 32),), str(folder / f"{name}.onnx"), dynamo=False)
    return folder


@pytest.mark.parametrize(
    ("name", "cut", "right"),
    [
        ("resnet18", "layer3", "/layer3/layer3.1/Relu_output_0"),
        ("resnet18", "bn1", "/bn1/Relu_output_0"),
        ("vgg11", "pool4", "/pool4/MaxPool_output_0"),
        ("mobilenetv2", "group6", "/group6/group6.2/Add_output_0"),
        ("densenet121", "trans3", "/trans3/pool/AveragePool_output_0"),
        ("densenet121", "block1", "/block1/block1.5/Concat_output_0"),
    ],
)
def test_the_likeliest_tensor_comes_first_and_each_try_counts(
    networks: Path, name: str, cut: str, right: str
) -> None:
    half, _ = models.split(models.build(name, width=8), cut)
    shape = models.activation_shape(half, (3, 32, 32))
    key = Key.generate(
        "ACME",
        shape=shape,
        bits=8,
        seed=bytes(32),
        model=name,
        width=8,
        cut=cut,
        input_shape=(3, 32, 32),
    )
    with pytest.raises(SuspectError) as caught:
        open_suspect(networks / f"{name}.onnx", key=key)
    assert f"of the key's shape {shape} are, the likeliest first, '{right}'" in str(caught.value)
    assert str(caught.value).endswith("each that you read counts as a try (--tries).")


def test_an_entry_means_nothing_for_onnx(graph: Path) -> None:
    with pytest.raises(SuspectError, match="has no entries"):
        open_suspect(graph, at=TENSOR, entry="model")


def test_arguments_that_mean_nothing_for_onnx_are_refused(graph: Path) -> None:
    with pytest.raises(SuspectError, match="brings its own architecture"):
        open_suspect(graph, architecture="vgg11", at=TENSOR)
    with pytest.raises(ShapeError, match=r"\(3, 16, 16\), not \(3, 32, 32\)"):
        open_suspect(graph, at=TENSOR, input_shape=(3, 32, 32))


# Graphs by hand.


def made(
    nodes: Sequence[NodeProto],
    weights: Sequence[TensorProto] = (),
    *,
    inputs: Sequence[str] = ("x",),
    domains: Sequence[str] = ("",),
    shape: Sequence[Any] = ("n", 3, 4, 4),
    dtype: int = TensorProto.FLOAT,
) -> ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, dtype, shape) for name in inputs],
        [helper.make_tensor_value_info("y", dtype, None)],
        list(weights),
    )
    opsets = [helper.make_opsetid(domain, 17 if domain == "" else 1) for domain in domains]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def stored(model: ModelProto, tmp_path: Path) -> Path:
    path = tmp_path / "suspect.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def relu(source: str = "x", target: str = "y", **attributes: Any) -> NodeProto:
    return helper.make_node("Relu", [source], [target], **attributes)


@pytest.mark.parametrize(
    ("dtype", "numpy_dtype"),
    [(TensorProto.FLOAT, np.float32), (TensorProto.FLOAT16, np.float16)],
)
def test_a_graph_with_a_free_batch_runs_in_its_own_precision(
    tmp_path: Path, dtype: int, numpy_dtype: type
) -> None:
    weight = numpy_helper.from_array(np.full((1, 3, 1, 1), 0.1, numpy_dtype), "w")
    path = stored(made([helper.make_node("Mul", ["x", "w"], ["y"])], [weight], dtype=dtype), tmp_path)
    suspect = open_suspect(path)
    assert suspect.input_shape == (3, 4, 4)
    images = torch.randn(7, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    found = suspect(images)
    assert found.dtype == torch.float32
    assert torch.allclose(found, images * 0.1, atol=1e-3)


def test_a_graph_with_free_sizes_does_not_know_its_input(tmp_path: Path) -> None:
    path = stored(made([relu()], shape=("n", 3, "h", "w")), tmp_path)
    assert open_suspect(path).input_shape is None
    assert open_suspect(path, input_shape=(3, 4, 4)).input_shape == (3, 4, 4)


def external(name: str, location: str) -> TensorProto:
    tensor = numpy_helper.from_array(np.zeros((1, 3, 1, 1), np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    return tensor


@pytest.mark.parametrize(
    "location",
    ["../../etc/passwd", "/etc/passwd", "inside/weights.bin", "..", "a\\b", "*/_ORT_MEM_ADDR_/*", "x" * 300],
)
def test_weights_in_files_elsewhere_are_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "weights.bin").write_bytes(bytes(12))
    add = helper.make_node("Add", ["x", "w"], ["y"])
    with pytest.raises(SuspectError, match="in another file"):
        open_suspect(stored(made([add], [external("w", location)]), tmp_path))
    constant = helper.make_node("Constant", [], ["w"], value=external("w", "weights.bin"))
    with pytest.raises(SuspectError, match="in another file"):
        open_suspect(stored(made([constant, add]), tmp_path))


@pytest.mark.parametrize("together", [True, False])
def test_weights_in_other_files_of_the_folder_are_read(
    graph: Path, images: torch.Tensor, tmp_path: Path, together: bool
) -> None:
    model, path = onnx.load(str(graph)), tmp_path / "copy.onnx"
    onnx.save(
        model, str(path), save_as_external_data=True, all_tensors_to_one_file=together, size_threshold=0
    )
    suspects = [open_suspect(one, at="/pool2/MaxPool") for one in (graph, path)]
    assert torch.equal(*(suspect(images) for suspect in suspects))
    assert all(map(torch.equal, *(suspect.filters() for suspect in suspects)))
    assert suspects[1].sha256 not in {
        hashlib.sha256(one.read_bytes()).hexdigest() for one in tmp_path.iterdir()
    }


def test_the_hash_of_a_graph_is_that_of_all_its_files(tmp_path: Path) -> None:
    add, file = helper.make_node("Add", ["x", "w"], ["y"]), tmp_path / "weights.bin"
    file.write_bytes(bytes(12))
    path = stored(made([add], [external("w", file.name)]), tmp_path)
    hashes = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in (path, file)}
    lines = "".join(f"{name} {hashes[name]}\n" for name in sorted(hashes))
    assert open_suspect(path).sha256 == hashlib.sha256(lines.encode()).hexdigest()


CHANGED: dict[str, tuple[Callable[[Path, TensorProto], object], str]] = {
    "not there": (lambda file, weight: file.unlink(), "cannot be read: No such file"),
    "a link": (
        lambda file, weight: (file.rename(file.with_name("other")), file.symlink_to("other")),
        "is not a file",
    ),
    "a folder": (lambda file, weight: (file.unlink(), file.mkdir()), "is not a file"),
    "a pipe": (lambda file, weight: (file.unlink(), os.mkfifo(file)), "is not a file"),
    "empty": (lambda file, weight: file.write_bytes(b""), "is empty"),
    "short": (lambda file, weight: file.write_bytes(bytes(11)), "do not lie in the file"),
    "huge": (lambda file, weight: os.truncate(file, 2 << 30), "bytes, more than the limit of 1,073,741,824"),
    "before the start": (lambda file, weight: said(weight, "offset", "-4"), "do not lie in the file"),
    "behind the end": (lambda file, weight: said(weight, "offset", str(1 << 70)), "do not lie in the file"),
    "another length": (lambda file, weight: said(weight, "length", "8"), "do not lie in the file"),
    "no number": (lambda file, weight: said(weight, "offset", "x"), "do not lie in the file"),
    "a negative size": (lambda file, weight: weight.dims.append(-1), "do not lie in the file"),
    "no type": (lambda file, weight: setattr(weight, "data_type", 99), "do not lie in the file"),
}


def said(weight: TensorProto, key: str, value: str) -> None:
    entry = weight.external_data.add()
    entry.key, entry.value = key, value


@pytest.mark.parametrize("change", CHANGED)
def test_other_files_that_hold_no_weights_are_refused(tmp_path: Path, change: str) -> None:
    file, weight = tmp_path / "weights.bin", external("w", "weights.bin")
    file.write_bytes(bytes(12))
    add = helper.make_node("Add", ["x", "w"], ["y"])
    assert open_suspect(stored(made([add], [weight]), tmp_path)).kind == "onnx"
    CHANGED[change][0](file, weight)
    with pytest.raises(SuspectError, match=CHANGED[change][1]) as caught:
        open_suspect(stored(made([add], [weight]), tmp_path))
    assert "\n" not in str(caught.value)


def test_more_files_than_can_be_opened_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", [f"x{n}" if n else "x", f"w{n}"], [f"x{n + 1}"]) for n in range(129)]
    nodes[-1].output[0] = "y"
    model = made(nodes, [external(f"w{n}", f"file{n}") for n in range(129)])
    with pytest.raises(SuspectError, match="in 129 other files, more than the limit of 128"):
        open_suspect(stored(model, tmp_path))


@pytest.mark.parametrize("domain", ["com.microsoft", "evil.ops", "ai.onnx.preview.training"])
def test_operators_of_other_domains_are_refused(tmp_path: Path, domain: str) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], domain=domain)
    with pytest.raises(SuspectError, match=rf"domain '{domain}'"):
        open_suspect(stored(made([node], domains=["", domain]), tmp_path))


def test_what_onnxruntime_saves_of_a_graph_is_read(
    graph: Path, half: models.Model, images: torch.Tensor, tmp_path: Path
) -> None:
    """Whoever lets onnxruntime save what it has optimised gets operators of its own."""
    options, path = onnxruntime.SessionOptions(), tmp_path / "optimised.onnx"
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    assert {node.op_type for node in onnx.load(path).graph.node} >= {"FusedConv", "MaxPool"}
    key = Key.generate(
        "ACME",
        shape=ACTIVATION,
        bits=8,
        seed=bytes(32),
        model="vgg11",
        width=4,
        cut="pool2",
        input_shape=(3, 16, 16),
    )
    with pytest.raises(SuspectError, match=rf"it may be '{TENSOR}'"):
        open_suspect(path, key=key)
    with torch.no_grad():
        assert torch.allclose(open_suspect(path, at=TENSOR)(images), half(images), atol=1e-5)


def test_the_last_of_several_constants_counts_as_for_onnxruntime(tmp_path: Path) -> None:
    constants = [helper.make_node("Constant", [], ["w"], value_float=value) for value in (7.0, 2.0)]
    path = stored(made([*constants, helper.make_node("Mul", ["x", "w"], ["y"])]), tmp_path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    images = np.ones((1, 3, 4, 4), np.float32)
    assert session.run(None, {"x": images})[0].max() == 2.0
    assert open_suspect(path)(torch.from_numpy(images)).max() == 2.0


def test_what_comes_after_the_cut_does_not_matter(tmp_path: Path) -> None:
    after = helper.make_node("Anything", ["a"], ["y"], domain="evil.ops")
    path = stored(made([relu(target="a"), after], domains=["", "evil.ops"]), tmp_path)
    assert open_suspect(path, at="a")(torch.ones(2, 3, 4, 4)).shape == (2, 3, 4, 4)
    with pytest.raises(SuspectError, match="evil"):
        open_suspect(path)


def calling(depth: int, times: int) -> ModelProto:
    """A function that calls another so many times, which calls another and so on; the last one negates."""
    model = made([helper.make_node(f"f{depth}", ["x"], ["y"], domain="local")], domains=["", "local"])
    for level in range(depth + 1):
        names = [f"t{step}" for step in range(times)] + ["b"]
        calls = [helper.make_node("Neg", ["a"], ["b"])]
        if level:
            called = zip(["a", *names[1:-1]], names[1:], strict=True)
            calls = [
                helper.make_node(f"f{level - 1}", [source], [target], domain="local")
                for source, target in called
            ]
        model.functions.append(
            helper.make_function("local", f"f{level}", ["a"], ["b"], calls, model.opset_import)
        )
    return model


def test_functions_of_the_file_are_put_in_their_place(tmp_path: Path) -> None:
    images = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    for depth, times, sign in ((0, 1, -1), (1, 2, 1), (3, 3, -1)):
        suspect = open_suspect(stored(calling(depth, times), tmp_path))
        assert torch.equal(suspect(images), sign * images)
    unused = calling(40, 2)
    del unused.graph.node[:]
    unused.graph.node.append(relu())
    assert torch.equal(open_suspect(stored(unused, tmp_path))(images), images.relu())


def test_functions_that_grow_or_call_themselves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SuspectError, match="nodes with those of the functions"):
        open_suspect(stored(calling(40, 2), tmp_path))
    endless = calling(0, 1)
    endless.functions[0].node[0].op_type, endless.functions[0].node[0].domain = "f0", "local"
    with pytest.raises(SuspectError, match="more than 100 deep"):
        open_suspect(stored(endless, tmp_path))


def test_functions_that_the_file_defines_are_refused(tmp_path: Path) -> None:
    model = made([relu()])
    function = helper.make_function(
        "", "Relu", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], model.opset_import
    )
    model.functions.append(function)
    with pytest.raises(SuspectError, match="defines itself"):
        open_suspect(stored(model, tmp_path))


def branching(*nodes: NodeProto, weights: Sequence[TensorProto] = ()) -> ModelProto:
    """A convolution in two branches, between which the sign of the mean decides; one has more nodes."""
    sign = [
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "zero"], ["choice"]),
    ]
    ways: dict[str, Any] = {}
    for word, made_by in (
        ("then_branch", [*nodes, helper.make_node("Conv", ["x", "kernel"], ["then"])]),
        (
            "else_branch",
            [
                helper.make_node("Conv", ["x", "negative"], ["not"]),
                helper.make_node("Neg", ["not"], ["else"]),
            ],
        ),
    ):
        output = helper.make_tensor_value_info(made_by[-1].output[0], TensorProto.FLOAT, None)
        ways[word] = helper.make_graph(made_by, word, [], [output], list(weights) if nodes else [])
    kernel = np.arange(12, dtype=np.float32).reshape(4, 3, 1, 1) + 1
    known = {"kernel": kernel, "negative": -kernel, "zero": np.zeros((), np.float32)}
    return made(
        [*sign, helper.make_node("If", ["choice"], ["made"], **ways), relu("made")],
        [numpy_helper.from_array(values, name) for name, values in known.items()],
    )


def test_branches_are_read_with_what_they_take_from_around_them(tmp_path: Path) -> None:
    """They were refused, so that a copy with branches got no verdict."""
    images = torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    wanted = torch.arange(1.0, 13).view(4, 3, 1, 1)
    suspect = open_suspect(stored(branching(), tmp_path))
    torch.testing.assert_close(suspect(images), torch.relu(torch.conv2d(images, wanted)))
    opened = open_graph(branching().SerializeToString(), source=tmp_path / "model.onnx")
    (*written, found), left = opened.filters(60.0)
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=1e-4, atol=1e-4)
    # What is written in the branches comes first, the one that is not taken with it.
    torch.testing.assert_close(torch.from_numpy(np.stack(written)), torch.stack([-wanted, wanted]))
    assert left == 0


def test_what_is_refused_is_refused_in_branches(tmp_path: Path) -> None:
    random = helper.make_node("RandomNormal", [], ["random"], shape=[1])
    idle = helper.make_node("Identity", ["far"], ["near"])
    outside = external("far", "/dev/zero")
    for model, words in (
        (branching(random), "draws random numbers"),
        (branching(idle, weights=[outside]), "in another file"),
    ):
        with pytest.raises(SuspectError, match=words):
            open_suspect(stored(model, tmp_path))


def test_nodes_of_branches_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspect_graph, "MAX_NODES", 6)
    with pytest.raises(SuspectError, match="has 7 nodes"):
        open_graph(branching().SerializeToString(), source=tmp_path / "model.onnx")


def test_a_loop_without_end_ends_with_the_time(tmp_path: Path) -> None:
    endless = numpy_helper.from_array(np.array(2**62, np.int64), "endless")
    suspect = open_suspect(stored(made([hostile_files.endless_loop()], [endless]), tmp_path), time_limit=10.0)
    with pytest.raises(SuspectError, match="within the time limit of 10 seconds"):
        suspect(torch.zeros(1, 3, 4, 4))


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    hostile = "\x1b[2Jy\n"
    graph = made([relu(target=hostile), relu(hostile)])
    assert "\x1b" not in open_suspect(stored(graph, tmp_path), at=hostile).description
    for broken in (
        made([relu(target=hostile), helper.make_node("Conv", [hostile], ["y"], name=hostile)]),
        made([relu(hostile)]),
        made([helper.make_node(hostile, ["x"], ["y"])]),
    ):
        with pytest.raises(SuspectError) as info:
            open_suspect(stored(broken, tmp_path))
        assert str(info.value).isprintable()


def test_random_operators_are_refused(tmp_path: Path) -> None:
    node = helper.make_node("RandomNormalLike", ["x"], ["y"])
    with pytest.raises(SuspectError, match="random"):
        open_suspect(stored(made([node]), tmp_path))


def test_a_graph_that_asks_for_all_memory_fails_instead(tmp_path: Path) -> None:
    size = numpy_helper.from_array(np.array([10**6, 10**6], np.int64), "size")
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["huge"]),
        helper.make_node("ReduceMax", ["huge"], ["m"], keepdims=0),
        helper.make_node("Add", ["x", "m"], ["y"]),
    ]
    path = stored(made(nodes, [size]), tmp_path)
    with pytest.raises(SuspectError, match=r"takes more than the 2\.0 GB of memory"):
        open_suspect(path)(torch.zeros(1, 3, 4, 4))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_constant_that_is_not_finite_keeps_no_graph_from_being_read(tmp_path: Path, value: float) -> None:
    weights = [
        numpy_helper.from_array(np.array(number, np.float32), name)
        for number, name in ((value, "w"), (1e6, "far"))
    ]
    nodes = [
        helper.make_node("Greater", ["x", "far"], ["beyond"]),
        helper.make_node("Where", ["beyond", "w", "x"], ["y"]),
    ]
    suspect = open_suspect(stored(made(nodes, weights), tmp_path))
    images = torch.randn(2, 3, 4, 4)
    assert torch.equal(suspect(images), images)
    images[1, 0, 0, 0] = 1e7
    with pytest.raises(NotReadable):
        check_finite(suspect(images))


def test_tensors_that_there_was_no_time_to_look_at_are_counted(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["rectified"]),
        helper.make_node("Neg", ["rectified"], ["y"]),
    ]
    opened = open_graph(made(nodes, []).SerializeToString(), source=tmp_path / "model.onnx")
    assert opened.filters(0.0)[1] == 2
    assert opened.filters(60.0)[1] == 0


@pytest.mark.parametrize(("most", "left"), [(2, 1), (3, 0)])
def test_filters_that_there_was_no_room_for_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, left: int
) -> None:
    """Of more than 256 nothing was said: layers that do nothing took the place of others."""
    monkeypatch.setattr(graph_filters, "MOST_FILTERS", most)
    names = ["x", "a", "b", "y"]
    kernels = np.random.default_rng(0).standard_normal((3, 3, 3, 1, 1)).astype(np.float32)
    nodes = [helper.make_node("Conv", [names[n], f"w{n}"], [names[n + 1]]) for n in range(3)]
    weights = [numpy_helper.from_array(kernel, f"w{n}") for n, kernel in enumerate(kernels)]
    opened = open_graph(made(nodes, weights).SerializeToString(), source=tmp_path / "model.onnx")
    assert opened.filters(60.0)[1] == left


def last_first(model: ModelProto) -> bytes:
    """The fields of a model in the opposite order: the version of its format comes last."""
    parts = []
    for field, _ in model.ListFields():
        part = ModelProto()
        getattr(part, field.name)
        part.MergeFrom(model)
        for other, _ in model.ListFields():
            if other.name != field.name:
                part.ClearField(other.name)
        parts.append(part.SerializeToString())
    return b"".join(reversed(parts))


@pytest.mark.parametrize("before", [b"", b"\x80\x02\x01", b"\x79" + bytes(7) + b"{", b"\x7b\x7c"])
def test_the_order_of_fields_means_nothing(
    graph: Path, half: models.Model, images: torch.Tensor, tmp_path: Path, before: bytes
) -> None:
    content = before + last_first(onnx.load(graph))
    assert before or content[:1] != b"\x08"
    path = tmp_path / "suspect.onnx"
    path.write_bytes(content)
    onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    with torch.no_grad():
        assert torch.allclose(open_suspect(path, at=TENSOR)(images), half(images), atol=1e-5)


def sparse(weights: TensorProto, *, by_axis: bool) -> SparseTensorProto:
    dense = numpy_helper.to_array(weights)
    places = np.argwhere(dense != 0) if by_axis else np.flatnonzero(dense)
    values = numpy_helper.from_array(dense[dense != 0], weights.name)
    return helper.make_sparse_tensor(
        values, numpy_helper.from_array(places.astype(np.int64), f"{weights.name}_indices"), dense.shape
    )


@pytest.mark.parametrize("by_axis", [False, True])
def test_sparse_weights_are_read(
    graph: Path, half: models.Model, images: torch.Tensor, tmp_path: Path, by_axis: bool
) -> None:
    model = onnx.load(graph)
    # Of two of one name onnxruntime takes the sparse one, and so the zeros count for nothing.
    for weights in model.graph.initializer:
        model.graph.sparse_initializer.append(sparse(weights, by_axis=by_axis))
        zeros = np.zeros_like(numpy_helper.to_array(weights))
        weights.CopyFrom(numpy_helper.from_array(zeros, weights.name))
    with torch.no_grad():
        expected = half(images)
    assert torch.allclose(open_suspect(stored(model, tmp_path), at=TENSOR)(images), expected, atol=1e-5)
    del model.graph.initializer[:]
    path = stored(model, tmp_path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].name
    assert torch.allclose(open_suspect(path, at=TENSOR)(images), expected, atol=1e-5)


@pytest.mark.parametrize("change", ["places", "shape", "negative", "elsewhere"])
def test_sparse_weights_that_do_not_fit_are_refused(tmp_path: Path, change: str) -> None:
    weights = sparse(numpy_helper.from_array(np.ones((1, 3, 1, 1), np.float32), "w"), by_axis=False)
    if change == "places":
        weights.indices.CopyFrom(numpy_helper.from_array(np.array([0, 1, 7]), "i"))
    elif change == "negative":
        weights.indices.CopyFrom(numpy_helper.from_array(np.array([0, 1, -1]), "i"))
    elif change == "shape":
        weights.dims[0] = 2**40
    else:
        weights.values.CopyFrom(external("w", "/etc/passwd"))
    model = made([helper.make_node("Mul", ["x", "w"], ["y"])])
    model.graph.sparse_initializer.append(weights)
    with pytest.raises(SuspectError, match=r"do not fit its shape|more than there can be|in another file"):
        open_suspect(stored(model, tmp_path))


def test_weights_with_fewer_values_than_their_shape_are_refused(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((3, 1, 1), np.float32), "w")
    weight.dims[0] = 2**40
    path = stored(made([helper.make_node("Mul", ["x", "w"], ["y"])], [weight]), tmp_path)
    with pytest.raises(SuspectError, match="do not have its shape"):
        open_suspect(path)


def test_graphs_that_are_none_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    two = made([helper.make_node("Add", ["x", "z"], ["y"])], inputs=("x", "z"))
    cycle = made([relu("y", "a"), helper.make_node("Add", ["x", "a"], ["y"])])
    cases = [
        (made([relu("missing")]), "lacks the tensor 'missing'"),
        (made([relu(), relu()]), "twice"),
        (two, "needs 2 inputs"),
        (made([helper.make_node("Constant", [], ["y"], value_float=1.0)]), "needs 0 inputs"),
        (cycle, "cannot be run"),
        (made([helper.make_node("Conv", ["x"], ["y"])]), "cannot be run"),
        (made([helper.make_node("NoSuchOperator", ["x"], ["y"])]), "cannot be run"),
        (made([relu()], dtype=TensorProto.INT64), "no floating-point"),
    ]
    for model, why in cases:
        with pytest.raises(SuspectError, match=why):
            open_suspect(stored(model, tmp_path))
    monkeypatch.setattr(suspect_graph, "MAX_NODES", 1)
    with pytest.raises(SuspectError, match="more than the limit"):
        open_graph(made([relu(target="a"), relu("a")]).SerializeToString(), source=tmp_path)
    assert capfd.readouterr() == ("", "")


def test_an_input_of_the_wrong_size_gives_one_sentence(graph: Path) -> None:
    suspect = open_suspect(graph, at=TENSOR)
    with pytest.raises(SuspectError, match=r"inputs of shape \(1, 16, 16\)") as info:
        suspect(torch.zeros(2, 1, 16, 16))
    assert "\n" not in str(info.value)


def test_a_truncated_graph_is_refused(graph: Path, tmp_path: Path) -> None:
    path = tmp_path / "truncated.onnx"
    path.write_bytes(graph.read_bytes()[:-200])
    with pytest.raises(SuspectError, match="damaged"):
        open_suspect(path)


def test_only_the_needed_part_reaches_the_runtime(graph: Path) -> None:
    model = onnx.load(graph)
    entry = model.metadata_props.add()
    entry.key, entry.value = "ort_config", '{"session_options": {"inter_op_num_threads": 1}}'
    part = suspect_graph._extract(model, TENSOR, graph, {})
    assert not part.metadata_props
    assert [output.name for output in part.graph.output] == [TENSOR]
    assert 0 < len(part.graph.node) < len(model.graph.node)
    assert len(part.graph.initializer) < len(model.graph.initializer)
