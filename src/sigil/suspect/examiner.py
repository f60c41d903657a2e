"""The process that takes a suspect's file apart: it sees that file, the inputs, and nothing else.

:mod:`sigil.suspect.examination` starts it as a script, with an empty environment and without a shell,
answers nothing and knows nothing of a key. It first imports what the format needs, then gives up the
right to more memory, files and time than its task may take, and only then touches the file. What it
is asked and what it answers are frames (:mod:`sigil.suspect.frames`) on its standard input and output.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from sigil.suspect.tensors import Tensors

_KIBIBYTES = {"VmSize": 0, "VmData": 0}
# Sizes of what may pass through the pipe at once.
_MOST_INPUT = 1 << 30
# The parent ends this process at the time limit; the kernel does it this much later if no parent is left.
_GRACE_SECONDS = 5.0
# Finding filters takes at most this part of the time that is left: the suspect is asked more afterwards.
_FILTERS_SHARE = 0.75


def main() -> None:
    """Answer frames until the other end closes the pipe."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What native code prints must not be taken for an answer.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    task, _ = _next(requests)
    sys.path[:] = task["path"]
    if task["format"] == "onnx":
        import sigil.suspect.graph
    else:
        import sigil.suspect.entries
        import sigil.suspect.exported  # noqa: F401
    _confine(task["memory"])
    _answer(answers, {"ready": True})
    _serve(task, requests, answers)


def _alarm(seconds: float) -> None:
    """Have the system end this process in so much time, where it can; 0 is never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _serve(task: dict[str, Any], requests: BinaryIO, answers: BinaryIO) -> None:
    from sigil.errors import SigilError

    suspect: Any = None
    filters: list[Any] = []
    while True:
        _alarm(0)
        request, payload = _next(requests)
        _alarm(request["seconds"] + _GRACE_SECONDS)
        try:
            if request["do"] == "open":
                suspect, header = (_open_graph if task["format"] == "onnx" else _open_weights)(task)
                _answer(answers, header)
            elif request["do"] == "run":
                _answer(answers, *_run(suspect, request["shape"], payload))
            elif request["do"] == "filters":
                filters, left = suspect.filters(_FILTERS_SHARE * request["seconds"])
                _answer(answers, {"filters": [one.shape for one in filters], "left": left})
            elif request["do"] == "filter":
                _answer(answers, {}, _bytes(filters[request["place"]]))
            else:
                _answer(answers, {}, suspect[request["number"]][1].read())
        except SigilError as error:
            _answer(answers, {"refused": str(error)[:2000]})
        except MemoryError:
            _answer(answers, {"memory": True})


def _content(descriptor: int, size: int) -> memoryview:
    """The suspect's bytes, mapped into memory: the copy that was hashed, which nobody else can change."""
    import mmap

    return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))


def _open_graph(task: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    from sigil.suspect.graph import NeedsFiles, open_graph

    try:
        graph = open_graph(
            _content(task["file"], task["size"]),
            source=Path(task["source"]),
            at=task["at"],
            activation_shape=task["activation_shape"],
            operators=task.get("operators"),
            threads=task["threads"],
            memory=task["memory"],
            beside={name: _content(*place) for name, place in task["beside"].items()},
        )
    except NeedsFiles as needed:
        return None, {"input_shape": None, "tensor": "", "needs": needed.names}
    return graph, {"input_shape": graph.input_shape, "tensor": graph.tensor[:200]}


def _open_weights(task: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    from sigil.suspect import entries, pickled, tensors

    content, source = _content(task["file"], task["size"]), Path(task["source"])
    said, kind = None, "state dict"
    if task["format"] == "safetensors":
        kind = "safetensors"
        found, said = tensors.read_safetensors(content, source)
    elif task["format"] == "bare pickle":
        pickled.refuse_bare_pickle(content, source)
    elif task["format"] == "torch pickle":
        found = pickled.load_legacy_state(content, source)
    else:
        kind, found = _open_archive(content, source)
    listed = entries.listing(found, task["names"], task["entry"])
    return found, {"kind": kind, "description": said, **listed}


def _open_archive(content: memoryview, source: Path) -> tuple[str, Tensors]:
    """What ``torch.save`` wrote, or an exported program; where both can be read in one file, both."""
    from sigil.suspect import exported, pickled, tensors
    from sigil.suspect.archive import Archive

    archive = Archive(content, source)
    if not exported.is_exported(archive):
        kind, found = "state dict", pickled.load_state(archive)
    else:
        kind, found = "exported program", exported.load_exported_state(archive)
        if "data.pkl" in archive.names():
            pairs = pickled.load_state(archive)
            found += [(tensors.joined("data.pkl", name), tensor) for name, tensor in pairs]
    return kind + (" with wrong checksums" if archive.changed else ""), found


def _run(graph: Any, shape: list[int], payload: bytes) -> tuple[dict[str, Any], memoryview]:
    import numpy as np

    activation = graph.run(np.frombuffer(payload, np.float32).reshape(shape))
    return {"shape": activation.shape}, _bytes(activation)


def _bytes(values: Any) -> memoryview:
    import numpy as np

    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _confine(memory: int) -> None:
    """Take no more than ``memory`` bytes beyond what the imports took, write no file, leave no core."""
    try:
        import resource
    except ImportError:  # no POSIX: the parent watches the memory alone
        return
    used = dict(_KIBIBYTES)
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in used:
                used[name] = int(value.split()[0]) * 1024
        # If the machine runs out of memory, this process goes first.
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        pass
    limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0}
    if all(used.values()):
        # Private memory is what counts; addresses have room for the file and for threads' stacks.
        limits |= {"RLIMIT_DATA": used["VmData"] + memory, "RLIMIT_AS": used["VmSize"] + 2 * memory}
    for limit, most in limits.items():
        kind: int = getattr(resource, limit)
        hard: int = resource.getrlimit(kind)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (least, least))


def _next(requests: BinaryIO) -> tuple[dict[str, Any], bytes]:
    """The next frame; the process ends if there is none."""
    prefix = requests.read(12)
    if len(prefix) < 12:
        os._exit(0)
    header = int.from_bytes(prefix[:4], "little")
    payload = int.from_bytes(prefix[4:], "little")
    if payload > _MOST_INPUT:
        os._exit(1)
    return json.loads(requests.read(header)), requests.read(payload)


def _answer(answers: BinaryIO, header: dict[str, Any], payload: memoryview | None = None) -> None:
    from sigil.suspect.frames import packed

    answers.write(packed(header, 0 if payload is None else payload.nbytes))
    if payload is not None:
        answers.write(payload)
    answers.flush()


if __name__ == "__main__":
    main()
