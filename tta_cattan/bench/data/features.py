"""Domains as features of a frozen encoder: the folders of shards that feature extraction writes, and the benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tta_cattan.bench import Domain
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY, DomainBenchmark
from tta_cattan.bench.data.stream import BatchedDataset
from tta_cattan.util.door import checked_array, checked_labels, open_npy, parsing, read_json
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import save_array, sha256_file, sha256_text, write_text

MANIFEST = "manifest.json"
_FORMAT = 1
_CHECK = "check"  # the key of the checksum over all other keys
_MOST_SHARDS = 100_000  # five digits
_AGAIN = "extract the features again with the same command"


@dataclass(frozen=True)
class Manifest:
    """A description of the features of one domain: encoder, data, and division into shards."""

    domain: str
    encoder: dict[str, Any]  # arch, sha256 of its weights, image_size
    data: dict[str, Any]  # what determines the content of the images
    n: int
    dim: int
    shard_size: int
    classes: list[str]
    versions: dict[str, str]
    format: int = _FORMAT

    def shards(self) -> list[range]:
        """Return the rows of each shard."""
        return [range(start, min(start + self.shard_size, self.n)) for start in range(0, self.n, self.shard_size)]

    def write(self, folder: Path) -> None:
        write_text(folder / MANIFEST, json.dumps(sealed(asdict(self)), indent=1, sort_keys=True) + "\n")

    def identity(self) -> str:
        """Return a hash of everything but the versions, which may change between shards; each shard stores it."""
        return _checksum({**vars(self), "versions": None})

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        kind, path = "the manifest of extracted features", folder / MANIFEST
        remedy = "extract them with `tta-cattan extract-features`, or give the folder that it wrote"
        content = read_json(path, kind, remedy)
        with parsing(f"{path} is not {kind}", remedy):
            fields = _typed(content)
        if not is_sealed(content):
            raise UserError(f"{path} was changed after it was written: restore it, or delete {folder} and {_AGAIN}")
        return cls(**fields)

    def require_same(self, folder: Path, other: Manifest) -> None:
        """Refuse to resume ``folder`` if ``other``, its manifest, has another encoder, data or shard size."""
        found = first_difference({**asdict(other), "versions": {}}, {**asdict(self), "versions": {}})
        if found:
            key, theirs, ours = found
            raise UserError(
                f"{folder} holds features with {key} = {theirs}, and this extraction has {ours}: choose another output "
                "folder, or remove this one"
            )


def write_shard(folder: Path, manifest: Manifest, position: int, features: np.ndarray, labels: Sequence[int]) -> None:
    """Write one shard: the rows, then the JSON file with their hash and labels that completes it.

    Note: a kill in between leaves rows without that file, which are ignored and replaced by the next run.
    """
    path = _rows_path(folder, position)
    save_array(path, features)
    info = {"sha256": sha256_file(path), "labels": [int(label) for label in labels]}
    place = {"manifest": manifest.identity(), "shard": position}
    write_text(path.with_suffix(".json"), json.dumps(sealed({**info, **place})))


def shard_is_complete(folder: Path, manifest: Manifest, position: int) -> bool:
    """Return whether a shard of this manifest exists with exactly the rows that were written."""
    try:
        info = _read_info(folder, manifest, position)
        rows = len(manifest.shards()[position])
        return len(info["labels"]) == rows and sha256_file(_rows_path(folder, position)) == info["sha256"]
    except (UserError, OSError):
        return False


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content plus a checksum over all of it."""
    return {**content, _CHECK: _checksum(content)}


def is_sealed(content: Mapping[str, Any]) -> bool:
    """Return whether the content still matches its checksum."""
    try:
        return content.get(_CHECK) == _checksum({name: value for name, value in content.items() if name != _CHECK})
    except RecursionError:  # nested deeper than anything that was written
        return False


def _checksum(content: Mapping[str, Any]) -> str:
    return sha256_text(json.dumps(content, sort_keys=True))


