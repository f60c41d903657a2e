"""From a file to a suspect that can be asked for activations."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sigil import extras, models
from sigil.eager import Outline
from sigil.errors import ModelError, ShapeError, SigilError, SuspectError, shown
from sigil.keys.key import Key
from sigil.models.building import assemble, client_halves, tensor_names
from sigil.models.spec import MAX_CHANNELS, MAX_CLASSES, MAX_WIDTH, check_cut, check_range
from sigil.models.spec import architecture as find_architecture
from sigil.models.storage import FLOATS, fill, parse_description
from sigil.suspect.entries import MAX_ENTRIES, Group, Listed, grouped, is_below, outermost, put_together
from sigil.suspect.examination import TIME_LIMIT, Examination, check_time_limit
from sigil.suspect.file import SuspectFile
from sigil.suspect.rewritten import biases, completed, first_kernel, in_order, multiplied_out, orders, read
from sigil.suspect.shards import INDEX_END, Shards, combined_hash, model_in

# Widths and channels of one architecture that are looked at in one file: each takes a model to be made.
_MAX_SIZES = 64
# Weights of an ONNX graph in other files: the graph that is run holds them all.
_MAX_BESIDE_BYTES = 1 << 30

# What PyTorch calls the operators whose number tells where in a network one is, and what ONNX calls them.
_KINDS = {
    **{"convolution": "Conv", "batch_norm": "BatchNormalization", "pool": "Pool", "add": "Add"},
    **{"relu": "Relu", "hardtanh": "Relu", "clamp": "Relu", "cat.": "Concat"},
}


@dataclass(frozen=True, eq=False)
class Suspect:
    """A suspect model up to the cut: call it with images to get activations.

    ``suspect(batch)`` maps float32 (n, *input_shape) to float32 (n, *activation shape), in
    evaluation mode and without gradients. ``input_shape`` is None if the file does not tell it;
    ``sha256`` is that of the file; ``kind`` names its format; ``module`` is the model if it is one
    of PyTorch, None for ONNX. A graph of ONNX runs in a process of its own, which ends with
    :meth:`close`, or when the suspect is no longer used.

    A file may hold several models. ``entries`` names those that are read, in their order, and ``entry`` is
    the name of this one, empty if the file holds it as such; :meth:`each` opens them one after the other.
    ``unread`` is the number of further ones, and of tensors that there was no room or time to look at.
    ``asked`` is what the caller said of the model, to open the same file in the same way once more.
    """

    path: Path
    kind: str
    description: str
    sha256: str
    input_shape: tuple[int, ...] | None
    module: nn.Module | None = dataclasses.field(repr=False)
    _run: Callable[[Tensor], Tensor] = dataclasses.field(repr=False)
    _filters: Callable[[], tuple[Tensor, ...]] = dataclasses.field(repr=False, default=tuple)
    _close: Callable[[], None] = dataclasses.field(repr=False, default=lambda: None)
    entry: str = ""
    entries: tuple[str, ...] = ("",)
    _unread: Callable[[], int] = dataclasses.field(repr=False, default=lambda: 0)
    asked: Mapping[str, str | int] = dataclasses.field(default_factory=dict)
    _others: Callable[[], Iterator[Suspect]] = dataclasses.field(repr=False, default=lambda: iter(()))

    def __call__(self, batch: Tensor) -> Tensor:
        with torch.no_grad():
            return self._run(batch).float()

    @property
    def unread(self) -> int:
        """How much there is that was not read, as far as it was asked for."""
        return self._unread()

    def each(self) -> Iterator[Suspect]:
        """The models in the file, this one first; one that turns out not to be readable is left out."""
        yield self
        yield from self._others()

    def filters(self) -> tuple[Tensor, ...]:
        """The weights of the convolutions of an ONNX graph up to the cut, in the order of computing."""
        return self._filters()

    def close(self) -> None:
        """End the process in which the suspect runs, if there is one."""
        self._close()


class _Says:
    """What a file says of itself: it is shown, and decides nothing that its tensors can tell."""

    def __init__(self, text: str | None) -> None:
        self._text = text
        self._description: models.Description | None = None
        with contextlib.suppress(SuspectError):
            self._description = None if text is None else parse_description(text, source="it")

    def classes(self, spec: models.ModelSpec) -> int:
        """The number of classes, of which nothing in a client half depends."""
        said = self._description
        return said.spec.classes if said and self._agrees(spec) else spec.classes

    @property
    def cut(self) -> str | None:
        """The cut, where nobody else says it and the tensors leave it open."""
        return None if self._description is None else self._description.spec.cut

    def input_shape(self, spec: models.ModelSpec) -> tuple[int, ...] | None:
        """The shape of inputs, where nobody else says it."""
        said = None if self._description is None else self._description.input_shape
        return said if said is not None and said[0] == spec.channels else None

    def otherwise(self, spec: models.ModelSpec) -> str:
        """What is said of another model than this, to be put behind its description."""
        if self._text is None or self._agrees(spec):
            return ""
        said = self._description
        return f"; the file says: {'something that describes no model' if said is None else said.spec}"

    def _agrees(self, spec: models.ModelSpec) -> bool:
        said = self._description
        return said is not None and (
            replace(said.spec, classes=spec.classes) == spec
            or replace(said.spec, classes=spec.classes) == replace(spec, part="whole", cut=None)
        )


@dataclass(frozen=True, eq=False)
class Weights:
    """The floating-point tensors with axes in a suspect's file.

    ``entries`` are the models that the file may hold, by where they are in it: each maps names to tensors.
    ``unread`` is the number of further ones, and of tensors that there was no room to look at.
    """

    path: Path
    kind: str
    sha256: str
    entries: Mapping[str, Mapping[str, Tensor]] = dataclasses.field(repr=False)
    unread: int = 0


@dataclass(frozen=True)
class _Wanted:
    """What the caller says of the suspect; it wins over what the file says."""

    architecture: str | None
    cut: str | None
    width: int | None
    classes: int | None
    input_shape: tuple[int, ...] | None
    activation_shape: tuple[int, ...] | None
    # Whether a model with more channels than the activation can be compared with initial weights.
    may_be_wider: bool = False


def open_suspect(
    path: str | os.PathLike[str],
    *,
    architecture: str | None = None,
    cut: str | None = None,
    width: int | None = None,
    classes: int | None = None,
    input_shape: Sequence[int] | None = None,
    at: str | None = None,
    entry: str | None = None,
    activation_shape: Sequence[int] | None = None,
    key: Key | None = None,
    time_limit: float = TIME_LIMIT,
) -> Suspect:
    """Open a model file that an adversary may have written, without running anything in it.

    In safetensors, files of ``torch.save`` (``.pt``, ``.pth``, ``.bin``, ``.ckpt``) and exported
    programs (``.pt2``) the names and shapes of the tensors show whether they are one of the four
    architectures, with which width, classes and channels; what a file says of itself decides nothing. What
    is given as ``architecture``, ``width`` and ``cut`` must fit. A whole model is cut there. Tensors may lie
    under any keys and prefixes. If they are several models, up to 16 are read (:meth:`Suspect.each`), and
    ``entry`` names one of them. A folder stands for the model in it, also if that lies in several files
    with an index, as Hugging Face stores them (:mod:`sigil.suspect.shards`). For ONNX name the activation:
    ``at`` is a tensor or a node. With ``activation_shape`` a model that does not fit it is refused at once.
    With ``key`` that is the key's, and what it states of the model holds where nothing is given; a graph of
    ONNX brings its own architecture.

    A process of its own takes the file apart and runs graphs of ONNX: it may take ``time_limit`` seconds in
    all, opening and every later call together, and 2 GB of memory beyond what the model itself takes.
    Raises :class:`~sigil.errors.SuspectError` with one sentence for everything that is refused;
    docs/suspects.md lists it.
    """
    wanted = _Wanted(
        architecture=architecture,
        cut=cut,
        width=width,
        classes=classes,
        input_shape=None if input_shape is None else tuple(input_shape),
        activation_shape=None if activation_shape is None else tuple(activation_shape),
    )
    if key is not None:
        wanted = replace(
            wanted,
            input_shape=wanted.input_shape or key.fields.input_shape,
            activation_shape=wanted.activation_shape or key.shape,
            may_be_wider=(activation_shape is None and width is None and key.fields.initialiser is not None),
        )
    check_time_limit(time_limit)
    opened = _open(model_in(Path(path)), wanted, at, entry, key, time_limit)
    asked = {"architecture": architecture, "cut": cut, "width": width, "classes": classes}
    given = {name: value for name, value in (asked | {"at": at, "entry": entry}).items() if value is not None}
    return replace(opened, asked=given)


def _open(
    place: Path, wanted: _Wanted, at: str | None, entry: str | None, key: Key | None, time_limit: float
) -> Suspect:
    if place.name.endswith(INDEX_END):
        if at is not None:
            raise _no_graph(place)
        stated, until = _stated(wanted, key), time.monotonic() + time_limit
        shards = Shards(place, time_limit=time_limit, **_task(entry))
        return _Weights(place, shards, stated, entry, until).first()
    with SuspectFile(place, time_limit=time_limit) as file:
        if file.format == "onnx":
            if entry is not None:
                raise SuspectError(f"{file.path} is an ONNX graph, which has no entries: leave entry out.")
            return _open_onnx(file, wanted, at, time_limit, _stated(wanted, key))
        if at is not None:
            raise _no_graph(file.path)
        stated, until = _stated(wanted, key), time.monotonic() + time_limit
        weights = Examination(file, time_limit=time_limit, **_task(entry))
        return _Weights(file.path, weights, stated, entry, until).first()


def _task(entry: str | None) -> dict[str, Any]:
    """What the process that takes weights apart must know: which names count, and below which entry."""
    names = sorted({tensor for name in models.names() for tensor in tensor_names(name)})
    return {"names": names, "entry": entry}


def open_weights(
    path: str | os.PathLike[str],
    names: Sequence[str],
    *,
    at: str | None = None,
    time_limit: float = TIME_LIMIT,
) -> Weights:
    """Read the weights in a model file that an adversary may have written, whatever model they are of.

    Files and limits are those of :func:`open_suspect`; nothing is run. Each place in which tensors have half
    of the ``names`` or more is an entry, and so is all that is left. Of a graph of ONNX these are the filters
    of its convolutions up to ``at``, in the order of computing, with numbers as names.
    """
    check_time_limit(time_limit)
    place = model_in(Path(path))
    task: dict[str, Any] = {"time_limit": time_limit, "names": None, "entry": None}
    if place.name.endswith(INDEX_END):
        return _weights(place, Shards(place, **task), names, at)
    with SuspectFile(place, time_limit=time_limit) as file:
        if file.format != "onnx":
            return _weights(place, Examination(file, **task), names, at)
    graph = open_suspect(place, at=at, time_limit=time_limit)
    try:
        filters = {str(number): weight for number, weight in enumerate(graph.filters())}
        return Weights(place, graph.kind, graph.sha256, {"": filters})
    finally:
        graph.close()


def open_into(
    path: str | os.PathLike[str],
    module: nn.Module,
    *,
    input_shape: Sequence[int] | None = None,
    time_limit: float = TIME_LIMIT,
) -> Suspect:
    """Open the weights of a model of the caller's own, whose client half `module` is, and put them into it.

    Files, limits and several models in one file are those of :func:`open_suspect`; nothing in the file is
    run. Its tensors must have the names of the module's state dict, behind any prefix, and its shapes.
    """
    wanted = {name: one for name, one in module.state_dict().items() if one.is_floating_point()}
    weights = open_weights(path, list(wanted), time_limit=time_limit)
    lacking = {
        entry: [name for name, one in wanted.items() if name not in held or held[name].shape != one.shape]
        for entry, held in weights.entries.items()
    }
    fitting = tuple(entry for entry, names in lacking.items() if not names)
    if not fitting:
        names = min(lacking.values(), key=len, default=list(wanted))
        raise SuspectError(
            f"{path} does not fit the module: of its {len(wanted)} tensors {len(names)} are missing or have "
            f"another shape ({', '.join(map(shown, names[:3]))}{', …' if len(names) > 3 else ''}); give the "
            "module whose state dict was saved, or its client half."
        )

    def opened(entry: str) -> Suspect:
        filled = copy.deepcopy(module)
        filled.load_state_dict(dict(weights.entries[entry]), strict=False)
        filled.eval().requires_grad_(False)
        return Suspect(
            path=weights.path,
            kind=weights.kind,
            description=f"{type(module).__name__} of the examiner's own code",
            sha256=weights.sha256,
            input_shape=None if input_shape is None else tuple(input_shape),
            module=filled,
            _run=filled,
            entry=entry,
            entries=fitting,
            _unread=lambda: weights.unread,
            _others=lambda: map(opened, fitting[1:]),
        )

    return opened(fitting[0])


def _weights(path: Path, source: Examination | Shards, names: Sequence[str], at: str | None) -> Weights:
    try:
        if at is not None:
            raise _no_graph(path)
        listed = [one for one in source.listed() if one.sound and one.dtype in FLOATS and one.shape]
        entries: dict[str, Mapping[str, Listed]] = {}
        taken: set[int] = set()
        unread: int = source.opened["left"]
        # The same numbers in several places, or a part of them, are one model.
        for group in grouped(listed, names):
            numbers = {one.number for one in group.tensors.values()}
            if numbers <= taken or 2 * len(group.tensors) < len(names):
                continue
            if len(entries) < MAX_ENTRIES:
                entries[group.entry] = group.tensors
                taken |= numbers
            else:
                unread += 1
        rest = {one.name: one for one in listed if one.number not in taken}
        if not entries or any(len(one.shape) > 1 for one in rest.values()):
            entries["all else" if entries else ""] = rest
        tensors = {one.number: source.tensor(one) for held in entries.values() for one in held.values()}
        found = {
            entry: {name: tensors[one.number] for name, one in held.items()}
            for entry, held in entries.items()
        }
        return Weights(path, source.opened["kind"], source.sha256, found, unread)
    finally:
        source.close()


def _stated(wanted: _Wanted, key: Key | None) -> _Wanted:
    """With what a key states of a model's weights, where the caller says nothing of them."""
    if key is None:
        return wanted
    stated = key.fields
    named = wanted.architecture
    other = named not in (None, stated.model)
    elsewhere = named is not None and stated.cut not in models.cut_points(named)
    return replace(
        wanted,
        architecture=named or stated.model,
        cut=wanted.cut or (None if elsewhere else stated.cut),
        width=wanted.width or (None if other else stated.width),
        classes=wanted.classes or (None if other else stated.classes),
    )


