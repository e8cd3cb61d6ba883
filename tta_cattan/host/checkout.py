"""The methods of a user's own checkout of mariodoebler/test-time-adaptation, imported without leaving a trace."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from tta_cattan.host.recognise import recognise, version
from tta_cattan.util.errors import UserError, first_line, nearest
from tta_cattan.util.files import sha256_text

if TYPE_CHECKING:
    from yacs.config import CfgNode

_HOST = "test-time-adaptation"
_SCRIPT = "test_time.py"
_METHODS = "methods"
_NO_SETTINGS = {"robustbench", "data", "ckpt", "output"}  # folders whose files do not belong to a method


class HostError(UserError):
    """A host's method cannot run, for the given reason: it is left out, and the others continue."""


class Checkout:
    """A checkout: its configuration with all defaults, and its methods by their registered names.

    Its modules have names such as ``utils`` and ``datasets``; they are in ``sys.modules`` only while they are imported
    or a method is built. A package that they import but that is not installed gets a stand-in, and a method that uses
    it raises a HostError. No file of the checkout is written.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = _classification_folder(Path(path))
        script = self.folder / _SCRIPT
        self.version = version(recognise(script), script)
        self.faults: dict[str, str] = {}  # reasons, by the name of a module in methods/ that cannot be imported
        # Called in place of the host's own loader of source data, with the same arguments.
        self.source_loader: Callable[..., tuple[Any, Any]] = _no_source_loader
        self._modules: dict[str, ModuleType] = {}
        self._own = {entry.stem for entry in self.folder.iterdir() if entry.is_dir() or entry.suffix == ".py"}
        with self.on_stage():
            self._add_packages()
            self._defaults: CfgNode = _imported("conf").cfg.clone()
            self._replace_source_loader()
            self._import_methods()
            registry = _imported("utils.registry").ADAPTATION_REGISTRY
            self._classes = {name.lower(): registry.get(name) for name in registry.registered_names()}
        for cls in self._classes.values():
            _let_loss_take_the_batch(cls)

    def names(self) -> list[str]:
        """Return the names of all methods: those registered, and those of config files, such as ``eta``."""
        files = {path.stem.lower() for path in (self.folder / "cfgs").glob("*/*.yaml")}
        return sorted(self._classes.keys() | files)

    def settings(self, name: str, dataset: str, options: Sequence[str] = ()) -> CfgNode:
        """Return the host's config of a method: its defaults, ``cfgs/<dataset>/<name>.yaml`` and ``options``."""
        cfg = self._defaults.clone()
        cfg.MODEL.ADAPTATION = name
        file = self.file(name, dataset)
        try:
            if file.is_file():
                cfg.merge_from_file(str(file))
        except (KeyError, ValueError, AssertionError) as error:
            raise UserError(f"{file} does not fit the checkout's conf.py: {first_line(error)}") from error
        try:
            cfg.merge_from_list(list(options))
        except (KeyError, ValueError, AssertionError) as error:
            raise UserError(
                f"HOST.OPTIONS = {list(options)}: {first_line(error)}; see {self.folder}/conf.py"
            ) from error
        return cfg

    def file(self, name: str, dataset: str) -> Path:
        """Return the path of a method's settings for a data set, whether or not the checkout has the file."""
        return self.folder / "cfgs" / dataset / f"{name}.yaml"

    def method(self, name: str) -> type:
        """Return the class of a registered method."""
        if name.lower() in self._classes:
            return self._classes[name.lower()]
        if name.lower() in self.faults:
            raise HostError(f"methods/{name.lower()}.py cannot be imported: {self.faults[name.lower()]}")
        known = self.names()
        raise UserError(f"{self.folder} has no method {name!r}.{nearest(name, known)} It has: {', '.join(known)}")

    def class_for(self, name: str) -> type:
        """Return the class of a method by its registered name or by that of a config file."""
        if name in self._classes or name in self.faults:
            return self.method(name)
        files = sorted((self.folder / "cfgs").glob(f"*/{name}.yaml"))
        return self.method(self.settings(name, files[0].parent.name).MODEL.ADAPTATION if files else name)

    @cached_property
    def digest(self) -> str:
        """A hash of the host's Python files, independent of their line endings."""
        files = [p for p in sorted(self.folder.rglob("*.py")) if not _NO_SETTINGS & {*p.relative_to(self.folder).parts}]
        texts = [p.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n") for p in files]
        names = [p.relative_to(self.folder).as_posix() for p in files]
        return sha256_text("\n".join(part for pair in zip(names, texts, strict=True) for part in pair))

    @contextmanager
    def on_stage(self) -> Iterator[None]:
        """Make the host's modules importable under their own names; restore other modules of these names afterwards."""
        away = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in self._own}
        finder = _StandIns(self.folder)
        no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self.folder))
        sys.meta_path.append(finder)
        try:
            with warnings.catch_warnings(), _cuda_or_nothing():
                warnings.simplefilter("ignore")
                yield
        finally:
            sys.meta_path.remove(finder)
            sys.path.remove(str(self.folder))
            sys.dont_write_bytecode = no_bytecode
            for name in list(sys.modules):
                if name.split(".")[0] in self._own or isinstance(sys.modules[name], _StandIn):
                    self._modules[name] = sys.modules.pop(name)
            sys.modules.update(away)

    def _add_packages(self) -> None:
        """Add the host's folders without ``__init__.py`` as packages, and ``methods`` without running its own.

        Note: an installed package of the same name would shadow such a folder, and a single method that cannot be
        imported would make ``methods/__init__.py`` fail for all.
        """
        for folder in self.folder.iterdir():
            if folder.is_dir() and (folder.name == _METHODS or not (folder / "__init__.py").is_file()):
                package = ModuleType(folder.name)
                package.__path__ = [str(folder)]
                sys.modules[folder.name] = package

    def _replace_source_loader(self) -> None:
        """Give methods that learn from source data our loader; they import the host's function by name."""
        try:
            loading: Any = importlib.import_module("datasets.data_loading")
        except Exception:  # whatever the reason, methods that need it fail in the same way and are reported
            return
        loading.get_source_loader = lambda *given, **options: self.source_loader(*given, **options)

    def _import_methods(self) -> None:
        for file in sorted((self.folder / _METHODS).glob("*.py")):
            try:
                if file.stem != "__init__":
                    importlib.import_module(f"{_METHODS}.{file.stem}")
            except (Exception, SystemExit) as error:
                self.faults[file.stem] = f"{type(error).__name__}: {first_line(error)}"