class FeatureFolder(BatchedDataset):
    """The features of one domain, verified by their hashes: rows from memory maps, labels in memory."""

    def __init__(self, folder: Path) -> None:
        self.manifest = Manifest.read(folder)
        infos = _read_infos(folder, self.manifest)
        self.maps = []
        for position, (rows, info) in enumerate(zip(self.manifest.shards(), infos, strict=True)):
            name = f"'labels' of shard {position} in {folder}"
            checked_labels(name, np.array(info["labels"]), len(rows), len(self.manifest.classes), _AGAIN)
            self.maps.append(_open_rows(_rows_path(folder, position), (len(rows), self.manifest.dim), info["sha256"]))
        self.labels = torch.tensor([label for info in infos for label in info["labels"]])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rows, labels = self.gather(torch.tensor([index]))
        return rows[0], labels[0]

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows and labels at ``indices``; nothing else is read."""
        return torch.from_numpy(self.rows(indices.numpy())), self.labels[indices]

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Return the rows at ``indices``, in that order."""
        result: np.ndarray = np.empty((len(indices), self.manifest.dim), dtype=np.float32)
        shard: np.ndarray = indices // self.manifest.shard_size
        for position in np.unique(shard):
            mine = shard == position
            result[mine] = self.maps[position][indices[mine] - position * self.manifest.shard_size]
        return result


# Once per process, because all methods, seeds and pairs share the same folders.
open_features = lru_cache(maxsize=16)(FeatureFolder)


def _open_rows(path: Path, shape: tuple[int, int], sha256: str) -> np.ndarray:
    """Return the rows of a shard as a memory map, after verifying their hash."""
    remedy = f"{_AGAIN}, which replaces what is damaged"
    array = open_npy(path, remedy)
    if array.shape != shape or array.dtype != np.float32:
        raise UserError(
            f"{path} holds {array.dtype} of shape {array.shape} and the manifest says float32 of shape {shape}: "
            f"{remedy}"
        )
    if sha256_file(path) != sha256:
        raise UserError(f"{path} was changed after it was written: {remedy}")
    return checked_array(str(path), array, "real", shape, remedy=_AGAIN)


def content_hash(folder: Path) -> str:
    """Return a hash of a domain's rows and labels, from its shards' JSON files."""
    return sha256_text(json.dumps(_read_infos(folder, Manifest.read(folder))))


def _rows_path(folder: Path, position: int) -> Path:
    return folder / f"features-{position:05d}.npy"


def _read_infos(folder: Path, manifest: Manifest) -> list[dict[str, Any]]:
    return [_read_info(folder, manifest, position) for position in range(len(manifest.shards()))]


def _read_info(folder: Path, manifest: Manifest, position: int) -> dict[str, Any]:
    """Return the hash and labels of a shard, after checking them against their checksum and the manifest."""
    path = _rows_path(folder, position).with_suffix(".json")
    if not path.is_file():
        raise UserError(f"{folder} is not finished ({path.name} is missing): {_AGAIN}, which resumes")
    info = read_json(path, "the description of a shard", f"delete it and {_AGAIN}")
    labels = info.get("labels")
    if "sha256" not in info or not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise UserError(f"{path} is damaged (its hash or labels are not there): delete it and {_AGAIN}")
    if not is_sealed(info):
        raise UserError(f"{path} was changed after it was written: {_AGAIN}, which replaces what is damaged")
    if (info.get("manifest"), info.get("shard")) != (manifest.identity(), position):
        raise UserError(f"{path} is not shard {position} of {folder / MANIFEST}: delete {folder} and {_AGAIN}")
    return {"sha256": info["sha256"], "labels": labels}


