"""Which tensors of a file belong together as one model.

A file may hold several models, and what is not a model: under the keys of dicts, in lists, behind prefixes
of names, some tensors here and the others there. Who made it knows how it is read, and need not say so:
what a file says of itself decides nothing. So all tensors are listed by the names that lead to them, and a
model is found wherever the names of an architecture's tensors are complete behind the same beginning.
Nothing here needs PyTorch.
"""

from __future__ import annotations

import functools
import re
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sigil.suspect.tensors import MAX_DIMENSIONS, Tensors

MAX_LISTED = 100_000
"""Tensors that are passed on from the process that takes a file apart."""
MAX_LISTED_BYTES = 12 * 1024**2
MAX_ENTRIES = 16
"""Models in one file that are read, each of which counts as a try."""
# Parts that models are put together from, and ways of doing so that are looked at.
_MAX_PARTS = 64
_MAX_STEPS = 1_000
# Parts of a name that are looked at, from its end.
_MAX_LEVELS = 40

# How an entry is named that is put together from two, and the second one of a name.
_AND = " + "
_TURN = re.compile(r" ?\(([0-9]+|with biases)\)$")
_ORDERED = (" (in order)", " (by name)")

# What wrappers put into the names of what they wrap.
_WRAPPERS = frozenset(("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))


@dataclass(frozen=True, slots=True)
class Listed:
    """A tensor of a file; those of one ``number`` are the same. One that is not ``sound`` cannot be read.

    One that is not ``named`` has not the name of any architecture's. One that is ``made`` in some way, from
    ``parts`` or from a ``value``, is not in the file as such (:mod:`sigil.suspect.rewritten`).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    number: int
    sound: bool
    named: bool = True
    parts: tuple[Listed, ...] = ()
    made: str = ""
    value: float = 0.0


def listing(tensors: Tensors, names: Collection[str] | None, entry: str | None) -> dict[str, Any]:
    """What the process that takes a file apart says of its tensors.

    They are listed in the order of the file, below ``entry`` if one is given. If some must be left out for
    want of room, those whose names end as one of an architecture's ``names`` come first. Besides: how many
    are left out, how many tensors there are in all, and a few names.
    """
    known, longest, places = frozenset(names or ()), _longest(names or ()), _places(entry)
    numbers: dict[object, int] = {}
    listed: dict[int, list[Any]] = {}
    left = length = 0
    below = [
        (number, names is None or next(_endings(name, known, longest), None) is not None)
        for number, (name, _) in enumerate(tensors)
        if any(is_below(name, place) for place in places)
    ]
    for number, named in sorted(below, key=lambda one: not one[1]):
        name, tensor = tensors[number]
        length += len(name.encode("ascii", "backslashreplace")) + 100
        if len(listed) >= MAX_LISTED or length > MAX_LISTED_BYTES or len(tensor.shape) > MAX_DIMENSIONS:
            left += 1
            continue
        first = numbers.setdefault(tensor.place, number)
        listed[number] = [name, tensor.dtype, list(tensor.shape), first, tensor.sound, named]
    few = [name[:200] for name, _ in tensors[:5]]
    rows = [listed[number] for number in sorted(listed)]
    return {"listed": rows, "left": left, "count": len(tensors), "few": few}


def is_below(name: str, entry: str) -> bool:
    """Whether what has this name lies in an entry, or is it."""
    return not entry or name == entry or name.startswith((f"{entry}.", f"{entry} ("))


def _places(entry: str | None) -> list[str]:
    """Where the tensors of an entry may be: below it, or below those that it is put together from."""
    if entry is None or entry.endswith(_ORDERED):
        return [""]
    return [_TURN.sub("", place) for place in (entry, *entry.split(_AND))]


@dataclass(frozen=True)
class Group:
    """Tensors that may be a model's, by the names of its layers; ``entry`` is where they are in the file."""

    entry: str
    tensors: Mapping[str, Listed]

    def holds(self, names: Collection[str]) -> bool:
        """Whether none of the names is missing."""
        return all(name in self.tensors for name in names)


def grouped(listed: Sequence[Listed], names: Sequence[str]) -> list[Group]:
    """All groups of tensors with the same beginning in front of an architecture's names, in the file's order.

    Of tensors with equal names in several places, the first ones are a group, the second ones another.
    """
    known, longest = frozenset(names), _longest(names)
    found: dict[str, dict[str, list[Listed]]] = {}
    for tensor in listed:
        for entry, name in _endings(tensor.name, known, longest):
            found.setdefault(entry, {}).setdefault(name, []).append(tensor)
    groups = []
    for entry, held in found.items():
        # A name may come any number of times: what all have in common is held once.
        last = {name: each[-1] for name, each in held.items()}
        groups.append(Group(entry, {name: each[0] for name, each in held.items()}))
        for turn in range(1, max(map(len, held.values()))):
            own = {name: each[turn] for name, each in held.items() if len(each) > turn}
            groups.append(Group(f"{entry} ({turn + 1})".strip(), ChainMap(own, last)))
            held = {name: each for name, each in held.items() if len(each) > turn}
    return groups


def outermost(groups: Sequence[Group], names: Sequence[str]) -> Iterator[Group]:
    """The groups that have the first of the names, unless that tensor is another one of a larger group.

    A block of a network may have layers of the same names as the network.
    """
    first, longest_name = names[0], _longest(names)
    by_entry = {group.entry: group for group in groups}
    for group in groups:
        start, parts = group.tensors.get(first), group.entry.split(".")
        if start is None:
            continue
        above = (".".join(parts[:count]) for count in range(max(0, len(parts) - longest_name), len(parts)))
        outer = (by_entry[entry] for entry in above if entry in by_entry and entry != group.entry)
        if not any(tensor is start for other in outer for tensor in other.tensors.values()):
            yield group


def put_together(groups: Sequence[Group], needed: Sequence[str]) -> tuple[list[Group], int]:
    """What can be put together from groups that lack something that is needed, and how many are left out.

    Such groups may take the place of parts of a complete one, each or all of them, or complete each other.
    """
    whole = [group for group in groups if group.holds(needed)]
    used = {id(tensor) for group in whole for tensor in group.tensors.values()}
    parts = [
        group
        for group in groups
        if not group.holds(needed)
        and any(name in group.tensors and id(group.tensors[name]) not in used for name in needed)
    ]
    few = parts[:_MAX_PARTS]
    made = [_both(base, part) for base in whole[:MAX_ENTRIES] for part in few]
    made += _combined(few, needed)
    if len(few) > 1:
        made += [functools.reduce(_both, few, base) for base in whole[:MAX_ENTRIES]]
    return made, len(parts) - len(few)


def _combined(parts: Sequence[Group], needed: Sequence[str]) -> Iterator[Group]:
    """Groups that share none of the needed names and together have all of them."""
    waiting: list[Group | None] = [None]
    for _ in range(_MAX_STEPS):
        if not waiting:
            return
        made = waiting.pop()
        held = {} if made is None else made.tensors
        missing = next((name for name in needed if name not in held), None)
        if missing is None:
            if made is not None:
                yield made
            continue
        for part in reversed(parts):
            if missing not in part.tensors:
                continue
            if made is None:
                waiting.append(part)
            elif not any(name in held and name in part.tensors for name in needed):
                waiting.append(_both(made, part))


def _both(first: Group, second: Group) -> Group:
    """The tensors of two groups, of the second where both have one."""
    return Group(first.entry + _AND + second.entry, {**first.tensors, **second.tensors})


def _longest(names: Collection[str]) -> int:
    return max((name.count(".") + 1 for name in names), default=0)


def _endings(name: str, known: Collection[str], longest: int) -> Iterator[tuple[str, str]]:
    """Every known name that this one ends with, whatever wrappers are inside it, and what is before it."""
    parts = name.rsplit(".", _MAX_LEVELS)
    ending: list[str] = []
    for place in range(len(parts) - 1, -1, -1):
        if parts[place] in _WRAPPERS:
            continue
        ending.insert(0, parts[place])
        if len(ending) > longest:
            return
        if (found := ".".join(ending)) in known:
            yield ".".join(parts[:place]), found
