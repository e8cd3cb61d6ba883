"""The append-only file of finished cells, which stays readable whenever a run is killed, and their predictions."""

from __future__ import annotations

import errno
import json
import logging
import math
import numbers
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from numpy.typing import NDArray

from tta_cattan.bench import Domain
from tta_cattan.bench.results.identity import canonical_json
from tta_cattan.bench.results.identity import fingerprint as checksum
from tta_cattan.util.door import checked_array, regular_file
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import atomic_path, disk_errors, write_text

logger = logging.getLogger(__name__)

SCHEMA = 2
RESULTS_FILE = "results.jsonl"
_CHECK = "check"  # the key of a line's checksum over all other keys
RANGES = {
    **dict.fromkeys(("accuracy", "ece"), (0, 1)),
    "brier": (0, 2),
    **dict.fromkeys(("nll", "n", "seconds", "images_per_second", "peak_memory"), (0, math.inf)),
}
_ROUNDING = 1e-9  # of a mean over a data set
_LOCK_FILE = ".run.lock"
_HOLDER_FILE = ".run.holder.json"
COLUMNS = ("index", "prediction", "confidence", "label")
_MAX_BYTES = 1 << 30  # of a file of predictions
_PROBABILITY_ROUNDING = 1e-5  # in float32


# The keys that a sweep sets, and their values.
Settings = tuple[tuple[str, Any], ...]


def row_label(method: str, settings: Settings = ()) -> str:
    """Return the label of a comparison's row: ``cattan``, or ``cattan [CATTAN.D=64]`` in a sweep."""
    shown = ", ".join(f"{key}={_typed(value)}" for key, value in settings)
    return f"{method} [{shown}]" if shown else method


@dataclass(frozen=True)
class Cell:
    """One cell of a comparison: a method, under a sweep's settings, on a domain at a severity (0: none) with a seed."""

    method: str
    domain: str
    severity: int
    seed: int
    settings: Settings = ()

    def __post_init__(self) -> None:
        for name, kind in (("method", str), ("domain", str), ("severity", int), ("seed", int)):
            if type(getattr(self, name)) is not kind:
                raise UserError(f"{name} of a cell is {getattr(self, name)!r}: it must be of type {kind.__name__}")
        object.__setattr__(self, "settings", _hashable(self.settings))
        pairs = self.settings if isinstance(self.settings, tuple) else [()]
        if any(not isinstance(one, tuple) or len(one) != 2 or not isinstance(one[0], str) for one in pairs):
            raise UserError(f"settings of a cell are {self.settings!r}: they must be pairs of a key and a value")

    @property
    def target(self) -> Domain:
        return Domain(self.domain, self.severity)

    @property
    def label(self) -> str:
        return row_label(self.method, self.settings)


def _typed(value: Any) -> str:
    """Return a setting as it is typed on the command line."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, (list, tuple)) else str(value)


def _hashable(value: Any) -> Any:
    """Return ``value`` with lists as tuples; refuse a value that cannot be stored."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    if value is None or isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise UserError(f"settings of a cell hold {value!r}: only text, finite numbers and lists of these can be stored")


