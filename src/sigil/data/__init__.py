"""Data sets, partitions over clients, and batches."""

from sigil.data.batches import Batches, evaluate_batches
from sigil.data.charts import draw_partition
from sigil.data.datasets import Dataset, Split, load, names
from sigil.data.downloads import fetch
from sigil.data.partitions import partition
from sigil.data.unlabelled import load_images

__all__ = [
    "Batches",
    "Dataset",
    "Split",
    "draw_partition",
    "evaluate_batches",
    "fetch",
    "load",
    "load_images",
    "names",
    "partition",
]
