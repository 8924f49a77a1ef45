"""``Run``: the training loop, with its evaluations and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn

from compshift._errors import InputError
from compshift.core.arrays import IntArray
from compshift.data.dataset import Samples
from compshift.methods.base import Batch, Method, State
from compshift.metrics import GroupReport
from compshift.nn.backbones import Backbone
from compshift.nn.networks import BackboneClassifier
from compshift.nn.processes import current_processes
from compshift.training.batches import Reader, TrainingData, samples_digest
from compshift.training.classifier import TrainedClassifier, describe_model
from compshift.training.evaluation import Inspection
from compshift.training.folder import (
    RETRAIN,
    RunFolder,
    load_weights,
    read_checkpoint,
    read_tensors,
    write_checkpoint,
    write_json,
    write_tensors,
)
from compshift.training.optimiser import (
    PRECISION_NAMES,
    forget_moments,
    largest_gradient,
    make_accelerator,
    make_optimiser,
    seed_generators,
    set_rate,
    step_seed,
)
from compshift.training.progress import Listener, ValidationStep
from compshift.training.settings import Settings
from compshift.training.trackers import Trackers


class DivergenceError(InputError):
    """Raised by ``train`` when the loss or a weight becomes NaN or infinite.

    Benchmark jobs turn it into ``compshift.bench.trained_methods.DivergedError``, which does not need PyTorch.
    """


class _Objective(nn.Module):
    """The method's loss as a module, so that DistributedDataParallel can wrap the whole forward pass."""

    def __init__(self, model: BackboneClassifier, method: Method) -> None:
        super().__init__()
        self.model = model
        self.method = method

    def forward(self, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        return self.method.loss(self.model, batch, state, step)


class Run:
    """Model, optimiser and progress of one training run in one folder."""

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
        unlabelled: Samples | None = None,
        trackers: Sequence[Any] = (),
    ) -> None:
        self.data, self.method, self.settings, self.listener = data, method, settings, listener
        logs = RunFolder(folder).trackers_path
        self.accelerator = make_accelerator(
            device, settings.precision, find_unused=backbone.pretrained, trackers=trackers, logs=logs
        )
        self.trackers = Trackers(self.accelerator, logs)
        self.device: torch.device = self.accelerator.device
        self.processes = current_processes()
        self.main = self.processes.rank == 0
        self.folder = RunFolder(Path(self.processes.gather(str(folder))[0]))
        if settings.batch_size < self.processes.size:
            raise InputError(
                f"batch_size is {settings.batch_size}, but {self.processes.size} processes share each batch: pass "
                f"batch_size={self.processes.size} or more"
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
        self.pool = None if unlabelled is None else Reader(unlabelled, backbone, self.device, workers)
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
            self.pool,
        )
        self.state = self._on_device(method.state(self.task))
        self.step = 0
        self.saved = 0  # step of the last checkpoint; 0 if there is none
        self.best: dict[str, Any] = {"step": 0, "score": -math.inf}
        self.stale = 0  # number of evaluations since the best one
        self.gradient: float | None = None  # its largest absolute entry in the last step; None without a tolerance

    def complete(
        self, *, overwrite: bool, inputs: Mapping[str, Any] | None, files: Mapping[str, str]
    ) -> TrainedClassifier:
        """Start or resume the run in the folder, take the remaining steps, and write the model."""
        started = time.monotonic()
        self._enter_folder(overwrite, inputs, files)
        if self.folder.result_path.exists():
            load_weights(self.model, read_tensors(self.folder.model_path)[0], self.folder.model_path)
        else:
            if self.main:
                self.method.announce(self.task)
            self.listener.started(self.step, self.settings.steps)
            self.trackers.start(self.step, self._about())
            try:
                self._steps()
            finally:
                self.trackers.finish()
            self._finish(time.monotonic() - started)
        return TrainedClassifier(self.model, self.method, self.task, inputs)

    def _enter_folder(self, overwrite: bool, inputs: Mapping[str, Any] | None, files: Mapping[str, str]) -> None:
        """Start a new run in the folder, or load the last checkpoint of the same run."""
        identity = self._identity(inputs)
        if self.main and self.folder.prepare(identity, overwrite=overwrite):
            model = describe_model(self.model.backbone, self.method, self.task, self.folder.backbone_path, inputs)
            self.folder.start({"identity": identity, "model": model}, files)
        self._meet()
        if self.folder.result_path.exists():
            return
        if self.folder.last_path.exists():
            state, metadata = read_checkpoint(self.folder.last_path, self.model, self.optimiser)
            self.state = self._on_device(state)
            self.step, self.best, self.stale = metadata["step"], metadata["best"], metadata["stale"]
            self.gradient = metadata["gradient"]
            self.saved = self.step
            if self.accelerator.scaler is not None:
                self.accelerator.scaler.load_state_dict(metadata["scaler"])
        if self.main:
            self.folder.truncate(self.step)

    def _steps(self) -> None:
        """Take the remaining steps; stop early on convergence, or when patience runs out."""
        losses: list[float] = []
        plan = (self._share(step) for step in range(self.step, self.settings.steps))
        stream = self.reader.read(self.data.train[rows] for rows in plan)
        self._train_mode()  # evaluations restore the mode
        while self.step < self.settings.steps and not self._out_of_patience() and not self._converged():
            losses.append(self._make_step(*next(stream)))
            self.step += 1
            self.listener.stepped(self.step, losses[-1])
            last = self.step == self.settings.steps or self._converged()
            if self.step % self.settings.eval_every == 0 or last:
                self._evaluate(float(np.mean(losses)))
                losses = []

    def _make_step(self, rows: IntArray, inputs: dict[str, Tensor]) -> float:
        """Take one step on this process's share of a batch; return the loss of the whole batch."""
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
        """Backpropagate and take an optimiser step, with accelerate, which is slower, only if gradients are scaled."""
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
        """Evaluate on the validation rows, keep the weights if they are the best so far, and write a checkpoint."""
        for name, parameter in self.model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise self._divergence(f"the weights {name!r} are no longer finite at step {self.step}")
        self._share_buffers()
        report = None
        if len(self.data.validation):
            self.inspection.refresh()
            (report,) = self.inspection.validate(selecting=True).values()
        # Without validation rows, later weights count as better, so the last ones are kept.
        score = getattr(report, self.settings.metric) if report is not None else float(self.step)
        better = score > self.best["score"]
        self.stale = 0 if better else self.stale + 1
        if better:
            self.best = {"step": self.step, "score": score}
        evaluation = ValidationStep(self.step, loss, self.settings.rate(self.step - 1), report, better)
        if self.main:
            if better:
                write_tensors(self.folder.best_path, self.model.state_dict(), {"step": self.step})
            self.folder.append(evaluation.record())
            metadata = {"step": self.step, "best": self.best, "stale": self.stale, "gradient": self.gradient}
            if self.accelerator.scaler is not None:
                metadata["scaler"] = self.accelerator.scaler.state_dict()
            write_checkpoint(self.folder.last_path, self.model, self.optimiser, self.state, metadata)
        self.saved = self.step
        self.listener.evaluated(evaluation)
        self.trackers.log(evaluation)

    def _finish(self, seconds: float) -> None:
        """Load the best weights, call the method's ``finish``, and write the model and the result."""
        self._meet()
        load_weights(self.model, read_tensors(self.folder.best_path)[0], self.folder.best_path)
        method_values = self.inspection.finish()
        reports = self.inspection.validate(selecting=False) if len(self.data.validation) else {}
        if self.main:
            write_tensors(self.folder.model_path, self.model.state_dict(), {"step": self.best["step"]})
            result = {
                "steps": self.step,
                "best_step": self.best["step"],
                "precision": PRECISION_NAMES[self.accelerator.mixed_precision],
                "method": method_values,
                "gradient": self.gradient,
                "validation": {name: _summary(report) for name, report in reports.items()},
                "seconds": round(seconds, 3),
            }
            write_json(self.folder.result_path, result)
            self.folder.clear_checkpoints()
        self._meet()

    def _share(self, step: int) -> IntArray:
        """Return this process's share of a step's batch, as positions among the training rows."""
        batch = self.sampler.batch(step)
        return batch[self.processes.share(len(batch))]

    def _train_mode(self) -> None:
        """Put the model into train mode, except for frozen batch normalisation."""
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
        """Copy the buffers of process 0 to all processes, because each has running statistics of its own rows."""
        if self.processes.size > 1:
            for buffer in self.model.buffers():
                distributed.broadcast(buffer, 0)

    def _meet(self) -> None:
        """Wait until all processes have reached this point."""
        self.accelerator.wait_for_everyone()

    def _on_device(self, state: State) -> State:
        return {name: tensor.to(self.device) for name, tensor in state.items()}

    def _divergence(self, what: str) -> DivergenceError:
        kept = f"the checkpoint of step {self.saved} is kept" if self.saved else "there is no checkpoint yet"
        return DivergenceError(
            f"{what}: {kept}; {RETRAIN}, with a lower learning_rate (now {self.settings.learning_rate:g}) or with "
            "gradient clipping (clip)"
        )

    def _about(self) -> dict[str, Any]:
        """Return the settings that trackers show beside the run."""
        about = {"method": self.method.name, "backbone": self.model.backbone.name}
        return {**about, **self.method.hyperparameters(), **self.settings.to_dict()}

    def _identity(self, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return everything that determines the run's result; a run resumes only if its folder records the same."""
        backbone = self.model.backbone
        return {
            **self.settings.identity(),
            "method": self.method.name,
            "hyperparameters": self.method.identity(),
            "backbone": backbone.name,
            "backbone_settings": backbone.settings(),
            "initial_weights": self.initial_weights,
            "inputs": None if inputs is None else dict(inputs),
            "data": self.data.digest(),
            "unlabelled": None if self.pool is None else samples_digest(self.pool.samples),
        }


def _summary(report: GroupReport) -> dict[str, Any]:
    return {
        "average": report.average,
        "balanced": report.balanced,
        "worst": report.worst,
        "worst_group": list(report.worst_group),
    }
