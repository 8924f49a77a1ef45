"""The device and the processes of a run, through accelerate.

Optimisers, and which parameters they let decay.

One training run: its steps, its evaluations, its checkpoints.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, distributed, nn

from compshift._errors import InputError, check_name
from compshift.core.arrays import IntArray
from compshift.methods.base import Batch, Method, State
from compshift.metrics import GroupReport
from compshift.nn.backbones import Backbone
from compshift.nn.networks import BackboneClassifier
from compshift.nn.processes import current_processes
from compshift.training.batches import Reader, TrainingData
from compshift.training.classifier import TrainedClassifier, describe_model
from compshift.training.evaluation import Inspection
from compshift.training.folder import (
    RunFolder,
    load_weights,
    read_checkpoint,
    read_tensors,
    write_checkpoint,
    write_json,
    write_tensors,
)
from compshift.training.progress import Listener, ValidationStep
from compshift.training.settings import Settings

if TYPE_CHECKING:
    from accelerate import Accelerator

DEVICES = ("auto", "cpu", "cuda")
MIXED = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}


def start(device: str, precision: str, *, find_unused: bool) -> Accelerator:
    """One process, or this one of those that torchrun started.

    ``find_unused`` is for networks with parts that the loss does not reach, such as a pooler that is not asked.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState

    check_name("device", device, DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("the device 'cuda' cannot be used, as PyTorch finds none: pass cpu")
    if precision == "auto":
        cuda = device != "cpu" and torch.cuda.is_available()
        able = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bfloat16" if able else "float32"
    alone = not (distributed.is_available() and distributed.is_initialized())
    AcceleratorState._reset_state(reset_partial_state=alone)  # another run in this process may have had other choices
    options = DistributedDataParallelKwargs(find_unused_parameters=find_unused)
    # Without a device of its own to choose, accelerate would start no process group.
    on_cpu = device == "cpu" or not torch.accelerator.is_available()
    accelerator = Accelerator(cpu=on_cpu, mixed_precision=MIXED[precision], kwargs_handlers=[options])
    wanted = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != wanted:
        raise InputError(f"torchrun started {wanted} processes, and {accelerator.num_processes} came together")
    return accelerator


def step_seed(seed: int, step: int, rank: int) -> int:
    """A seed for what a process draws in a step: a run that goes on draws what it would have drawn."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed what dropout draws from. (torch.manual_seed remembers every call for devices that are not there.)"""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Torch's generators, which dropout uses, are put back as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight matrices and kernels decay; biases, scales of normalisation layers and biases of groups do not."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]


def make_optimiser(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Stochastic gradients with momentum, or AdamW."""
    groups = [group for group in parameter_groups(model, settings.weight_decay) if group["params"]]
    rate = settings.rate(0)
    if settings.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=settings.momentum)
    return torch.optim.AdamW(groups, lr=rate)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Use another learning rate from now on."""
    for group in optimiser.param_groups:
        group["lr"] = rate


@torch.no_grad()
def largest_gradient(optimiser: torch.optim.Optimizer) -> float:
    """Largest entry of the gradient of the loss with its quadratic penalty, which decaying weights stand for."""
    entries = [
        (parameter.grad + group["weight_decay"] * parameter).abs().max()
        for group in optimiser.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    return float(torch.stack(entries).max()) if entries else 0.0


def forget_moments(optimiser: torch.optim.Optimizer) -> None:
    """Start afresh, as if no step had been made."""
    optimiser.state.clear()


class DivergenceError(InputError):
    """The loss or the weights stopped being finite numbers."""


class _Objective(nn.Module):
    """The loss as a module, so that DistributedDataParallel sees the forward pass that it wraps."""

    def __init__(self, model: BackboneClassifier, method: Method) -> None:
        super().__init__()
        self.model = model
        self.method = method

    def forward(self, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        return self.method.loss(self.model, batch, state, step)


class Run:
    """What lives as long as a run."""

    def __init__(
        self,
        data: TrainingData,
        method: Method,
        backbone: Backbone,
        settings: Settings,
        folder: Path,
        device: str,
        workers: int | None,
        listener: Listener,
    ) -> None:
        self.data, self.method, self.settings, self.listener = data, method, settings, listener
        self.accelerator = start(device, settings.precision, find_unused=backbone.pretrained)
        self.device: torch.device = self.accelerator.device
        self.processes = current_processes()
        self.main = self.processes.rank == 0
        self.folder = RunFolder(Path(self.processes.gather(str(folder))[0]))
        if settings.batch_size < self.processes.size:
            raise InputError(
                f"batch_size is {settings.batch_size}, and {self.processes.size} processes share it: raise it"
            )
        self.sampler = data.sampler(method, settings)
        self.task = data.task(self.sampler)
        self.initial_weights = backbone.fingerprint()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(settings.seed)
            head = method.head(backbone.out_features, self.task)
        self.model = BackboneClassifier(backbone, head).to(self.device)
        self.objective = self.accelerator.prepare_model(_Objective(self.model, method))
        self.optimiser = make_optimiser(self.model, settings)
        scales = self.accelerator.scaler is not None
        self.scaled = self.accelerator.prepare_optimizer(self.optimiser) if scales else None
        self.reader = Reader(data.data.samples, backbone, self.device, workers)
        self.inspection = Inspection(
            self.model,
            method,
            self.task,
            data,
            self.sampler,
            self.reader,
            self.processes,
            self.accelerator.autocast,
            settings,
        )
        self.state = self._on_device(method.state(self.task))
        self.step = 0
        self.saved = 0  # step of the last checkpoint
        self.best: dict[str, Any] = {"step": 0, "score": -math.inf}
        self.stale = 0  # evaluations since the best one
        self.gradient: float | None = None  # of the last step, if a tolerance asks for it

    def complete(
        self, *, overwrite: bool, inputs: Mapping[str, Any] | None, files: Mapping[str, str]
    ) -> TrainedClassifier:
        """Take up what the folder holds, make the steps that are left, and finish."""
        started = time.monotonic()
        self._enter_folder(overwrite, inputs, files)
        if self.folder.result.exists():
            load_weights(self.model, read_tensors(self.folder.model)[0], self.folder.model)
        else:
            if self.main:
                self.method.announce(self.task)
            self.listener.started(self.step, self.settings.steps)
            self._steps()
            self._finish(time.monotonic() - started)
        return TrainedClassifier(self.model, self.method, self.task, inputs)

    def _enter_folder(self, overwrite: bool, inputs: Mapping[str, Any] | None, files: Mapping[str, str]) -> None:
        identity = self._identity(inputs)
        if self.main and self.folder.is_new(identity, overwrite=overwrite):
            model = describe_model(self.model.backbone, self.method, self.task, self.folder.backbone, inputs)
            self.folder.start({"identity": identity, "model": model}, files)
        self._meet()
        if self.folder.result.exists():
            return
        if self.folder.last.exists():
            state, about = read_checkpoint(self.folder.last, self.model, self.optimiser)
            self.state = self._on_device(state)
            self.step, self.best, self.stale = about["step"], about["best"], about["stale"]
            self.gradient = about["gradient"]
            self.saved = self.step
            if self.accelerator.scaler is not None:
                self.accelerator.scaler.load_state_dict(about["scaler"])
        if self.main:
            self.folder.truncate(self.step)

    def _steps(self) -> None:
        losses: list[float] = []
        plan = (self._share(step) for step in range(self.step, self.settings.steps))
        stream = self.reader.read(self.data.train[rows] for rows in plan)
        self._train_mode()  # evaluations leave the modes as they find them
        while self.step < self.settings.steps and not self._out_of_patience() and not self._converged():
            losses.append(self._make_step(*next(stream)))
            self.step += 1
            self.listener.stepped(self.step, losses[-1])
            last = self.step == self.settings.steps or self._converged()
            if self.step % self.settings.eval_every == 0 or last:
                self._evaluate(float(np.mean(losses)))
                losses = []

    def _make_step(self, rows: IntArray, inputs: dict[str, Tensor]) -> float:
        step, settings = self.step, self.settings
        seed = step_seed(settings.seed, step, self.processes.rank)
        seed_generators(seed, self.device)
        if self.method.resets_optimiser(step):
            forget_moments(self.optimiser)
        set_rate(self.optimiser, settings.rate(step))
        group = torch.as_tensor(self.data.group_of_row[rows], device=self.device)
        batch = Batch(inputs, group, self.task, np.random.default_rng(seed), self.processes)
        loss, state = self.objective(batch, self.state, step)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise self._divergence(f"the loss is {value} at step {step + 1}")
        self._descend(loss)
        self.state = {name: tensor.detach() for name, tensor in state.items()}
        return value

    def _descend(self, loss: Tensor) -> None:
        """One step of the optimiser; through accelerate where gradients are scaled, which costs a while."""
        if self.scaled is not None:
            self.accelerator.backward(loss)
        else:
            loss.backward()  # type: ignore[no-untyped-call]
        if self.settings.tolerance:
            self.gradient = largest_gradient(self.optimiser)
        if self.settings.clip:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        (self.scaled or self.optimiser).step()
        self.optimiser.zero_grad()

    def _evaluate(self, loss: float) -> None:
        """Look at validation, keep the weights if they are the best so far, and write the state."""
        for name, parameter in self.model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise self._divergence(f"the weights {name!r} are no longer finite at step {self.step}")
        self._share_buffers()
        report = None
        if len(self.data.validation):
            self.inspection.refresh()
            (report,) = self.inspection.validate(first_only=True).values()
        score = getattr(report, self.settings.metric) if report is not None else float(self.step)
        better = score > self.best["score"]
        self.stale = 0 if better else self.stale + 1
        if better:
            self.best = {"step": self.step, "score": score}
        evaluation = ValidationStep(self.step, loss, self.settings.rate(self.step - 1), report, better)
        if self.main:
            if better:
                write_tensors(self.folder.best, self.model.state_dict(), {"step": self.step})
            self.folder.append(evaluation.record())
            about = {"step": self.step, "best": self.best, "stale": self.stale, "gradient": self.gradient}
            if self.accelerator.scaler is not None:
                about["scaler"] = self.accelerator.scaler.state_dict()
            write_checkpoint(self.folder.last, self.model, self.optimiser, self.state, about)
        self.saved = self.step
        self.listener.evaluated(evaluation)

    def _finish(self, seconds: float) -> None:
        """Take the best weights, do what the method does at the end, and write the model."""
        self._meet()
        load_weights(self.model, read_tensors(self.folder.best)[0], self.folder.best)
        found = self.inspection.finish()
        reports = self.inspection.validate(first_only=False) if len(self.data.validation) else {}
        if self.main:
            write_tensors(self.folder.model, self.model.state_dict(), {"step": self.best["step"]})
            result = {
                "steps": self.step,
                "best_step": self.best["step"],
                "method": found,
                "gradient": self.gradient,
                "validation": {name: _summary(report) for name, report in reports.items()},
                "seconds": round(seconds, 3),
            }
            write_json(self.folder.result, result)
            self.folder.clear_checkpoints()
        self._meet()

    def _share(self, step: int) -> IntArray:
        """Positions, among the training rows, of this process's part of a batch."""
        batch = self.sampler.batch(step)
        return batch[self.processes.share(len(batch))]

    def _train_mode(self) -> None:
        self.objective.train()
        if self.settings.freeze_batchnorm:
            for module in self.model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()

    def _converged(self) -> bool:
        settled = self.step > self.method.settles_at()
        return settled and self.gradient is not None and self.gradient <= self.settings.tolerance

    def _out_of_patience(self) -> bool:
        return 0 < self.settings.patience <= self.stale

    def _share_buffers(self) -> None:
        """Running statistics, which each process has of its own rows, become those of the first."""
        if self.processes.size > 1:
            for buffer in self.model.buffers():
                distributed.broadcast(buffer, 0)

    def _meet(self) -> None:
        """Wait until every process is here."""
        self.accelerator.wait_for_everyone()

    def _on_device(self, state: State) -> State:
        return {name: tensor.to(self.device) for name, tensor in state.items()}

    def _divergence(self, what: str) -> DivergenceError:
        kept = f"the checkpoint of step {self.saved} is kept" if self.saved else "there is no checkpoint yet"
        return DivergenceError(
            f"{what}: {kept}; start again, in another folder or with --overwrite, at a lower learning rate (now "
            f"{self.settings.learning_rate:g}) or with the gradient clipped"
        )

    def _identity(self, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
        """What makes this run another than another one."""
        backbone = self.model.backbone
        return {
            **self.settings.to_dict(),
            "method": self.method.name,
            "hyperparameters": self.method.hyperparameters(),
            "backbone": backbone.name,
            "backbone_settings": backbone.settings(),
            "initial_weights": self.initial_weights,
            "inputs": None if inputs is None else dict(inputs),
            "data": self.data.digest(),
        }


def _summary(report: GroupReport) -> dict[str, Any]:
    return {
        "average": report.average,
        "balanced": report.balanced,
        "worst": report.worst,
        "worst_group": list(report.worst_group),
    }