def _check(wanted: _Wanted) -> None:
    """Raise if what was named of a model does not exist, whatever the file holds."""
    if wanted.architecture is not None:
        find_architecture(wanted.architecture)
        if wanted.cut is not None:
            check_cut(wanted.architecture, wanted.cut)
    for what, value, most in (("width", wanted.width, MAX_WIDTH), ("classes", wanted.classes, MAX_CLASSES)):
        if value is not None:
            check_range(what, value, 1, most)


def _no_graph(path: Path) -> SuspectError:
    return SuspectError(f"{path} is no ONNX graph, so at (--at) means nothing here: name the cut (--cut).")


def _open_onnx(
    file: SuspectFile, wanted: _Wanted, at: str | None, time_limit: float, stated: _Wanted
) -> Suspect:
    extras.need("onnx")
    if wanted.architecture or wanted.cut or wanted.width or wanted.classes:
        raise SuspectError(
            f"{file.path} is an ONNX graph, which brings its own architecture: leave architecture, "
            "cut, width and classes out and name the activation with at (--at)."
        )
    task: dict[str, Any] = {
        "at": at,
        "activation_shape": wanted.activation_shape,
        "operators": _operators(stated),
        "threads": torch.get_num_threads(),
    }
    examination, sha256 = Examination(file, time_limit=time_limit, **task), file.sha256
    if names := examination.opened.get("needs"):
        examination.close()
        with contextlib.ExitStack() as stack:
            beside: list[SuspectFile] = []
            for name in names:
                one = SuspectFile(
                    file.path.parent / name,
                    time_limit=examination.left,
                    named=True,
                    most=_MAX_BESIDE_BYTES - sum(each.size for each in beside),
                )
                beside.append(stack.enter_context(one))
            sha256 = combined_hash({one.path.name: one.sha256 for one in (file, *beside)})
            examination = Examination(file, time_limit=max(examination.left, 1e-3), beside=beside, **task)
    said = examination.opened["input_shape"]
    own_shape = None if said is None else tuple(said)
    if wanted.input_shape and own_shape not in (None, wanted.input_shape, _channels_last(wanted.input_shape)):
        examination.close()
        raise ShapeError(f"{file.path} takes inputs of shape {own_shape}, not {wanted.input_shape}.")
    return Suspect(
        path=file.path,
        kind="onnx",
        description=f"ONNX graph up to {shown(examination.opened['tensor'])}",
        sha256=sha256,
        input_shape=wanted.input_shape or own_shape,
        module=None,
        _run=examination.run,
        _filters=examination.filters,
        _unread=lambda: examination.unread,
        _close=examination.close,
    )


