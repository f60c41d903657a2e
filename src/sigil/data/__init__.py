"""Data sets, partitions over clients, and batches."""

from sigil.data.batches import Batches, evaluate_batches
from sigil.data.cache import Dataset, Split
from sigil.data.charts import draw_partition
from sigil.data.datasets import load, names
from sigil.data.inputs import LEAST_INPUTS, Inputs, open_inputs
from sigil.data.official import fetch
from sigil.data.partitions import partition

__all__ = [
    "LEAST_INPUTS",
    "Batches",
    "Dataset",
    "Inputs",
    "Split",
    "draw_partition",
    "evaluate_batches",
    "fetch",
    "load",
    "names",
    "open_inputs",
    "partition",
]