def _typed(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a manifest; refuse a wrong type or a value out of range."""
    kinds = {"domain": str, "encoder": dict, "data": dict, "n": int, "dim": int, "shard_size": int,
             "classes": list, "versions": dict, "format": int}  # fmt: skip
    for name, kind in kinds.items():
        if not isinstance(content.get(name), kind):
            raise ValueError(f"its {name} is {_short(content.get(name))}")
    if content["format"] != _FORMAT:
        raise ValueError(f"its format is {content['format']}, and this version reads {_FORMAT}")
    sizes = [content[name] for name in ("n", "dim", "shard_size")]
    if min(sizes) < 1 or sizes[0] > _MOST_SHARDS * sizes[2]:
        raise ValueError("its n, dim or shard_size is out of range")
    if not content["classes"] or not all(isinstance(name, str) for name in content["classes"]):
        raise ValueError("its classes are not names")
    return {name: content[name] for name in kinds}


def first_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return the first key in which two descriptions differ, such as ``encoder.arch``, and both values."""
    ours, theirs = _flat(one), _flat(other)
    for key in {**ours, **theirs}:
        if ours.get(key) != theirs.get(key):
            return key, _short(ours.get(key)), _short(theirs.get(key))
    return None


def _flat(value: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    """Return nested mappings and lists flattened into one mapping, ``{"encoder.arch": ...}``."""
    result: dict[str, Any] = {}
    for key, item in value.items():
        inside = {str(place): one for place, one in enumerate(item)} if isinstance(item, list) else item
        result |= _flat(inside, f"{start}{key}.") if isinstance(inside, Mapping) else {f"{start}{key}": item}
    return result


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@BENCHMARK_REGISTRY.register("features")
class Features(DomainBenchmark):
    """``DATA_DIR/<domain>/``, each a folder of feature shards."""

    images = False

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        return len(self.class_names())

    @property
    def short_names(self) -> dict[str, str]:  # type: ignore[override]
        """The domains of DATA.DOMAINS, or all in DATA_DIR, each with its initial if that is unique, else its name."""
        names = self.cfg.DATA.DOMAINS or [
            path.parent.name for path in sorted(Path(self.cfg.DATA_DIR).glob(f"*/{MANIFEST}"))
        ]
        if not names:
            raise UserError(
                f"DATA_DIR = {self.cfg.DATA_DIR!r} holds no features: extract them once with `tta-cattan "
                "extract-features --cfg FILE --out DIR`, and set DATA_DIR to that DIR"
            )
        initials = [name[0].upper() for name in names]
        return {n: i if initials.count(i) == 1 else n for n, i in zip(names, initials, strict=True)}

    def class_names(self) -> list[str]:
        """Return the class names of the images from which the features were extracted."""
        return Manifest.read(self._folder(self.source_domain)).classes

    def check(self) -> None:
        """Check that all domains exist, are complete, and share one encoder and one list of classes."""
        source = open_features(self._folder(self.source_domain)).manifest
        for domain in self.domains():
            target = open_features(self._folder(domain.name)).manifest
            ours, theirs = ({key: vars(one)[key] for key in ("encoder", "dim", "classes")} for one in (source, target))
            if found := first_difference(ours, theirs):
                raise UserError(
                    f"{found[0]} differs between {source.domain} and {target.domain} in {self.cfg.DATA_DIR} "
                    f"({found[1]} and {found[2]}): extract both with the same `tta-cattan extract-features` command"
                )
        if source.dim != self.cfg.MODEL.IN_FEATURES:
            raise UserError(
                f"MODEL.IN_FEATURES = {self.cfg.MODEL.IN_FEATURES}, and the features in {self.cfg.DATA_DIR} are "
                f"{source.dim} long: set MODEL.IN_FEATURES {source.dim}"
            )

    def whole_target(self, domain: Domain) -> FeatureFolder:
        return open_features(self._folder(domain.name))

    def source(self) -> FeatureFolder:
        return open_features(self._folder(self.source_domain))

    def describe_source(self) -> dict[str, Any]:
        return {"name": self.source_domain, "sha256": content_hash(self._folder(self.source_domain))}

    def describe(self) -> dict[str, Any]:
        # What is on disk, not what the config names: a run over all targets reuses the cells of a run over one.
        there = [name for name in self.short_names if (self._folder(name) / MANIFEST).is_file()]
        return {"name": "features", "domains": {name: content_hash(self._folder(name)) for name in there}}

    def differs_from_published(self) -> str:
        """Return that the encoder is frozen, and how many samples there are, out of how many in the data set."""
        folders = {name: open_features(self._folder(name)) for name in self.used_domains()}
        known = (getattr(BENCHMARK_REGISTRY.get(name), "sizes", {}) for name in BENCHMARK_REGISTRY.registered_names())
        whole: Mapping[str, int] = next((one for one in known if set(one) == set(self.short_names)), {})
        sizes = ", ".join(
            f"{name} {len(each.labels):,}" + (f" of {whole[name]:,}" if whole.get(name, 0) > len(each.labels) else "")
            for name, each in folders.items()
        )
        arch = folders[self.source_domain].manifest.encoder.get("arch", "encoder")
        return f"features of a frozen {arch}, not a network trained end to end; {sizes} samples"

    def _folder(self, domain: str) -> Path:
        return Path(self.cfg.DATA_DIR).resolve() / domain
