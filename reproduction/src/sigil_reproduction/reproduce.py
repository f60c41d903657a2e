"""Run experiments: the trainings that are missing, then the cells that are missing, then the tables.

Trainings and cells run side by side in as many processes as there are cores, one thread each: for small
networks that is faster than one training on all cores. The same work can be spread over the machines of a Ray
cluster (:mod:`sigil_reproduction.runner.on_ray`). Every finished training and cell is on the disk at once, so
an interruption loses at most a round.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from sigil import files, hardware
from sigil.errors import ExperimentError
from sigil.federation.settings import Settings
from sigil.federation.workers import begin, clean_processes
from sigil.pages import drawing
from sigil_reproduction import registry
from sigil_reproduction.runner import costs, scales
from sigil_reproduction.runner.experiment import Measured, listed
from sigil_reproduction.runner.store import Cell, Store, computed_on

Say = Callable[[str], None]


class Pool(Protocol):
    """Where work is done: `size` pieces at a time, each on one core."""

    @property
    def size(self) -> int: ...
    def submit(self, work: Callable[..., None], /, *arguments: object) -> Future[None]: ...


def status(names: Sequence[str], store: Store, seeds: Sequence[int]) -> list[tuple[str, int, int]]:
    """Name, measured cells and all cells of each experiment."""
    rows = []
    for name in names:
        cells = registry.get(name).cells(scales.get(store.scale), seeds)
        rows.append((name, sum(store.has(cell) for cell in cells), len(cells)))
    return rows


def reproduce(
    names: Sequence[str],
    store: Store,
    *,
    seeds: Sequence[int],
    jobs: int = 0,
    ray: str | None = None,
    trained: bool = False,
    say: Say = lambda text: None,
) -> None:
    """Measure what is missing of these experiments and write their tables and figures.

    `jobs` pieces of work at a time (0: one per core), in processes of this machine or, if `ray` is the
    address of a Ray cluster, there. With `trained` nothing is trained: of the cells that are measured on
    trainings only those are measured whose trainings are all finished, and of the others none, since some
    of them train while they are measured.
    """
    scale = scales.get(store.scale)
    for name in names:
        files.check_folder(store.results / name, raises=ExperimentError)
        if (page := store.results / name / "README.md").exists():
            files.check(page, replace=_magic(name), kind="page", raises=ExperimentError)
    wanted = [cell for name in names for cell in registry.get(name).cells(scale, seeds)]
    missing = {(cell.experiment, cell.file): cell for cell in wanted if not store.has(cell)}
    if trained:
        found = {place: cell for place, cell in missing.items() if _is_trained(cell, store)}
        say(f"{len(found)} of {len(missing)} missing cells can be measured without training")
        missing = found
    if missing and ray is not None:
        from sigil_reproduction.runner.on_ray import cluster

        with cluster(ray, store, jobs=jobs) as (pool, shared):
            _measure(list(missing.values()), shared, pool, say)
    elif missing:
        with _processes(jobs or hardware.cores()) as pool:
            _measure(list(missing.values()), store, pool, say)
    for name in names:
        say(f"{show(name, store, seeds)}")


def show(name: str, store: Store, seeds: Sequence[int]) -> Path:
    """Write an experiment's page (Markdown and figures) from the cells that are there.

    Seeds that were measured before are on the page too, whether or not they are asked for now.
    """
    experiment = registry.get(name)
    shown = experiment.seeds(store, seeds)
    cells = experiment.cells(scales.get(store.scale), shown)
    folder = store.results / name
    folder.mkdir(parents=True, exist_ok=True)
    measured = Measured(cells, store.results_of(cells))
    page = folder / "README.md"
    before = page.read_text("utf-8") if _magic(name).matches(page) else ""
    with tempfile.TemporaryDirectory() as drawn:
        body = drawing.markdown(experiment.page(measured, Path(drawn)))
        for picture in sorted(Path(drawn).iterdir()):
            # A picture that the page showed before is ours, as the page is.
            ours = f"]({picture.name})" in before
            files.write(folder / picture.name, picture.read_bytes(), replace=ours, raises=ExperimentError)
    findings = listed(experiment.findings(measured, scales.get(store.scale)))
    scale = f"Scale `{store.scale}`: {scales.get(store.scale).note}"
    rest = (
        findings,
        scale,
        computed_on(measured.results.values()),
        costs.unmeasured(store, cells, name, shown),
    )
    files.write(
        page,
        f"# {name}\n\n{experiment.caption}\n\n{body}\n"
        + "".join(f"{part}\n\n" for part in rest if part)
        + f"Made by `sigil reproduce {name} --scale {store.scale}`.\n",
        replace=_magic(name),
        raises=ExperimentError,
    )
    return page


def _magic(name: str) -> files.Magic:
    """How an experiment's page is known as one that Sigil wrote: by its title and its last line."""
    return files.Magic(f"# {name}\n".encode(), tail=f"Made by `sigil reproduce {name} --scale ".encode())