@dataclass(frozen=True)
class Record:
    """A finished cell: its metrics (finite numbers), further facts, and the fingerprint of its inputs.

    Note: a new record also carries its predictions, which are stored in their own file and not read back.
    """

    cell: Cell
    fingerprint: str
    metrics: Mapping[str, float]
    info: Mapping[str, Any] = field(default_factory=dict)
    predictions: Mapping[str, NDArray[Any]] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Stored in the form in which they are read back, so that a record equals its round trip.
        metrics = {name: _metric(name, value, self.cell) for name, value in self.metrics.items()}
        object.__setattr__(self, "metrics", metrics)
        object.__setattr__(self, "info", json.loads(canonical_json(self.info, "info")))

    @property
    def key(self) -> tuple[Cell, str]:
        """What identifies a record in its store."""
        return self.cell, self.fingerprint

    @property
    def configuration(self) -> str:
        """The part of the fingerprint that all domains of a row share."""
        return self.fingerprint.partition("-")[0]

    @property
    def files(self) -> str:
        """The part of the fingerprint that identifies the domain's files; '' if it has none."""
        return self.fingerprint.partition("-")[2]

    def to_line(self) -> str:
        """Return the record as one line of JSON, without its newline."""
        content = {
            "schema": SCHEMA,
            **asdict(self.cell),
            "fingerprint": self.fingerprint,
            "metrics": self.metrics,
            "info": self.info,
        }
        return canonical_json({**content, _CHECK: checksum(content)}, "record")

    @classmethod
    def from_line(cls, line: str) -> Record:
        """Return the record that ``line`` holds, or raise UserError if it is torn, corrupt or of another schema."""
        try:
            data = json.loads(line)
        except ValueError as error:
            raise UserError(f"not whole JSON ({error})") from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise UserError(f"not a record of schema {SCHEMA}")
        if _CHECK not in data:
            raise UserError("it has no checksum, so nothing shows that a run wrote it")
        if data.pop(_CHECK) != checksum(data):
            raise UserError("its content has changed: the checksum differs")
        try:
            cell = Cell(*(data[entry.name] for entry in fields(Cell)))
            stamp, metrics, info = data["fingerprint"], data["metrics"], data["info"]
        except KeyError as error:
            raise UserError(f"the field {error} is missing") from error
        if not (isinstance(stamp, str) and isinstance(metrics, dict) and isinstance(info, dict)):
            raise UserError("fingerprint, metrics or info is of the wrong type")
        return cls(cell, stamp, metrics, info)


class ResultsStore:
    """The results of one output folder: ``results.jsonl``, one line per finished cell, never rewritten."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.path = self.folder / RESULTS_FILE
        self.skipped = 0
        self._index: dict[tuple[Cell, str], Record] | None = None
        self._reported: set[int] = set()
        if os.path.exists(self.folder) and not os.path.isdir(self.folder):
            raise UserError(f"the output folder {str(self.folder)!r} is a file: choose another folder (SAVE_DIR)")

    def records(self) -> list[Record]:
        """Read the file again and return the first record of each cell and fingerprint, in the file's order."""
        self._index = self._read()
        return list(self._index.values())

    def find(self, cell: Cell, fingerprint: str) -> Record | None:
        """Return the record of ``cell`` with this ``fingerprint``, if there is one."""
        if self._index is None:
            self._index = self._read()
        return self._index.get((cell, fingerprint))

    def append(self, record: Record) -> None:
        """Write ``record`` to disk, its predictions first; it is durable when this returns."""
        if record.predictions is not None:
            from safetensors.numpy import save_file

            with atomic_path(predictions_path(self.folder, record.cell, record.fingerprint)) as temporary:
                save_file(dict(record.predictions), temporary)
        line = record.to_line().encode() + b"\n"
        with disk_errors("write", self.path):
            handle = self._open()
            try:
                if _is_torn(handle):
                    line = b"\n" + line
                # One write: a kill leaves either nothing or a prefix without a newline, which readers skip.
                if os.write(handle, line) < len(line):
                    raise OSError(errno.ENOSPC, "the disk took only part of a line")
                os.fsync(handle)
            finally:
                os.close(handle)
        if self._index is not None:
            self._index.setdefault(record.key, record)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for this run; the system frees the lock however the process ends."""
        lock, holder = FileLock(self.folder / _LOCK_FILE, timeout=0), self.folder / _HOLDER_FILE
        with disk_errors("write", self.path):
            # Refuse a folder that cannot be written before anything is computed.
            os.close(self._open())
        try:
            with disk_errors("lock", self.folder):
                _acquire(lock, self.folder, holder)
                write_text(holder, json.dumps({"pid": os.getpid(), "host": platform.node()}))
            self._index = None  # another run may have written meanwhile
            yield
        finally:
            if lock.is_locked:
                try:
                    holder.unlink(missing_ok=True)
                finally:
                    lock.release()

    def _open(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            regular_file(self.path)
        return os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)

    def _read(self) -> dict[tuple[Cell, str], Record]:
        """Return the records in the file, and warn once about each bad line."""
        index: dict[tuple[Cell, str], Record] = {}
        reasons: dict[int, str] = {}
        with disk_errors("read", self.path):
            try:
                data = regular_file(self.path).read_bytes()
            except FileNotFoundError:
                data = b""
        for number, line in enumerate(data.split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                record = Record.from_line(line.decode())
            except (ValueError, RecursionError) as error:
                reasons[number] = str(error)
            else:
                index.setdefault(record.key, record)
        self.skipped = len(reasons)
        for number in sorted(reasons.keys() - self._reported):
            logger.warning("%s: line %d is skipped: %s", self.path, number, reasons[number])
        self._reported |= reasons.keys()
        return index


def _acquire(lock: FileLock, folder: Path, holder: Path) -> None:
    try:
        lock.acquire()
    except Timeout:
        try:
            who = json.loads(holder.read_text(encoding="utf-8"))
            name = f" (process {who['pid']} on {who['host']})"
        except (OSError, ValueError, KeyError, TypeError):
            name = ""  # it has not written its name yet
        raise UserError(
            f"another run{name} is writing to {str(folder)!r}: wait for it, or choose another folder (SAVE_DIR)"
        ) from None


def _is_torn(handle: int) -> bool:
    """Return whether the file's last line lacks its newline: a run was killed while writing it."""
    if not os.lseek(handle, 0, os.SEEK_END):
        return False
    os.lseek(handle, -1, os.SEEK_END)
    return os.read(handle, 1) != b"\n"