class _StandIn(ModuleType):
    """A module of a package that is not installed: anything can be imported from it, nothing can be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Absent,), {"package": self.__name__.split(".")[0]})


class _Absent:
    """A name from a package that is not installed; calling it raises a HostError."""

    package = ""

    def __init__(self, *given: Any, **options: Any) -> None:
        raise HostError(f"it needs the package {self.package!r}, which is not installed")


class _StandIns(MetaPathFinder, Loader):
    """Finds stand-ins for modules that the host imports and no other finder knows.

    Note: only for imports in the host's own files, because libraries try optional packages to see what is installed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        frame = sys._getframe(1)
        while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        inside = frame.f_code.co_filename.startswith(self.folder)
        own = (Path(self.folder) / name.split(".")[0]).exists()
        return ModuleSpec(name, self, is_package=True) if inside and not own else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: there is no such module."""


@contextmanager
def _cuda_or_nothing() -> Iterator[None]:
    """Without CUDA, make ``tensor.cuda()`` return the tensor, for methods that call it on any device."""
    given = torch.Tensor.cuda
    if not torch.cuda.is_available():
        torch.Tensor.cuda = lambda self, *args, **options: self  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.cuda = given  # type: ignore[method-assign]


def _classification_folder(path: Path) -> Path:
    """Return the folder of the host's script: ``path`` or its ``classification`` folder."""
    for folder in (path, path / "classification"):
        if (folder / _SCRIPT).is_file() and recognise(folder / _SCRIPT).name == _HOST:
            return folder.resolve()
    raise UserError(
        f"--host {path}: no checkout of mariodoebler/{_HOST}: give the folder that holds classification/{_SCRIPT}"
    )


def _imported(module: str) -> Any:
    """Import a module of the host that all of its methods need."""
    try:
        return importlib.import_module(module)
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"--host: {module} of the checkout cannot be imported: {reason}") from error


def _no_source_loader(*given: Any, **options: Any) -> tuple[Any, Any]:
    raise HostError("it needs source data")


def _let_loss_take_the_batch(cls: type) -> None:
    """Let a ``loss_calculation`` without parameters accept arguments, which are ignored.

    Note: the base class has ``loss_calculation(self, x)``; RoTTA's has no ``x``, but is called with one off CUDA.
    """
    loss = vars(cls).get("loss_calculation")
    if loss is not None and len(signature(loss).parameters) == 1:
        cls.loss_calculation = lambda self, *ignored: loss(self)  # type: ignore[attr-defined]
