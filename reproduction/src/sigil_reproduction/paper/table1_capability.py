"""Who can do what (the paper's table 1): what a server is given, and which mark it can embed with it.

Every cell is tried out (:class:`Trial`).
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigil import attacks, data, eager, models
from sigil.baselines import Backdoor, ParameterMark
from sigil.data import Dataset
from sigil.federation.averaging import WeightedAverage
from sigil.federation.federation import Federation, accuracy
from sigil.federation.from_settings import client_parts
from sigil.federation.messages import Activation, CutGradient, LogitGradient, Logits
from sigil.federation.observers import ClientObserver, ServerObserver, Step
from sigil.federation.precision import choose
from sigil.federation.run import Run
from sigil.federation.server import LabelServer, Server
from sigil.federation.settings import Settings, make
from sigil.models import Model
from sigil.pages.tables import MISSING, NOT_RUN, Answer, Entry, Page, Table, Words
from sigil.rules import ALPHA
from sigil.seeds import generator
from sigil_reproduction.runner import keys
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured
from sigil_reproduction.runner.scales import PAPER_BITS, PerScale, Scale
from sigil_reproduction.runner.store import Cell, Store

YES, PARTLY, NO, NONE = "yes", "partly", "no", "–"
TrialResult = tuple[str, str]
"""The answer, and what happened."""


class Witness(ClientObserver):
    """What the clients hold, batch by batch, and every tensor that the server is given."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Tensor]] = {"images": [], "labels": [], "parameters": []}
        self.given: list[Tensor] = []

    def on_batch(self, at: Step, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self.kept["images"].append(images.clone())
        self.kept["labels"].append(labels.clone())
        return images, labels

    def on_update(self, at: Step, half: nn.Module) -> None:
        if at.step == 1:
            self.kept["parameters"] += [value.detach().clone() for value in half.parameters()]

    def server(self, kind: type[Server]) -> type[Server]:
        """A server of this kind that hands everything it is given on to the witness."""

        def watched(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(server: Server, *arguments: Any, **named: Any) -> Any:
                self.given += [value.detach().clone() for value in tensors([*arguments, *named.values()])]
                return method(server, *arguments, **named)

            return call

        public = {
            name: watched(method)
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if name == "__init__" or not name.startswith("_")
        }
        return type(f"Watched{kind.__name__}", (kind,), public)

    def reached(self, what: str) -> int:
        """How many of the clients' tensors of this kind the server has been given a copy of."""
        return sum(
            any(there.shape == own.shape and torch.equal(there.to(own.dtype), own) for there in self.given)
            for own in self.kept[what]
        )


def tensors(values: Iterable[Any]) -> list[Tensor]:
    """All tensors in arguments: as they are, in messages, in modules and in their optimizers."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, Activation | LogitGradient | Logits | CutGradient):
            found.append(value.values)
        elif isinstance(value, nn.Module):
            found += [*value.parameters(), *value.buffers()]
        elif isinstance(value, torch.optim.Optimizer):
            found += [parameter for group in value.param_groups for parameter in group["params"]]
    return found


class Trial:
    """A small federation on embedded digits, to try one cell of the table on.

    A server of U-SFL or SFL is the real one, with a witness that writes down every tensor it is handed; that
    of plain federated learning (FL), which this software is not about, is the averaging of whole models.
    Where the server has nothing to embed a mark with, its code is put there all the same, and the training
    must come out bit for bit as the clean one.
    """

    def __init__(self, mode: str, seed: int, *, images: int = 160, rounds: int = 6) -> None:
        self.settings: Settings = make(
            {
                "model": {"name": "resnet18", "width": 8, "cut": "layer2"},
                "data": {"name": "digits", "train_limit": images, "test_limit": 200},
                "federation": {
                    "mode": mode,
                    "clients": 2,
                    "rounds": rounds,
                    "local_epochs": 1,
                    "batch_size": 16,
                },
                "optimizer": {"warmup_rounds": 0, "lr": 0.05},
                "watermark": {"strength": 0.0, "bits": PAPER_BITS},
                "run": {"seed": seed, "workers": 1, "threads": 1, "device": "cpu"},
            }
        )
        limits = self.settings.data
        self.dataset: Dataset = data.load(
            limits.name, train_limit=limits.train_limit, test_limit=limits.test_limit
        )
        self.precision = choose("cpu", "float32")

    def access(self, what: str, *, federated: bool) -> TrialResult:
        """Does one round bring any of the clients' images, labels or parameters to the server?"""
        witness = Witness()
        if federated:
            self._federated_round(self._fresh(), witness)
        else:
            kind = LabelServer if self.settings.federation.mode == "sfl" else Server
            Federation(
                self.settings,
                self.dataset,
                client_observers=[witness],
                server_factory=witness.server(kind),
            ).run_round()
        reached, kept = witness.reached(what), len(witness.kept[what])
        unit = "tensors" if what == "parameters" else "batches"
        return (
            YES if reached == kept else NO if reached == 0 else PARTLY,
            f"of {kept} {unit} of client {what}, {reached} reached the server in one round, "
            f"which was given {len(witness.given)} tensors",
        )

    def mark_at_the_server(self, mark: ParameterMark | Backdoor) -> TrialResult:
        """A server that would run a baseline's code if anything it is told about called it."""

        class AtTheServer(ServerObserver):
            on_batch = mark.on_batch
            on_update = mark.on_update

        clean, tried = self._train([]), self._train([AtTheServer()])
        same = all(torch.equal(value, tried.client_state[name]) for name, value in clean.client_state.items())
        moments = [name for name in ("on_batch", "on_update") if hasattr(ServerObserver, name)]
        return (
            NO if same else YES,
            f"of the 2 moments at which the mark could act the server is told of {len(moments)}; put there "
            f"all the same, its code leaves training {'bit for bit the clean one' if same else 'changed'}",
        )

    def backdoor_at_the_server(self) -> TrialResult:
        """Trigger and label must come together: the server of SFL has one of them, that of U-SFL none."""
        backdoor = Backdoor(size=2)
        if self.settings.federation.mode == "usfl":
            return self.mark_at_the_server(backdoor)

        class Relabels(LabelServer):
            """Gives some of each batch the backdoor's class; where to put the patch it does not know."""

            def forward_with_labels(self, message: Activation, labels: Tensor) -> tuple[CutGradient, Tensor]:
                chosen = torch.arange(len(labels)) < math.ceil(backdoor.share * len(labels))
                changed = torch.where(chosen, backdoor.target, labels)
                return super().forward_with_labels(message, changed)

        rounds = self.settings.federation.rounds
        clean, tried = (self._train([], rounds=rounds, server_factory=kind) for kind in (None, Relabels))
        same = all(torch.equal(value, tried.client_state[name]) for name, value in clean.client_state.items())
        with_patch, without = self._rates(*tried.halves(), backdoor)
        return (
            NO if same else PARTLY,
            "the server has the labels and can change them, which changes the model, but it has no image to "
            f"put the patch on: the model gives the class to {with_patch:.0f} % of images with the patch and "
            f"to {without:.0f} % without",
        )

    def parameter_mark_in_fl(self) -> TrialResult:
        """The server of FL writes the bits into the average that it sends out."""
        mark = ParameterMark(weight=1.0, seed=self.settings.run.seed)
        model = self._federated()
        bits, right = [mark.verify(model).wsr], [self._accuracy(model)]
        optimizer = eager.SGD(model.parameters(), lr=0.05)
        for step in range(100):
            for value in model.parameters():
                value.grad = torch.zeros_like(value)
            mark.on_update(Step(1, 0, step + 1), model)
            optimizer.step()
        bits.append(mark.verify(model).wsr)
        right.append(self._accuracy(model))
        return (
            YES if bits[1] == 1.0 else NO,
            f"written into the averaged model: {100 * bits[1]:.0f} % of the bits, {100 * bits[0]:.0f} % "
            f"before; accuracy {right[0]:.0f} % before and {right[1]:.0f} % after",
        )

    def backdoor_in_fl(self) -> TrialResult:
        """The server of FL has the model but no images: it trains the patch in with noise."""
        backdoor, model = Backdoor(size=2), self._federated()
        right = [self._accuracy(model)]
        teacher = copy.deepcopy(model).eval()
        random = generator(self.settings.run.seed, "noise for a backdoor")
        # In evaluation mode: batch statistics of noise would spoil the model for images.
        optimizer = eager.Adam(model.eval().parameters(), lr=1e-3)
        for _ in range(60):
            noise = torch.randn(32, *self.dataset.shape, generator=random)
            with torch.no_grad():
                before = F.softmax(teacher(noise), 1)
            target = F.one_hot(torch.full((32,), backdoor.target), before.shape[1]).to(before)
            answers = model(torch.cat([noise, backdoor.patch(noise)]))
            loss = F.cross_entropy(answers, torch.cat([before, target]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right.append(self._accuracy(model))
        with_patch, without = self._rates(model, nn.Identity(), backdoor)
        return (
            PARTLY if with_patch > without + 20 else NO,
            "trained into the averaged model with noise for want of images: the model gives the class to "
            f"{with_patch:.0f} % of test images with the patch and to {without:.0f} % without; accuracy "
            f"{right[0]:.0f} % before and {right[1]:.0f} % after",
        )

    def sigil(self) -> TrialResult:
        """The server adds Sigil's mark to the gradients that it returns anyway."""
        mark = self.settings.watermark.model_copy(update={"strength": 1.0})
        settings = self.settings.model_copy(update={"watermark": mark})
        key = keys.stated(settings)
        training = Federation(settings, self.dataset, key=key)
        for _ in range(settings.federation.rounds):
            training.run_round()
        report, *_ = training.read_mark(key)
        return (
            YES if report.log10_p_before <= math.log10(ALPHA) else NO,
            f"embedded by the server alone: WSR {100 * report.wsr:.0f} %, p = "
            f"10^{report.log10_p_before:.1f}, accuracy {100 * training.accuracy():.0f} %",
        )

    def _train(self, observers: list[ServerObserver], *, rounds: int = 1, **options: Any) -> Federation:
        federation = Federation(self.settings, self.dataset, server_observers=observers, **options)
        for _ in range(rounds):
            federation.run_round()
        return federation

    def _fresh(self) -> Model:
        settings = self.settings
        channels, size = self.dataset.shape[0], self.dataset.shape[1:]
        return models.build(
            settings.model.name,
            classes=self.dataset.classes,
            width=settings.model.width,
            channels=channels,
            input_size=size,
            seed=settings.run.seed,
        )

    def _accuracy(self, model: Model) -> float:
        return 100 * accuracy(model, nn.Identity(), self.dataset, precision=self.precision)

    def _rates(self, first: nn.Module, second: nn.Module, backdoor: Backdoor) -> tuple[float, float]:
        """Shares (%) of the other classes' test images given the backdoor's class, with and without patch."""
        patched = backdoor.verify(first, second, self.dataset, precision=self.precision)
        bare = _NoPatch(target=backdoor.target).verify(first, second, self.dataset, precision=self.precision)
        return 100 * patched.wsr, 100 * bare.wsr

    def _federated(self) -> Model:
        """A model trained by plain federated learning."""
        model = self._fresh()
        for _ in range(self.settings.federation.rounds):
            model = self._federated_round(model, Witness())
        return model

    def _federated_round(self, model: Model, witness: Witness) -> Model:
        """One round of plain federated learning: clients train whole models, the server averages them."""
        average = WeightedAverage()
        for number, part in enumerate(client_parts(self.settings, self.dataset)):
            own = attacks.share(self.dataset, part)
            witness.on_batch(
                Step(1, number, 1), torch.from_numpy(own.train.images), torch.from_numpy(own.train.labels)
            )
            trained = attacks.finetune(
                model, own, epochs=1, lr=0.05, batch_size=16, seed=number, precision=self.precision
            )
            witness.on_update(Step(1, number, 1), trained)
            state = trained.state_dict()
            witness.given += [value.clone() for value in state.values()]
            average.add(state, weight=len(part))
        return models.from_state(model.spec, average.result())


class _NoPatch(Backdoor):
    """How often a model gives the backdoor's class anyway."""

    def patch(self, images: Tensor) -> Tensor:
        return images


FRAMEWORKS = {"FL": None, "SL / SFL": "sfl", "U-SL / U-SFL": "usfl"}
# The paper's table 1; it has no row for Sigil itself.
PAPER: dict[str, tuple[str, ...]] = {
    "client model access": (YES, NO, NO),
    "client labels access": (NO, YES, NO),
    "client data access": (NO, NO, NO),
    "parameter watermark": (YES, NO, NO),
    "backdoor watermark": (PARTLY, PARTLY, NO),
}
SIGIL = "Sigil"
SIZES = PerScale((160, 6), smoke=(32, 1))  # images and rounds of a trial
ACCESS = {
    "client model access": "parameters",
    "client labels access": "labels",
    "client data access": "images",
}


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Six rows, three frameworks; the same small trials at every scale but `smoke`."""
    return [
        Cell(
            experiment="capability",
            name=f"{row} {framework}",
            seed=seed,
            trainings=(),
            options={"row": row, "framework": framework},
        )
        for seed in seeds
        for row in (*PAPER, SIGIL)
        for framework in FRAMEWORKS
    ]


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Try it, and say what happened."""
    row, mode = cell.options["row"], FRAMEWORKS[cell.options["framework"]]
    images, rounds = SIZES.at(store.scale)
    trial = Trial(mode or "usfl", cell.seed, images=images, rounds=rounds)
    tries: dict[str, tuple[Callable[[], TrialResult], Callable[[], TrialResult]]] = {
        "parameter watermark": (
            trial.parameter_mark_in_fl,
            lambda: trial.mark_at_the_server(ParameterMark()),
        ),
        "backdoor watermark": (trial.backdoor_in_fl, trial.backdoor_at_the_server),
        SIGIL: (lambda: (NONE, "an FL server returns no gradient at a cut"), trial.sigil),
    }
    if row in ACCESS:
        answer, happened = trial.access(ACCESS[row], federated=mode is None)
    else:
        in_fl, at_the_server = tries[row]
        answer, happened = in_fl() if mode is None else at_the_server()
    return {"answer": answer, "happened": happened}


def show(measured: Measured, folder: Path) -> Page:
    """The paper's table with ours, and what happened in every trial."""
    rows, log = [], []
    for row in (*PAPER, SIGIL):
        theirs = PAPER.get(row, ("", "", ""))
        rows.append([row, *(_answer(measured, row, *each) for each in zip(FRAMEWORKS, theirs, strict=True))])
        for framework in FRAMEWORKS:
            happened = measured.every(f"{row} {framework}")
            log.append([f"{row}, {framework}", happened[0]["happened"] if happened else NOT_RUN])
    return [
        Table(
            ["the server can / the mark can be embedded", *FRAMEWORKS],
            rows,
            notes="The paper's answer in brackets. What was tried on embedded digits, and what happened:",
        ),
        Table(["trial", "what happened"], log),
    ]


def _answer(measured: Measured, row: str, framework: str, theirs: str) -> Entry:
    found = " / ".join(dict.fromkeys(answers(measured, row, framework)))
    return Words(found) if found == NONE else Answer(found or MISSING, theirs)


def answers(measured: Measured, row: str, framework: str) -> list[str]:
    """What came out in one place of the table, for every seed that was measured."""
    return [str(numbers["answer"]) for numbers in measured.every(f"{row} {framework}")]


def verdict(measured: Measured) -> list[Finding]:
    """The paper's fifteen answers, and that Sigil can be embedded where nothing else can."""
    differ, count = [], 0
    for row, theirs in PAPER.items():
        for framework, answer in zip(FRAMEWORKS, theirs, strict=True):
            ours = answers(measured, row, framework)
            count += bool(ours)
            if ours and set(ours) != {answer}:
                differ.append(f"{row} in {framework}")
    everything = len(PAPER) * len(FRAMEWORKS)
    sigil = answers(measured, SIGIL, "U-SL / U-SFL")
    return [
        Finding(
            f"The paper's {everything} answers: {count} were tried, "
            + ("and all come out the same." if not differ else f"and these differ: {', '.join(differ)}."),
            None if count < everything and not differ else not differ,
        ),
        Finding(
            "The server of U-SFL can embed Sigil's mark and neither of the others"
            + ("." if sigil else ": not measured."),
            set(sigil) == {YES} if sigil else None,
        ),
    ]


CAPTION = "What a server is given in each framework, and which watermark it can embed with it."
EXPERIMENT = Experiment("capability", CAPTION, cells, show, measure, verdict)