def _channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[1:], shape[0])


class _Counted(Outline):
    """Counts the operators of a network by the kinds that ONNX has, in the order in which each came last."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = next((kind for sign, kind in _KINDS.items() if sign in func.__name__), None)
        if kind is not None:
            self.kinds[kind] = self.kinds.pop(kind, 0) + 1
        return super().__torch_dispatch__(func, types, args, kwargs)


def _operators(stated: _Wanted) -> dict[str, int] | None:
    """How many operators of each kind the client half has that the key states, to find its end in a graph."""
    if stated.architecture not in models.names():
        return None
    shape = stated.input_shape or (3, 32, 32)
    try:
        half = assemble(_named(stated.architecture, stated, stated.cut)).eval()
        with torch.no_grad(), _Counted() as counted:
            half(torch.empty(1, *shape, device="meta"))
    except (ModelError, RuntimeError):  # only a help to find the right name
        return None
    return counted.kinds


class _Weights:
    """The models in a file of weights: what is found, which of them are read, and why none is."""

    def __init__(
        self, path: Path, source: Examination | Shards, wanted: _Wanted, entry: str | None, until: float
    ) -> None:
        self.path, self._source, self._wanted, self._until = path, source, wanted, until
        self._entry = entry
        # The content was judged before the arguments: a file that tries to run code is called that,
        # whatever else is missing.
        self._every = source.listed()
        self._listed = [one for one in self._every if one.named]
        self._misfit: SigilError | None = None
        self._taken: set[tuple[str, int]] = set()
        try:
            _check(wanted)
            self._says = _Says(source.opened["description"])
            self._unread: int = source.opened["left"]
            self._candidates = self._chosen()
            if not self._candidates:
                raise self._misfit or self._none()
        except BaseException:
            source.close()
            raise

    def _chosen(self) -> list[tuple[models.ModelSpec, Group]]:
        """The models that are read; the same numbers in several places are one."""
        seen: set[tuple[object, ...]] = set()
        named: list[tuple[models.ModelSpec, Group]] = []
        others: list[tuple[models.ModelSpec, Group]] = []
        for spec, group in self._found():
            numbers = (group.tensors[name].number for name in tensor_names(spec.name, spec.cut))
            same = (spec.name, spec.cut, *numbers)
            if same in seen or not is_below(group.entry, self._entry or ""):
                continue
            seen.add(same)
            (named if group.entry == self._entry else others).append((spec, group))
        chosen = named or others
        self._unread += len(chosen[MAX_ENTRIES:])
        return chosen[:MAX_ENTRIES]

    def first(self) -> Suspect:
        """The first model that can be read, which knows the others."""
        failed: SuspectError | None = None
        for place in range(len(self._candidates)):
            try:
                opened = self._suspect(place)
            except SuspectError as error:
                failed = failed or error
                continue
            if len(self._candidates) == 1:
                self._source.close()
            return opened
        self._source.close()
        assert failed is not None
        raise failed

    def _suspect(self, place: int) -> Suspect:
        spec, group = self._candidates[place]
        spec = replace(spec, classes=self._wanted.classes or self._says.classes(spec))
        module = fill(
            spec,
            {name: group.tensors[name].shape for name in tensor_names(spec.name, spec.cut)},
            lambda name: read(group.tensors[name], self._source.tensor),
            source=str(self.path),
            strict=False,
        )
        module.eval().requires_grad_(False)

        def others() -> Iterator[Suspect]:
            for after in range(place + 1, len(self._candidates)):
                try:
                    yield self._suspect(after)
                except SuspectError:
                    continue

        return Suspect(
            path=self.path,
            kind=self._source.opened["kind"],
            description=f"{spec}{self._says.otherwise(spec)}",
            sha256=self._source.sha256,
            input_shape=self._wanted.input_shape or self._says.input_shape(spec),
            module=module,
            _run=module,
            _close=self._source.close,
            entry=group.entry,
            entries=tuple(each.entry for _, each in self._candidates),
            _unread=lambda: self._unread,
            _others=others,
        )

    def _found(self) -> Iterator[tuple[models.ModelSpec, Group]]:
        """Every client half that is wanted and can be read.

        Those whose tensors have their names in one place, then those put together from several, and then
        what has the right sizes in the right order among the tensors that are left.
        """
        readable = [tensor for tensor in self._every if tensor.sound and tensor.dtype in FLOATS]
        readable = multiplied_out(readable)
        wanted = self._wanted
        possible = [
            name
            for name in ([wanted.architecture] if wanted.architecture else models.names())
            if wanted.cut in (None, *models.cut_points(name))
        ]
        for name in possible:
            groups = grouped(readable, (*tensor_names(name), *biases(name)))
            for spec, group in self._named(name, groups):
                self._take(group)
                yield spec, group
        left = [tensor for tensor in readable if (tensor.name, tensor.number) not in self._taken]
        ordered = orders(left)
        for name in possible:
            yield from self._ordered(name, ordered)

    def _take(self, group: Group) -> None:
        """Note which tensors were read by their names, or could have been."""
        self._taken |= {(tensor.name, tensor.number) for tensor in group.tensors.values()}

    def _named(self, name: str, groups: Sequence[Group]) -> Iterator[tuple[models.ModelSpec, Group]]:
        """The client halves of one architecture, by the names of their tensors."""
        wanted, points = self._wanted, models.cut_points(name)
        yield from self._fitting(name, outermost(groups, tensor_names(name)), wanted.cut)
        for cut in [wanted.cut] if wanted.cut else [models.default_cut(name), *points[::-1]]:
            parts, left = put_together(groups, tensor_names(name, cut))
            made = list(self._fitting(name, parts, cut))
            yield from made
            if made:
                self._unread += left
                break

    def _ordered(
        self, name: str, ordered: Sequence[tuple[str, list[Listed]]]
    ) -> Iterator[tuple[models.ModelSpec, Group]]:
        """The client halves of one architecture whose tensors have other names, by sizes and order."""
        wanted = self._wanted
        first = ordered[0][1]
        sizes = dict.fromkeys(size for one in first if (size := self._first_size(name, one.shape)))
        self._unread += len(list(sizes)[_MAX_SIZES:])
        for width, channels in list(sizes)[:_MAX_SIZES]:
            half = replace(_named(name, wanted, wanted.cut), width=width, channels=channels)
            if time.monotonic() > self._until:
                self._unread += 1
                return
            for group in in_order(half, ordered):
                if self._fits(half):
                    yield half, completed(half, group, biased=True)

    def _first_size(self, name: str, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Width and channels of a first convolution of this shape, which may be a matrix or a vector."""
        kernel = first_kernel(name)
        width = shape[0] if len(shape) > 1 else self._wanted.width
        # Without a stated width, matrices of any model could be such a kernel.
        if not width or width > MAX_WIDTH or (self._wanted.width is None and shape[2:] != kernel):
            return None
        channels, rest = divmod(math.prod(shape), width * math.prod(kernel))
        fits = not rest and 1 <= channels <= MAX_CHANNELS and self._has_size(width, channels)
        return (width, channels) if fits else None

    def _fitting(
        self, name: str, groups: Iterable[Group], cut: str | None
    ) -> Iterator[tuple[models.ModelSpec, Group]]:
        """Of each group the client half that fits; if no cut is given, the paper's or where it ends."""
        first, sizes = tensor_names(name)[0], set[tuple[int, ...]]()
        # Those of the stated width come first: there may be many others.
        for group in sorted(
            groups, key=lambda group: group.tensors[first].shape[:1] != (self._wanted.width,)
        ):
            size = self._first_size(name, group.tensors[first].shape)
            if size is None:
                continue
            if (size not in sizes and len(sizes) >= _MAX_SIZES) or time.monotonic() > self._until:
                self._unread += 1
                self._take(group)
                continue
            sizes.add(size)
            spec = self._half(name, group, cut)
            whole = models.ModelSpec(name=name, classes=10, width=size[0], channels=size[1])
            if spec is None:
                group = completed(whole, group)
                spec = self._half(name, group, cut)
            if spec is None:
                continue
            yield spec, group
            if any(bias in group.tensors for bias in biases(name)):
                entry = f"{group.entry} (with biases)".strip()
                yield spec, replace(completed(whole, group, biased=True), entry=entry)

    def _half(self, name: str, group: Group, cut: str | None) -> models.ModelSpec | None:
        """The client half that fits a group's names and shapes."""
        shapes = {tensor: listed.shape for tensor, listed in group.tensors.items()}
        halves = client_halves(name, shapes)
        if cut is None:
            chosen = _likely(halves, whole=all(tensor in shapes for tensor in tensor_names(name)))
            chosen.sort(key=lambda half: half.cut != self._says.cut)
        else:
            chosen = [half for half in halves if half.cut == cut]
        return next((half for half in chosen if self._fits(half)), None)

    def _has_size(self, width: int, channels: int) -> bool:
        """Whether a first convolution of this width and number of channels is one that is asked for."""
        wanted = self._wanted
        wider = wanted.may_be_wider and wanted.width is not None and width > wanted.width
        of_width = wanted.width in (None, width) or wider
        return of_width and (wanted.input_shape or (channels,))[0] == channels

    def _fits(self, spec: models.ModelSpec) -> bool:
        """Whether a half has the activation that is asked for."""
        wanted = self._wanted
        shape = wanted.input_shape or self._says.input_shape(spec)
        if shape is None or wanted.activation_shape is None:
            return True
        try:
            found = _activation(spec, shape)
        except ModelError as error:
            self._misfit = self._misfit or SuspectError(f"{self.path} does not fit: {error}.")
            return False
        asked = wanted.activation_shape
        split = len(found) > 1 and found[0] > asked[0] and found[1:] == asked[1:]
        if found == asked or (split and wanted.may_be_wider):
            return True
        self._misfit = self._misfit or ShapeError(
            f"{self.path}, opened as the {spec}, has activations of shape {found} for inputs of shape "
            f"{shape}, but the key was made for {asked}: name the cut at which the key was used (--cut), or "
            "the shape of its inputs (--input-shape)."
        )
        return False

    def _none(self) -> SuspectError:
        """Why nothing in the file is what is asked for."""
        wanted, opened = self._wanted, self._source.opened
        held = f"{opened['count']:,} tensor{'' if opened['count'] == 1 else 's'} "
        held += f"({', '.join(map(shown, opened['few']))}"
        held += ", …)" if opened["count"] > len(opened["few"]) else ")"
        if self._entry is not None:
            held += f", and no model under {shown(self._entry)}"
        if opened["left"]:
            held += f", {opened['left']:,} of which were not looked at"
        spec, group = self._nearest()
        if spec is not None and (
            wanted.architecture not in (None, spec.name)
            or wanted.width not in (None, spec.width)
            or (wanted.input_shape or (spec.channels,))[0] != spec.channels
        ):
            named = _named(wanted.architecture or spec.name, wanted, wanted.cut)
            return SuspectError(
                f"{self.path} does not fit: these weights are a {spec.name} of width {spec.width} for inputs "
                f"of {spec.channels} channels, and not the {named} for inputs of {named.channels} that was "
                "named or that the key states (--architecture, --width, --input-shape)."
            )
        if spec is not None and wanted.cut is not None:
            check_cut(spec.name, wanted.cut)
        for listed in self._listed:
            if not listed.sound:
                try:
                    self._source.tensor(listed)
                except SuspectError as error:
                    return error
        server = self._server_half()
        if server is not None:
            return SuspectError(
                f"{self.path} holds the {server}, but the mark is in the client half: give that or the whole "
                "model."
            )
        if wanted.architecture is None:
            return SuspectError(
                f"{self.path} holds {held}, which fit none of {', '.join(models.names())}: name its "
                "architecture (--architecture) if it is one of them after all; for one of your own, name the "
                "function that builds its client half (--module FILE.py:NAME), or export it to ONNX and name "
                "the tensor at the cut (--at)."
            )
        if group is None:
            return SuspectError(
                f"{self.path} holds {held}, and none of them has the name of a tensor of "
                f"{wanted.architecture}: give the model's state dict."
            )
        return self._lacking(wanted.architecture, group)

    def _nearest(self) -> tuple[models.ModelSpec | None, Group | None]:
        """The deepest half in the file, whatever was asked for; and what has most of the names asked for."""
        # A few layers of the same names as another model's first ones are no model.
        deepest: tuple[float, models.ModelSpec | None] = (len(self._listed) / 10, None)
        most: tuple[int, Group | None] = (0, None)
        for name in models.names():
            for group in grouped(self._listed, tensor_names(name))[:_MAX_SIZES]:
                halves = client_halves(name, {each: one.shape for each, one in group.tensors.items()})
                if halves and len(tensor_names(name, halves[-1].cut)) > deepest[0]:
                    deepest = len(tensor_names(name, halves[-1].cut)), halves[-1]
                if name == self._wanted.architecture and len(group.tensors) > most[0]:
                    most = len(group.tensors), group
        return deepest[1], most[1]

    def _server_half(self) -> models.ModelSpec | None:
        """The server half that the file holds, if it holds nothing else."""
        for name in models.names():
            for group in grouped(self._listed, tensor_names(name))[:_MAX_SIZES]:
                if len(group.tensors) != len(self._listed):
                    continue
                for cut in models.cut_points(name):
                    behind = set(tensor_names(name)) - set(tensor_names(name, cut))
                    if behind == group.tensors.keys():
                        return replace(_named(name, self._wanted, cut), part="server")
        return None

    def _lacking(self, name: str, group: Group) -> SuspectError:
        """What keeps the tensors from being the half that was asked for."""
        cut = self._wanted.cut or models.default_cut(name)
        first = group.tensors.get(tensor_names(name)[0])
        sizes = first.shape[:2] if first is not None and len(first.shape) == 4 else ()
        try:
            spec = _named(name, self._wanted, cut)
            if sizes:
                spec = replace(spec, width=self._wanted.width or sizes[0], channels=sizes[1])
            known = [tensor for tensor in tensor_names(name, cut) if tensor in group.tensors]
            fill(
                spec,
                {tensor: group.tensors[tensor].shape for tensor in known},
                lambda tensor: self._source.tensor(group.tensors[tensor]),
                source="it",
                strict=False,
            )
            why = "it holds more than was looked at"
        except (SuspectError, ModelError) as error:
            why = str(error)
        return SuspectError(
            f"{self.path} does not fit: {why}; if it is another model, say so with --architecture, --width, "
            "--classes and --cut."
        )


def _likely(halves: Sequence[models.ModelSpec], *, whole: bool) -> list[models.ModelSpec]:
    """Where a model is likely to be cut if nobody says so: at the paper's cut, or where a half ends.

    Behind the last tensors of a half there may be rows without any, a pooling for one.
    """
    if not halves:
        return []
    last = tensor_names(halves[-1].name, halves[-1].cut)
    ends = [half for half in halves[::-1] if tensor_names(half.name, half.cut) == last]
    paper = [half for half in halves if half.cut == models.default_cut(half.name)]
    return paper + ends if whole else ends + paper


def _named(name: str, wanted: _Wanted, cut: str | None) -> models.ModelSpec:
    """The half that was named, of the usual sizes where nothing was said of them."""
    return models.ModelSpec(
        name=name,
        classes=wanted.classes or 10,
        width=wanted.width or find_architecture(name).STANDARD_WIDTH,
        channels=wanted.input_shape[0] if wanted.input_shape else 3,
        part="client",
        cut=cut or models.default_cut(name),
    )


@lru_cache(maxsize=256)
def _activation(spec: models.ModelSpec, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    with Outline():
        return tuple(models.activation_shape(assemble(spec), input_shape))