def _metric(name: str, value: Any, cell: Cell) -> int | float:
    """Return a metric as a finite Python number inside its range."""
    try:
        finite = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        finite = False
    if not finite:
        raise UserError(f"metric {name!r} of {cell} is {value!r}: a metric is a finite number; info holds text")
    number = int(value) if isinstance(value, numbers.Integral) else float(value)
    low, high = RANGES.get(name, (-math.inf, math.inf))
    if not low - _ROUNDING <= number <= high + _ROUNDING:
        raise UserError(f"metric {name!r} of {cell} is {value!r}: it must be in [{low}, {high}]")
    return number


def predictions_path(folder: str | os.PathLike[str], cell: Cell, fingerprint: str) -> Path:
    return Path(folder) / "predictions" / f"{_file_name(cell, fingerprint)}.safetensors"


def checkpoint_path(folder: str | os.PathLike[str], cell: Cell, fingerprint: str) -> Path:
    """Return the path of an unfinished cell's checkpoint."""
    return Path(folder) / "unfinished" / f"{_file_name(cell, fingerprint)}.pt"


def _file_name(cell: Cell, fingerprint: str) -> str:
    """Return a readable name with a unique hash."""
    name = re.sub(r"[^A-Za-z0-9_+.=-]+", "_", f"{cell.label}-{cell.target.label}-{cell.seed}")[:80]
    return f"{name}-{checksum({**asdict(cell), 'fingerprint': fingerprint})}"


def read_predictions(path: Path) -> dict[str, NDArray[Any]] | None:
    """Return the columns of a file, or None if it does not exist or, with a warning, is damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not path.is_file():
        return None
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"more than {_MAX_BYTES:,} bytes")
        columns = load_file(path)
        n = columns["index"].shape[0]
        for name, low in (("index", 0), ("prediction", -1), ("label", 0)):
            checked_array(name, columns[name], "integer", (n,), low)
        checked_array("confidence", columns["confidence"], "real", (n,), 0, 1 + _PROBABILITY_ROUNDING)
    except (SafetensorError, OSError, KeyError, IndexError, ValueError) as error:
        logger.warning("%s is not a predictions file (%s) and is ignored; delete it to silence this", path, error)
        return None
    return {name: columns[name] for name in COLUMNS}