class _Processes(ProcessPoolExecutor):
    def __init__(self, size: int) -> None:
        super().__init__(
            size, mp_context=clean_processes(), initializer=begin, initargs=(dict(os.environ), 1)
        )
        self.size = size


@contextmanager
def _processes(size: int) -> Iterator[Pool]:
    """Processes of this machine; an error or an interruption does not wait for the work under way."""
    pool = _Processes(size)
    try:
        yield pool
    except BrokenProcessPool:
        pool.shutdown()  # all of its processes are ended already
        raise ExperimentError(
            "A process that measured was ended from outside, perhaps for lack of memory. What is measured is "
            "kept: the same command goes on from there, with --jobs 1 in less memory."
        ) from None
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _measure(missing: list[Cell], store: Store, pool: Pool, say: Say) -> None:
    """Each training once, in the order of the cells; each cell as soon as all of its trainings are done."""
    trainings: dict[Path, Settings] = {}
    for cell in missing:
        for settings in cell.trainings:
            trainings.setdefault(store.folder(settings), settings)
    waiting, cells = list(trainings.items()), list(missing)
    finished: set[Path] = set()
    running: dict[Future[None], Path | Cell] = {}
    while waiting or cells or running:
        ready = [cell for cell in cells if _ready(cell, store, finished)]
        # No more than there are places, so that a ready cell never waits behind trainings.
        free = pool.size - sum(_cores(what, trainings, pool) for what in running.values())
        while free > 0 and (ready or waiting):
            if ready:
                cell = ready.pop(0)
                cells.remove(cell)
                running[pool.submit(_measure_cell, store, cell)] = cell
                free -= 1
                continue
            folder, settings = waiting[0]
            free -= _cores(folder, trainings, pool)
            if free >= 0:
                del waiting[0]
                running[pool.submit(_train, store, settings)] = folder
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            what = running.pop(future)
            future.result()
            if isinstance(what, Path):
                finished.add(what)
            else:
                left = len(cells) + sum(isinstance(other, Cell) for other in running.values())
                cells_left = f"{left} cell{'' if left == 1 else 's'} left"
                say(f"{what.experiment}: {what.name}, seed {what.seed} measured; {cells_left}")


def _cores(what: Path | Cell, trainings: Mapping[Path, Settings], pool: Pool) -> int:
    """How many places a cell or a training takes: one for each thread, at most all of them."""
    threads = 1 if isinstance(what, Cell) else trainings[what].run.threads or pool.size
    return min(threads, pool.size)


def _is_trained(cell: Cell, store: Store) -> bool:
    return bool(cell.trainings) and all(map(store.trained, cell.trainings))


def _ready(cell: Cell, store: Store, finished: set[Path]) -> bool:
    return all(store.folder(settings) in finished for settings in cell.trainings)


def _train(store: Store, settings: Settings) -> None:
    store.train(settings)


def _measure_cell(store: Store, cell: Cell) -> None:
    # A page may show cells of other experiments; each is measured by its own.
    store.measure(cell, registry.get(cell.experiment).measure)
