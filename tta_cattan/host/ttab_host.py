"""TTAB: a dictionary of classes over ``BaseAdaptation`` behind an argparse that lists the allowed names."""

from __future__ import annotations

import argparse
import copy
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tta_cattan.config import load_cfg
from tta_cattan.host.methods import build, host_names, split_overrides
from tta_cattan.util.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from yacs.config import CfgNode

# The host's optimiser options -> our keys.
_OPTIM = {
    "optimizer": "METHOD",
    "lr": "LR",
    "n_train_steps": "STEPS",
    "beta": "BETA",
    "momentum": "MOMENTUM",
    "dampening": "DAMPENING",
    "nesterov": "NESTEROV",
    "weight_decay": "WD",
}


def plug_in(arguments: list[str], cpu: bool = False) -> list[str]:
    """Add our methods to the host's lookup; return the arguments that its own parser accepts."""
    arguments, pairs = split_overrides(arguments)
    adaptation: Any = importlib.import_module("ttab.model_adaptation")
    base = importlib.import_module("ttab.model_adaptation.base_adaptation").BaseAdaptation
    get_own = adaptation.get_model_adaptation_method
    names = host_names([name for name in host_names() if _knows(get_own, name)])
    classes = {name: host_class(base, name, own, pairs) for name, own in names.items()}
    adaptation.get_model_adaptation_method = lambda adaptation_name: (
        classes.get(adaptation_name) or get_own(adaptation_name)
    )
    defaults = importlib.import_module("ttab.configs.algorithms").algorithm_defaults
    for name in names:
        defaults.setdefault(name, {"optimizer": "Adam"})
    return _take_method(arguments + ["--device", "cpu"] * cpu, names)


def _take_method(arguments: list[str], names: Container[str]) -> list[str]:
    """Remove our method's name from the command line, whose ``choices`` would refuse it, and set it after parsing."""
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--model_adaptation_method")
    own.add_argument("--device", default="cuda:0")
    chosen, others = own.parse_known_args(arguments)
    if chosen.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"TTAB's device is {chosen.device}, and torch sees no CUDA device here: add --device cpu")
    if chosen.model_adaptation_method not in names:
        return arguments
    parameters: Any = importlib.import_module("parameters")
    get_args = parameters.get_args

    def get_args_of_both() -> argparse.Namespace:
        conf = get_args()
        conf.model_adaptation_method = chosen.model_adaptation_method
        return conf

    parameters.get_args = get_args_of_both
    return [*others, "--device", chosen.device]


def host_class(base: type, name: str, own: str, pairs: list[str]) -> type:
    """Return a subclass of the host's ``BaseAdaptation`` that delegates to our class."""

    class HostMethod(base):
        """One of our methods behind the host's interface."""

        def __init__(self, meta_conf: argparse.Namespace, model: torch.nn.Module) -> None:
            super().__init__(meta_conf, model)  # passed by keyword as `model`, which the base class names differently

        def initialize(self, seed: int) -> None:
            """Build our method on a copy of the host's model."""
            conf = self._meta_conf
            if conf.model_selection_method != "last_iterate":
                raise UserError(
                    f"--model_selection_method {conf.model_selection_method}: it picks an update by the labels, and "
                    "CATTAn's target statistics cannot be rolled back; use last_iterate"
                )
            cfg = translate(conf, own, pairs)
            model = copy.deepcopy(self._base_model).to(conf.device)
            self._model = build(model, cfg, conf.model_name, conf.statistics["n_classes"])
            self.model_state_dict = copy.deepcopy(self._model.state_dict())  # for the host's stochastic restore

        def _post_safety_check(self) -> None:
            """Skip the host's check of train mode: our method sets the modes of its layers."""

        def compute_fishers(self, scenario: Any, data_size: int) -> None:
            """Refuse the host's regulariser, which belongs to other methods."""
            raise UserError(f"--fishers: {name} has no Fisher regulariser; leave the option out")

        def reset(self) -> None:
            """Restore the source state."""
            self._model.reset()

        def adapt_and_eval(
            self,
            episodic: bool,
            metrics: Any,
            model_selection_method: Any,
            current_batch: Any,
            previous_batches: list[Any],
            logger: Any,
            timer: Any,
        ) -> None:
            """Adapt to a batch and score its predictions from before the last update."""
            if episodic:
                self.reset()
            if self._meta_conf.record_preadapted_perf:
                before = self._model.predict(current_batch._x)
                metrics.eval_auxiliary_metric(current_batch._y, before, metric_name="preadapted_accuracy_top1")
            with timer("test_time_adaptation"):
                for step in range(self._get_adaptation_steps(index=len(previous_batches))):
                    outputs = self._model.forward_and_adapt(current_batch._x, again=step > 0)
            with timer("evaluate_adaptation_result"):
                metrics.eval(current_batch._y, outputs)
                if self._meta_conf.base_data_name == "waterbirds":
                    self.tta_loss_computer.loss(outputs, current_batch._y, current_batch._g, is_training=False)
            if self._meta_conf.stochastic_restore_model:
                self.stochastic_restore()

        @property
        def name(self) -> str:
            return name

    HostMethod.__name__ = HostMethod.__qualname__ = name
    return HostMethod


def translate(conf: argparse.Namespace, own: str, pairs: list[str]) -> CfgNode:
    """Return our configuration with the host's optimiser; ``pairs`` from the command line take precedence."""
    values: list[Any] = ["MODEL.ADAPTATION", own, "CKPT_DIR", str(Path(conf.ckpt_path).parent)]
    for option, key in _OPTIM.items():
        if getattr(conf, option, None) is not None:
            values += [f"OPTIM.{key}", getattr(conf, option)]
    return load_cfg(None, [*values, *pairs])


def _knows(get: Callable[[str], Any], name: str) -> bool:
    """Return whether the host has a method of that name."""
    try:
        get(name)
    except KeyError:
        return False
    return True
