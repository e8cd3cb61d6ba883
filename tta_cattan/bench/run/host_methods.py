"""Methods of another framework in our tables: ``host:NAME``, from a checkout that the user has."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.jit import ScriptFunction
from torch.utils.data import DataLoader, Subset
from yacs.config import CfgNode

from tta_cattan.bench.data import benchmark_of
from tta_cattan.config import leaves
from tta_cattan.host.checkout import Checkout, HostError
from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod
from tta_cattan.methods.guard import Lock
from tta_cattan.methods.safety import Safety
from tta_cattan.util.errors import UserError, first_line
from tta_cattan.util.files import sha256_text
from tta_cattan.util.keys import Key

logger = logging.getLogger(__name__)

PREFIX = "host:"
# Keys of the host's config that ours overrides: the data, the stream, the batches and the network.
_OURS = (
    "SETTING",
    "CORRUPTION.TYPE",
    "CORRUPTION.SEVERITY",
    "CORRUPTION.NUM_EX",
    "TEST.BATCH_SIZE",
    "TEST.DELTA_DIRICHLET",
    "MODEL.ARCH",
)
_SAME_DATA = {"cifar10": "cifar10_c", "cifar100": "cifar100_c"}  # TENT's names and the host's
_OPTIONS = Key([], "settings of the host's methods: KEY, VALUE, ... of its conf.py, over its config files")
_borrowed: dict[str, list[str]] = {}  # names by the path of their checkout, for worker processes


class HostMethod(AdaptationMethod):
    """A host's method behind the interface of ours.

    The host's class is built at the first batch: its augmentations need the size of the images. Its settings are the
    checkout's own, ``conf.py`` and ``cfgs/<dataset>/<name>.yaml``, except for the data, the stream, the batch size and
    the model, which the comparison sets.
    """

    node = "HOST"
    needs_images = True
    resumable = False  # the host's classes keep their state in arbitrary attributes
    checkout: ClassVar[Checkout]
    name: ClassVar[str]

    def __init__(self, model: nn.Module, cfg: CfgNode, num_classes: int) -> None:
        nn.Module.__init__(self)
        self.lock, self._pauses = Lock(), 0
        self.cfg, self.num_classes = cfg, num_classes
        self.settings = self._settings(cfg)
        self.safety = Safety("report", "report")
        self.optimizer = None
        self.source_model: nn.Module | None = model
        self.host: nn.Module | None = None

    @classmethod
    def from_cfg(
        cls,
        model: nn.Module,
        cfg: CfgNode,
        num_classes: int | None = None,
        source_subspace: Any = None,
    ) -> HostMethod:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if cfg.DEVICE not in ("auto", device):
            raise UserError(f"DEVICE = {cfg.DEVICE!r}: the host's methods run on {device!r} here; set DEVICE {device}")
        if cfg.TEST.PROTOCOL != "online":
            raise UserError(f"TEST.PROTOCOL = {cfg.TEST.PROTOCOL!r}: the host's methods are online; set it to online")
        if cfg.STREAM.MONITOR:
            raise UserError("STREAM.MONITOR = True: what the host's methods adapt cannot be watched; set it to False")
        if num_classes is None:
            raise UserError(f"{PREFIX}{cls.name}: give num_classes, which the host's methods need")
        return cls(model, cfg, num_classes)

    @classmethod
    def identity(cls, cfg: CfgNode) -> str:
        """Return a hash of the host's code and of its settings for the method."""
        return sha256_text(cls.checkout.digest + cls._host_settings(cfg).dump())

    @classmethod
    def _host_settings(cls, cfg: CfgNode) -> CfgNode:
        dataset = _SAME_DATA.get(cfg.CORRUPTION.DATASET, cfg.CORRUPTION.DATASET)
        settings = cls.checkout.settings(cls.name, dataset, cfg.HOST.OPTIONS)
        settings.CORRUPTION.DATASET = dataset
        return settings

    @classmethod
    def _settings(cls, cfg: CfgNode) -> CfgNode:
        """Return the host's config with our values for the keys that ours overrides."""
        settings = cls._host_settings(cfg)
        ours, theirs = dict(leaves(cfg)), dict(leaves(settings))
        settings.merge_from_list([part for place in _OURS if place in theirs for part in (place, ours[place])])
        return settings

    def collect_params(self) -> tuple[list[nn.Parameter], list[str]]:
        """Return nothing: the host's method has its own."""
        return [], []

    def reset(self, keep_known: bool = False) -> None:
        """Call the host's own ``reset``; a method that is not built yet is still in its source state."""
        self.safety.restart()
        if self.host is not None:
            self._asked(self.host.reset)  # type: ignore[operator]

    def forward(self, x: Tensor, indices: Tensor | None = None) -> Tensor:
        """Predict and adapt as the host's own loop does."""
        logits = self._answer(self._built(x), x)
        self.safety.watch_classes(logits.argmax(1))
        return logits

    forward_and_adapt = forward

    def predict(self, x: Tensor) -> Tensor:
        """Return the method's logits, computed by a copy that is discarded together with its update."""
        return self._answer(self._asked(_copied, self._built(x)), x)

    def describe(self) -> dict[str, Any]:
        """Return the safety counts and the version of the host."""
        return {**self.safety.describe(), "host": self.checkout.version}

    def fold(self) -> nn.Module:
        """Refuse: only the host's method knows where its adapted network is."""
        raise UserError(f"{PREFIX}{self.name}: a method of the host cannot be folded")

    def get_extra_state(self) -> dict[str, Any]:
        """Return nothing: a method of the host cannot be resumed."""
        return {}

    def _built(self, x: Tensor) -> nn.Module:
        if self.host is None:
            self.host = self._asked(self._build, x)
            self.source_model = None
        return self.host

    def _build(self, x: Tensor) -> nn.Module:
        """Build the host's method on its own copy of the model; its random draws follow torch's seed."""
        from torchvision.transforms import CenterCrop, Compose

        seed = torch.initial_seed() % 2**32
        random.seed(seed)
        np.random.seed(seed)
        file = self.checkout.file(self.name, self.settings.CORRUPTION.DATASET)
        if not file.is_file():
            logger.warning("%s%s: there is no %s: the defaults of the host's conf.py hold", PREFIX, self.name, file)
        model: Any = copy.deepcopy(self.source_model)  # which may share memory with the source model of other cells
        # The host reads the image size from it; its inputs are normalised inside the model, as ours are.
        model.model_preprocess = Compose([CenterCrop(tuple(x.shape[-2:]))])
        self.checkout.source_loader = self._source_loader
        with self.checkout.on_stage():
            method = self.checkout.method(self.settings.MODEL.ADAPTATION)
            return method(cfg=self.settings, model=model, num_classes=self.num_classes)

    def _source_loader(self, *given: Any, batch_size: int, num_samples: int = -1, **others: Any) -> tuple[Any, Any]:
        """Return the benchmark's source data, at most ``num_samples`` drawn at random, and a loader for it."""
        benchmark = benchmark_of(self.cfg)
        if not benchmark.has_source():
            raise HostError(f"it needs source data, and {benchmark.name} has none here: set DATA.SOURCE_DIR")
        source = benchmark.source()
        if 0 < num_samples < len(source):
            source = Subset(source, random.sample(range(len(source)), num_samples))
        return source, DataLoader(source, batch_size, shuffle=True)

    def _answer(self, host: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():  # as in the host's loop; its methods enable gradients where they need them
            return self._asked(host, x).detach().float()

    def _asked(self, call: Any, *given: Any) -> Any:
        """Call the host's code; turn any error into a one-line HostError."""
        try:
            return call(*given)
        except HostError as fault:
            raise HostError(f"{PREFIX}{self.name}: {fault}") from fault
        except Exception as error:
            raise HostError(f"{PREFIX}{self.name}: {type(error).__name__}: {first_line(error)}") from error


def _copied(host: nn.Module) -> nn.Module:
    """Return a copy of the host's method, with the attributes that its optimizers add (SAR's wraps another one).

    Optimizers are copied by what they pickle, which leaves these attributes out. Scripted functions (CoTTA's) cannot be
    copied and are shared.
    """
    memo: dict[int, Any] = {id(value): value for value in vars(host).values() if isinstance(value, ScriptFunction)}
    twin = copy.deepcopy(host, memo)
    for optimizer in (value for value in vars(host).values() if isinstance(value, torch.optim.Optimizer)):
        theirs = vars(memo[id(optimizer)])
        added = {name: value for name, value in vars(optimizer).items() if name not in theirs}
        theirs.update(copy.deepcopy(added, memo))
    return twin


def borrow(path: str, names: Sequence[str]) -> dict[str, str]:
    """Register the host's methods ``names`` as ``host:NAME``; return those that cannot be imported, with the reason."""
    checkout = Checkout(path)
    left_out = {}
    for name in names:
        try:
            cls = checkout.class_for(name)
        except HostError as fault:
            left_out[PREFIX + name] = str(fault)
            continue
        title = cls.__name__ if cls.__name__.lower() == name else name
        made: Any = type("HostMethod", (HostMethod,), {"checkout": checkout, "name": name, "title": f"{title} (host)"})
        made.keys = {"options": _OPTIONS}  # all other options are in the host's config
        if PREFIX + name not in ADAPTATION_REGISTRY:
            ADAPTATION_REGISTRY.register(PREFIX + name)(made)
            _borrowed.setdefault(path, []).append(name)
    return left_out


def borrowed() -> dict[str, list[str]]:
    """Return the names of the registered host methods, by the path of their checkout."""
    return {path: list(names) for path, names in _borrowed.items()}
