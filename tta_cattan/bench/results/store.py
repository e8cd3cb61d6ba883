"""The append-only file of finished cells, which a kill at any moment leaves readable."""

from __future__ import annotations

import errno
import json
import logging
import math
import numbers
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from numpy.typing import NDArray

from tta_cattan.bench.domain import Domain
from tta_cattan.bench.results.identity import canonical_json
from tta_cattan.bench.results.predictions import predictions_path, write_predictions
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import disk_errors, sha256_text, write_text

logger = logging.getLogger(__name__)

SCHEMA = 1
RESULTS_FILE = "results.jsonl"
_CHECK = "check"  # the key of a line's check sum over all the rest
_LOCK_FILE = ".run.lock"
_HOLDER_FILE = ".run.holder.json"


@dataclass(frozen=True)
class Cell:
    """One square of the comparison: a method on a domain at a severity (0: it has none) with a seed."""

    method: str
    domain: str
    severity: int
    seed: int

    def __post_init__(self) -> None:
        for name, kind in (("method", str), ("domain", str), ("severity", int), ("seed", int)):
            if type(getattr(self, name)) is not kind:
                raise UserError(f"{name} of a cell is {getattr(self, name)!r}: it must be of type {kind.__name__}")

    @property
    def target(self) -> Domain:
        """Return the domain at its severity."""
        return Domain(self.domain, self.severity)

    @property
    def label(self) -> str:
        """Return TENT's name of the domain, "gaussian_noise5"."""
        return self.target.label


def _check_sum(content: Mapping[str, Any]) -> str:
    return sha256_text(canonical_json(content, "record"))[:16]


@dataclass(frozen=True)
class Record:
    """A finished cell: its metrics (finite numbers), what else is known of it, and the fingerprint of its inputs.

    Note: a fresh record also carries its predictions, which have a file of their own; one read from a file does not.
    """

    cell: Cell
    fingerprint: str
    metrics: Mapping[str, float]
    info: Mapping[str, Any] = field(default_factory=dict)
    predictions: Mapping[str, NDArray[Any]] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Both mappings are copied in the form in which they come back from the file: a record equals its round trip.
        metrics = {name: _number(value, f"metric {name!r} of {self.cell}") for name, value in self.metrics.items()}
        object.__setattr__(self, "metrics", metrics)
        object.__setattr__(self, "info", json.loads(canonical_json(self.info, "info")))

    @property
    def key(self) -> tuple[Cell, str]:
        """Return what no two records of a store share."""
        return self.cell, self.fingerprint

    @property
    def configuration(self) -> str:
        """Return the part of the fingerprint that all domains of a row share."""
        return self.fingerprint.partition("-")[0]

    @property
    def files(self) -> str:
        """Return the part of the fingerprint that is of the domain's files; '' where it has none."""
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
        return canonical_json({**content, _CHECK: _check_sum(content)}, "record")

    @classmethod
    def from_line(cls, line: str) -> Record:
        """Return the record that ``line`` holds, or raise UserError if it is torn, corrupt or of another schema."""
        try:
            data = json.loads(line)
        except ValueError as error:
            raise UserError(f"not whole JSON ({error})") from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise UserError(f"not a record of schema {SCHEMA}")
        expected = data.pop(_CHECK, None)  # a line that was written by hand has none
        if expected is not None and expected != _check_sum(data):
            raise UserError("its content is not what was written: the check sum differs")
        try:
            cell = Cell(data["method"], data["domain"], data["severity"], data["seed"])
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
        """Return what the file holds now, in its order, the first record of each cell and fingerprint."""
        self._index = self._read()
        return list(self._index.values())

    def find(self, cell: Cell, fingerprint: str) -> Record | None:
        """Return the record of ``cell`` made from inputs with this ``fingerprint``, if there is one."""
        if self._index is None:
            self._index = self._read()
        return self._index.get((cell, fingerprint))

    def append(self, record: Record) -> None:
        """Write ``record`` so that it is whole and on the disk when this returns; its predictions come first."""
        if record.predictions is not None:
            write_predictions(predictions_path(self.folder, record.cell, record.fingerprint), record.predictions)
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
        """Hold the folder for this run alone; the system frees it when the process ends, however it ends."""
        lock, holder = FileLock(self.folder / _LOCK_FILE, timeout=0), self.folder / _HOLDER_FILE
        with disk_errors("write", self.path):
            # A folder that cannot take the results is refused here, before anything is computed.
            os.close(self._open())
        try:
            with disk_errors("lock", self.folder):
                _acquire(lock, self.folder, holder)
                write_text(holder, json.dumps({"pid": os.getpid(), "host": platform.node()}))
            self._index = None  # another run may have written since it was read
            yield
        finally:
            if lock.is_locked:
                try:
                    holder.unlink(missing_ok=True)
                finally:
                    lock.release()

    def _open(self) -> int:
        """Return a descriptor of the results file, which every write extends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)

    def _read(self) -> dict[tuple[Cell, str], Record]:
        """Return the records of the file, reporting each bad line once."""
        index: dict[tuple[Cell, str], Record] = {}
        reasons: dict[int, str] = {}
        with disk_errors("read", self.path):
            try:
                data = self.path.read_bytes()
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
    """Take ``lock`` or say who has it."""
    try:
        lock.acquire()
    except Timeout:
        try:
            who = json.loads(holder.read_text(encoding="utf-8"))
            name = f" (process {who['pid']} on {who['host']})"
        except (OSError, ValueError, KeyError, TypeError):
            name = ""  # it has the lock and has not yet written its name
        raise UserError(
            f"another run{name} is writing to {str(folder)!r}: wait for it, or choose another folder (SAVE_DIR)"
        ) from None


def _is_torn(handle: int) -> bool:
    """Tell whether the file's last line lacks its newline: a run was killed while it wrote."""
    if not os.lseek(handle, 0, os.SEEK_END):
        return False
    os.lseek(handle, -1, os.SEEK_END)
    return os.read(handle, 1) != b"\n"


def _number(value: Any, name: str) -> int | float:
    """Return ``value`` as a finite int or float of Python's own."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            if math.isfinite(value):
                return int(value) if isinstance(value, numbers.Integral) else float(value)
        except OverflowError:
            pass  # an integer beyond every float
    raise UserError(f"{name} is {value!r}: a metric is a finite number; leave it out or put it into info as text")
