"""mariodoebler/test-time-adaptation: classes over ``TTAMethod`` in a registry."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tta_cattan.host.methods import build_from_host, declare, host_names

if TYPE_CHECKING:
    from torch import Tensor, nn
    from yacs.config import CfgNode

    from tta_cattan.methods import AdaptationMethod, Batches


def register() -> list[str]:
    """Declare our keys in the host's config, register our methods in its registry, and return their names there."""
    declare(importlib.import_module("conf").cfg)
    importlib.import_module("methods")  # the host's own names first: ours give way
    registry = importlib.import_module("utils.registry").ADAPTATION_REGISTRY
    base = importlib.import_module("methods.base").TTAMethod
    taken = registry.registered_names()
    if ours := [name for name in taken if getattr(registry.get(name), "is_ours", False)]:
        return ours
    names = host_names(taken)
    for name in names:
        # The registry uses the class's name and also registers it in lower case.
        registry.register(host_class(base, "CATTAn" if name == "cattan" else name))
    return list(names)


def host_class(base: type, name: str) -> type:
    """Return a subclass of the host's ``TTAMethod`` that delegates to our class.

    The host's ``forward`` keeps control of episodic mode, steps, sliding window and resets after a number of updates.
    """

    class HostMethod(base):
        """One of our methods behind the host's interface."""

        is_ours = True
        again = False  # whether the host's forward is updating on the same batch again
        model: nn.Module

        def configure_model(self) -> None:
            """Build our method on the host's model; called before this class has attributes of its own."""
            self.method: AdaptationMethod = build_from_host(
                self.model, self.cfg, self.num_classes, lambda: source_batches(self.cfg, self.model)
            )
            self.model = self.method.model

        def collect_params(self) -> tuple[list[nn.Parameter], list[str]]:
            """Return the parameters that are updated, and their names."""
            return self.method.collect_params()

        def setup_optimizer(self) -> Any:
            """Return our method's optimiser, made from the host's OPTIM keys."""
            return self.method.optimizer

        def copy_model_and_optimizer(self) -> tuple[list[Any], dict[str, Any]]:
            """Copy nothing: our method keeps its own source state."""
            return [], {}

        def forward(self, x: Tensor | list[Tensor]) -> Tensor:
            """Hand a batch to the host's own forward, which updates on it ``steps`` times."""
            self.again = False
            return super().forward(x)

        def forward_and_adapt(self, x: list[Tensor]) -> Tensor:
            """Update once and return the logits from before the update."""
            outputs = self.method.forward_and_adapt(x[0], again=self.again)
            self.again = True
            self.optimizer = self.method.optimizer
            return outputs

        def forward_sliding_window(self, x: list[Tensor]) -> Tensor:
            """Predict the window without an update."""
            return self.method.predict(x[0])

        def reset(self) -> None:
            """Restore the source state."""
            self.method.reset()
            self.optimizer = self.method.optimizer

        def prepare(self, batches: Batches) -> None:
            """Learn from the target data beforehand, if two passes are allowed."""
            self.method.prepare(batches)

    HostMethod.__name__ = HostMethod.__qualname__ = name
    return HostMethod


def source_batches(cfg: CfgNode, model: nn.Module) -> Iterator[Tensor]:
    """Yield the host's source images, from its own loader."""
    get_source_loader = importlib.import_module("datasets.data_loading").get_source_loader
    options = {
        "dataset_name": cfg.CORRUPTION.DATASET,
        "adaptation": cfg.MODEL.ADAPTATION,
        "preprocess": getattr(model, "model_preprocess", None),
        "data_root_dir": cfg.DATA_DIR,
        "batch_size": max(cfg.TEST.BATCH_SIZE, 64),  # one at a time would take hours
        "ckpt_path": cfg.MODEL.CKPT_PATH,
        "num_samples": cfg.SOURCE.NUM_SAMPLES,
        "percentage": cfg.SOURCE.PERCENTAGE,
        "workers": cfg.SOURCE.NUM_WORKERS,
        "use_clip": cfg.MODEL.get("USE_CLIP", False),
    }
    known = inspect.signature(get_source_loader).parameters  # older versions have fewer
    _, loader = get_source_loader(**{key: value for key, value in options.items() if key in known})
    for batch in loader:
        yield batch[0]
