"""Several streams over one frozen network: each owns its adapted state, and one is active at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tta_cattan.util.errors import UserError

if TYPE_CHECKING:
    from tta_cattan.methods.base import AdaptationMethod

DEFAULT = ""  # the stream in use outside of ``with model.stream(name)``
_ATTRIBUTES = ("target", "safety", "optimizer")

State = dict[str, Any]


@dataclass
class _Parked:
    """The state of an inactive stream."""

    tensors: list[tuple[dict[str, Any], str, Tensor | None]]  # a module's dict of parameters or buffers, name, value
    attributes: dict[str, Any]

    @classmethod
    def of(cls, method: AdaptationMethod) -> _Parked:
        """Save what the active stream owns."""
        return cls(
            [(table, name, table[name]) for table, name in _slots(method)],
            {name: getattr(method, name) for name in _ATTRIBUTES},
        )

    def put_back(self, method: AdaptationMethod) -> None:
        """Make this the active stream again."""
        for table, name, value in self.tensors:
            table[name] = value
        for name, value in self.attributes.items():
            setattr(method, name, value)


class Streams:
    """The streams of a method by name. Switching swaps references, so results equal separate copies bit for bit."""

    def __init__(self) -> None:
        self.present = DEFAULT
        self._parked: dict[str, _Parked] = {}

    def names(self) -> list[str]:
        """Return the names of all streams except the default."""
        return sorted({self.present, *self._parked} - {DEFAULT})

    def forget(self, name: str) -> None:
        """Delete an inactive stream."""
        if name not in self._parked or name == DEFAULT:
            raise UserError(f"stream {name!r} is not there to be dropped, or in use; there are {self.names()}")
        del self._parked[name]

    def switch(self, method: AdaptationMethod, name: str) -> str:
        """Activate the stream ``name``, which starts as the source model if it is new; return the one active before."""
        if not isinstance(name, str):
            raise UserError(f"stream {name!r} is a {type(name).__name__}: give a name, such as 'camera-3'")
        before = self.present
        if name == before:
            return before
        self._parked[before] = _Parked.of(method)
        self.present = name
        if name in self._parked:
            self._parked.pop(name).put_back(method)
        else:
            _begin(method)
        return before

    def states(self, method: AdaptationMethod) -> dict[str, State]:
        """Return what each inactive stream owns, as part of a state dict, by name."""
        before, found = self.present, {}
        shared = {tensor.data_ptr() for tensor in (*method.parameters(), *method.buffers())}
        for name in [name for name in self.names() if name != before]:
            self.switch(method, name)
            state = nn.Module.state_dict(method)
            found[name] = {key: value for key, value in state.items() if not _lies_in(value, shared)}
        self.switch(method, before)
        return found

    def load(self, method: AdaptationMethod, states: dict[str, State]) -> None:
        """Replace the inactive streams with those of a state dict; the active one stays."""
        before = self.present
        self._parked.clear()
        for name, state in states.items():
            self.switch(method, name)
            nn.Module.load_state_dict(method, state, strict=False)
        self.switch(method, before)


def _slots(method: AdaptationMethod) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield where the trainable parameters and all buffers are stored: a module's dict and the name in it."""
    for module in method.modules():
        for name, param in module._parameters.items():
            if param is None or param.requires_grad:
                yield module._parameters, name
        for name in module._buffers:
            yield module._buffers, name


def _begin(method: AdaptationMethod) -> None:
    """Give a new stream its own copies of the tensors that adapt, and reset them to the source state."""
    moving = method.source_tensors()
    for table, name in _slots(method):
        value = table[name]
        if value is not None and id(value) in moving:
            copy = value.detach().clone()
            table[name] = nn.Parameter(copy) if isinstance(value, nn.Parameter) else copy
    method.begin_stream()


def _lies_in(value: Any, pointers: set[int]) -> bool:
    return isinstance(value, Tensor) and value.numel() > 0 and value.data_ptr() in pointers
