"""A study: one table or figure of the paper as a YAML file under ``cfgs/paper``, run on its benchmark or another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from tta_cattan.bench.data import benchmark_of
from tta_cattan.bench.paper.present import (
    Presentation,
    present_dimension,
    present_recovery,
    present_sweep,
    present_table,
)
from tta_cattan.bench.report.figures import need
from tta_cattan.bench.run.gather import domain_benchmark, gather
from tta_cattan.bench.run.plan import Sweep, parse_sweeps
from tta_cattan.bench.run.runner import Outcome, about_data
from tta_cattan.bench.run.setting import is_defined
from tta_cattan.config import find_config, leaves, load_cfg, method_keys, read_yaml, shared_keys, shipped_folder
from tta_cattan.methods import method_title
from tta_cattan.util.errors import UserError, nearest

_DATA = ("data", "model", "weights", "selection")  # roles of the keys that decide the data and the source model
_PRESENT: Mapping[str, Callable[[Study, Outcome, bool], Presentation]] = {
    "table": present_table,
    "sweep": present_sweep,
    "dimension": present_dimension,
    "recovery": present_recovery,
}


@dataclass(frozen=True)
class Study:
    """What to run and what to compare it with; the fields are the keys of the file."""

    name: str
    title: str
    kind: str
    cfg: str  # the config of the paper's own setting
    methods: Sequence[str]
    published: Mapping[str, str] = field(default_factory=dict)  # setting of the sweep ('': no sweep) -> published table
    pairs: bool = False  # every source>target pair of the benchmark is a column
    sweep: str = ""  # KEY=a,b,c
    overrides: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)  # overrides on the paper's own benchmark only
    says: str = ""  # what the paper says if it prints no figures


def study_names() -> list[str]:
    """Return the names of the studies, tables first."""
    return sorted((path.stem for path in _folder().glob("*.yaml")), key=lambda name: (name[:1] != "t", name))


def load_study(name: str) -> Study:
    """Return a study that ships with the package."""
    names = study_names()
    if name not in names:
        raise UserError(f"there is no study {name!r}.{nearest(name, names)} Studies: {', '.join(names)}")
    content = read_yaml(_folder() / f"{name}.yaml")
    if isinstance(table := content.get("published"), str):
        content["published"] = {"": table}
    return Study(name, **content)


def _folder() -> Path:
    return shipped_folder() / "paper"


def run_study(
    study: Study,
    cfg: str | None = None,
    methods: Sequence[str] = (),
    sweep: str | None = None,
    changes: Sequence[Any] = (),
    out: Path | None = None,
) -> tuple[str, list[Path]]:
    """Compute the missing cells of a study with the user's changes, write its files, and return its text and paths."""
    need("matplotlib")  # fail before hours of work
    path = find_config(cfg or study.cfg)
    overrides = [*own_overrides(study, path, cfg is None), *changes]
    paper = load_cfg(find_config(study.cfg), own_overrides(study, find_config(study.cfg), True))
    ours = load_cfg(path, overrides)
    sweeps = _sweeps(study, sweep, overrides)
    chosen_methods, left_out = (list(methods), []) if methods else _methods(study, ours)
    gathered = gather(path, overrides, chosen_methods, sweeps, pairs=study.pairs)
    ignored = [sweep.key for sweep in sweeps] + ["DATA.SOURCE_DIR"]  # says where the data is, not which
    benchmark = domain_benchmark(gathered.cfg)
    part = benchmark.differs_from_published() if benchmark else ""
    said = [key.rstrip(":") for key in part.split()[:1]]  # a key that the benchmark itself reports
    data = [*data_differences(paper, ours, [*ignored, *said]), *filter(None, [part])]
    notes = _notes(gathered, data, setting_differences(paper, ours, ignored), left_out)
    shown = _PRESENT[study.kind](study, gathered, not data)
    folder = out or Path(ours.SAVE_DIR) / "paper"
    files = shown.write(folder, study.title, notes, study.name)
    return shown.to_text(study.title, notes), files


def own_overrides(study: Study, path: Path, on_its_data: bool) -> list[Any]:
    """Return the study's KEY VALUE pairs for a config; a study of all pairs clears the source and target domain."""
    values = {**study.overrides, **(study.data if on_its_data else {})}
    if study.pairs and domain_benchmark(load_cfg(path)) is not None:
        values = {"DATA.SOURCE": "", "DATA.TARGET": "", **values}
    return [part for pair in values.items() for part in pair]


def _sweeps(study: Study, asked: str | None, overrides: list[Any]) -> list[Sweep]:
    if asked and not study.sweep:
        raise UserError(f"--sweep {asked!r}: {study.name} sweeps nothing; use the harness's --sweep for that")
    text = asked or study.sweep
    return parse_sweeps([text] if text else [], overrides)


def _methods(study: Study, ours: CfgNode) -> tuple[list[str], list[str]]:
    """Return the methods to run, and those of the study that cannot take the benchmark's inputs.

    Note: a method that the user names is never left out; if it cannot run, that is an error.
    """
    benchmark = benchmark_of(ours)
    left_out = [method for method in study.methods if not is_defined(method, benchmark)]
    return [method for method in study.methods if method not in left_out], left_out


def _notes(gathered: Outcome, data: list[str], settings: list[str], left_out: list[str]) -> list[str]:
    """Return the lines above the tables: data, settings, folders."""
    cfg = gathered.cfg
    verdict = (
        "the paper's" if not data else f"NOT THE PAPER'S: {'; '.join(data)}. The published figures are of other data"
    )
    lines = [f"data: {verdict}", about_data(cfg, gathered.records, cfg.MODEL.ARCH)]
    if settings:
        lines.append(f"settings that differ from the study's: {'; '.join(settings)}")
    if left_out:
        names = ", ".join(method_title(method) for method in left_out)
        lines.append(f"left out: {names} (needs images, and {cfg.CORRUPTION.DATASET} has none)")
    return [*lines, f"results: {', '.join(map(str, gathered.folders))}"]


def data_differences(paper: CfgNode, ours: CfgNode, ignored: Iterable[str] = ()) -> list[str]:
    """Return how our data and source model differ from the paper's."""
    if ours.CORRUPTION.DATASET != paper.CORRUPTION.DATASET:
        changed = [(ours.CORRUPTION.DATASET, paper.CORRUPTION.DATASET), (ours.MODEL.ARCH, paper.MODEL.ARCH)]
        return [f"{here} instead of {there}" for here, there in changed if here != there]
    return _differences(paper, ours, set(shared_keys(*_DATA)) - set(ignored))


def setting_differences(paper: CfgNode, ours: CfgNode, ignored: Iterable[str] = ()) -> list[str]:
    """Return how our other settings differ from the study's; places and devices change no result."""
    settings = {*shared_keys("protocol", "seed"), *method_keys()}
    return _differences(paper, ours, settings - set(shared_keys(*_DATA)) - set(ignored))


def _differences(paper: CfgNode, ours: CfgNode, keys: Collection[str]) -> list[str]:
    was = dict(leaves(paper))
    return [
        f"{key} {_short(value)} instead of {_short(was[key])}"
        for key, value in leaves(ours)
        if key in keys and value != was[key]
    ]


def _short(value: object) -> str:
    """Return a value as short text; a long list by its length."""
    if isinstance(value, list):
        return f"{len(value)} entries" if len(value) > 5 else ",".join(map(str, value))
    return repr(value) if value == "" else str(value)
