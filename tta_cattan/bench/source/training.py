"""The one training loop: it validates, keeps notes, and goes on after a kill as if nothing had happened."""

from __future__ import annotations

import copy
import io
import json
import logging
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.data.sampling import split_at_random, take
from tta_cattan.bench.data.stream import Batch, Stream
from tta_cattan.bench.source.recipe import Recipe
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import atomic_path
from tta_cattan.util.precision import Precision
from tta_cattan.util.progress import progress

logger = logging.getLogger(__name__)

_SAVE_EVERY = 60.0  # seconds between two notes of how far the training has come


@dataclass(frozen=True)
class SourceStreams:
    """The source data as it is trained on (before ``augment``), and the part that is held out, as it is evaluated."""

    training: Stream
    held_out: Stream | None
    augment: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, benchmark: Benchmark, recipe: Recipe, device: torch.device, workers: int) -> SourceStreams:
        """Split the source data of a benchmark by the recipe's seed."""
        training, held_out = benchmark.training_source(), None
        if recipe.validation:
            whole = benchmark.source()
            if len(whole) < 3:
                raise UserError(
                    f"SOURCE.VALIDATION = {recipe.validation}: {len(whole)} source samples are too few to split"
                )
            kept, held = split_at_random(len(whole), recipe.validation, recipe.seed)
            training = take(training, kept)
            held_out = Stream(take(whole, held), recipe.batch_size, None, device, workers)
        stream = Stream(training, recipe.batch_size, recipe.seed, device, workers)
        return cls(stream, held_out, benchmark.augment)


def train_classifier(
    model: nn.Module, streams: SourceStreams, recipe: Recipe, note: Path, identity: Mapping[str, Any]
) -> float | None:
    """Train ``model`` and return its accuracy on the held-out part (None without one), whose best epoch is kept.

    Note: ``note`` holds a training of the same ``identity`` that was killed: this one goes on from there, with the same
    result, bit for bit, as if it had not been (where the device's arithmetic is deterministic, as the CPU's is). The
    caller removes the note when the result is safe.
    """
    training = _Training(model, streams, recipe)
    training.resume(note, identity)
    total = recipe.epochs * len(streams.training)
    with progress(None, total, "training the source model") as bar:
        bar.update(training.epoch * len(streams.training) + training.done)
        saved = time.monotonic()
        while training.epoch < recipe.epochs:
            for batch in training.remaining_batches():
                training.step(batch)
                bar.update()
                if time.monotonic() - saved > _SAVE_EVERY:
                    training.save(note, identity)
                    saved = time.monotonic()
            training.end_epoch(bar)
    return training.finish()


class _Training:
    """The state of a training: all of it goes into a note."""

    def __init__(self, model: nn.Module, streams: SourceStreams, recipe: Recipe) -> None:
        self.model, self.streams, self.recipe = model, streams, recipe
        self.optimizer = recipe.optimizer(model)
        self.schedule = recipe.scheduler(self.optimizer, recipe.epochs * len(streams.training))
        self.precision = Precision(recipe.mixed_precision)
        self.precision.restart()
        self.epoch = 0  # epochs that are finished
        self.done = 0  # batches of the present epoch that are finished
        self.best: tuple[float, dict[str, Tensor]] | None = None
        model.train()

    def remaining_batches(self) -> Stream:
        """Return the batches of the present epoch that are still to come."""
        epoch = self.streams.training.reordered(self.epoch + 1)
        return epoch.only(range(self.done, len(epoch)))

    def step(self, batch: Batch) -> None:
        """Update once; a batch of one sample is left out: batch normalisation can learn nothing from it."""
        if len(batch.inputs) > 1:
            inputs = self.streams.augment(batch.inputs)
            with self.precision.autocast(inputs.device):
                logits = self.model(inputs)
            labels = batch.labels.to(inputs.device)
            loss = F.cross_entropy(logits.float(), labels, label_smoothing=self.recipe.label_smoothing)
            if not torch.isfinite(loss):
                raise UserError(
                    f"the training diverged in epoch {self.epoch + 1} (the loss is {loss.item()}): lower SOURCE.LR "
                    f"(it is {self.recipe.lr:g})"
                )
            self.optimizer.zero_grad()
            self.precision.backward(loss, self.optimizer)
            self.precision.step(self.optimizer)
        self.schedule.step()
        self.done += 1

    def end_epoch(self, bar: tqdm) -> None:
        """Validate, and keep these weights if none were better."""
        self.epoch, self.done = self.epoch + 1, 0
        if self.streams.held_out is None:
            return
        accuracy = evaluate(self.model, self.streams.held_out)
        self.model.train()
        logger.info("epoch %d of %d: validation accuracy %.2f%%", self.epoch, self.recipe.epochs, 100 * accuracy)
        bar.set_postfix(validation=f"{accuracy:.2%}")
        if self.best is None or accuracy >= self.best[0]:
            self.best = (accuracy, copy.deepcopy(self.model.state_dict()))

    def finish(self) -> float | None:
        """Leave the model with the weights that are kept, ready for evaluation."""
        if self.best is not None:
            self.model.load_state_dict(self.best[1])
        self.model.eval()
        return None if self.best is None else self.best[0]

    def save(self, note: Path, identity: Mapping[str, Any]) -> None:
        """Write all that the rest of the training depends on."""
        scaler = self.precision.scaler
        state = {
            "of": json.dumps(identity, sort_keys=True),
            "epoch": self.epoch,
            "done": self.done,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "best": self.best,
            "generator": torch.get_rng_state(),
            "cuda_generators": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        content = io.BytesIO()  # torch.save itself does not tell a full disk from a fault of its own
        torch.save(state, content)
        with atomic_path(note) as temporary:
            temporary.write_bytes(content.getbuffer())

    def resume(self, note: Path, identity: Mapping[str, Any]) -> None:
        """Take up the state that a note holds; one of another training, or a damaged one, is left alone."""
        if not note.is_file():
            return
        try:
            state = torch.load(note, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
            logger.warning("the note %s cannot be read (%s): training starts anew", note, str(error).splitlines()[0])
            return
        if state["of"] != json.dumps(identity, sort_keys=True):
            return
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if self.precision.scaler is not None and state["scaler"] is not None:
            self.precision.scaler.load_state_dict(state["scaler"])
        self.epoch, self.done, self.best = state["epoch"], state["done"], state["best"]
        torch.set_rng_state(state["generator"])
        if state["cuda_generators"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda_generators"])
        logger.info("going on after %d epochs and %d batches (%s)", self.epoch, self.done, note)


@torch.no_grad()
def evaluate(model: nn.Module, stream: Stream) -> float:
    """Return the accuracy of ``model`` in evaluation mode."""
    model.eval()
    right = sum(int((model(batch.inputs).argmax(1).cpu() == batch.labels).sum()) for batch in stream)
    return right / len(stream.dataset)
