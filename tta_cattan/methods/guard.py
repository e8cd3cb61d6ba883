"""Guards around every public operation (verb) of a method: one thread at a time, and never in inference mode."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from tta_cattan.util.batches import ReadBatches

_PASSES = ("prepare", "start_epoch", "finish")  # over the whole target set, given as a loader
_VERBS = (
    "forward",
    "forward_and_adapt",
    "predict",
    "predict_bypassed",
    "reset",
    "begin_target",
    "describe",
    "fold",
    "state_dict",
    "load_state_dict",
)


class Lock:
    """A re-entrant lock; copies and unpickled objects get a new one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()


class Guarded:
    """Guards the verbs of every subclass, third-party methods included."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for name in (*_VERBS, *_PASSES):
            if name in vars(cls):
                setattr(cls, name, _guarded(vars(cls)[name], reads=name in _PASSES))


def _guarded(verb: Callable[..., Any], reads: bool) -> Callable[..., Any]:
    """Wrap ``verb`` to run under the method's lock and outside inference mode, whose tensors can take no gradients."""

    @functools.wraps(verb)
    def alone(self: Any, *args: Any, **options: Any) -> Any:
        if reads and "batches" in options:
            args = (options.pop("batches"), *args)
        if reads and args and not isinstance(args[0], ReadBatches):
            args = (ReadBatches(args[0], self.device), *args[1:])
        with self.lock:
            if not torch.is_inference_mode_enabled():
                return verb(self, *args, **options)
            with torch.inference_mode(False):
                return verb(self, *args, **options)

    return alone
