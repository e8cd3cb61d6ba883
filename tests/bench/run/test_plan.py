"""Plans: which cells there are, and what makes two results two."""

from __future__ import annotations

from pathlib import Path

import pytest

from tta_cattan.bench import Domain
from tta_cattan.bench.run import plan
from tta_cattan.bench.run.plan import Row, cell_fingerprint, plan_cells, plan_rows, seeds
from tta_cattan.bench.run.setting import check_alike
from tta_cattan.config import get_defaults, leaves, load_cfg
from tta_cattan.methods import ADAPTATION_REGISTRY
from tta_cattan.util.errors import UserError

# What a result of TENT does not depend on: where things lie, which cells are asked for, and other methods' settings.
ELSEWHERE = {
    "CKPT_DIR", "DATA_DIR", "SAVE_DIR", "DESC", "LOG_DEST", "LOG_TIME", "RNG_SEED", "SEEDS", "MODEL.CKPT_PATH",
    "CORRUPTION.SEVERITY", "CORRUPTION.TYPE", "TEST.NUM_WORKERS", "BN.EPS", "CUDNN.BENCHMARK", "DEVICE",
    "DATA.TARGET", "STREAM.ROUNDS", "STREAM.IMBALANCE", "STREAM.WAITS", "TEST.DELTA_DIRICHLET",
}  # fmt: skip
# What matters to streams alone, and no stream is asked for.
STREAMS = {"STREAM.ROUNDS", "STREAM.IMBALANCE", "STREAM.WAITS", "TEST.DELTA_DIRICHLET"}
OTHERS = ("SOURCE.", "CATTAN.", "CATTAN_PLUS.", "CATTAN_FORWARD.", "TENT_PLUS.", "SHOT.", "IP.")


def changed(cfg, key: str):
    """Return a copy of ``cfg`` with another value of ``key``."""
    other = cfg.clone()
    *nodes, name = key.split(".")
    node = other
    for part in nodes:
        node = node[part]
    value = node[name]
    if key == "SETTING":
        node[name] = "continual"
    elif isinstance(value, bool):
        node[name] = not value
    elif isinstance(value, (int, float)):
        node[name] = value + 1
    else:
        node[name] = value + "x" if isinstance(value, str) else value[:-1] or [7]
    return other


CFGS = Path(__file__).parents[3] / "cfgs"


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in CFGS.glob("*/cattan.yaml")))
def test_the_files_of_a_folder_can_be_compared(folder):
    first, *others = plan_rows(CFGS / folder / "cattan.yaml", [], ADAPTATION_REGISTRY.registered_names())
    for other in others:
        check_alike(first, other)


def configs_of(*args):
    return [row.cfg for row in plan_rows(*args)]


def stamp(cfg, model: str = "m", subspace: str | None = "s", data: dict | None = None) -> str:
    return cell_fingerprint(cfg, model, subspace, data or {"name": "d"})


@pytest.mark.parametrize("protocol", ["online", "recovery"])
@pytest.mark.parametrize("method", ["tent", "cattan", "shot"])
def test_exactly_the_keys_that_matter_change_the_fingerprint(method, protocol):
    cfg = get_defaults()
    cfg.MODEL.ADAPTATION = method
    cfg.TEST.PROTOCOL = protocol
    # A gate is applied to what is stored; hypotheses are of one protocol alone.
    unread = {"RECOVERY.TAU"} if protocol == "recovery" else {f"RECOVERY.{k}" for k in cfg.RECOVERY}
    own = f"{method.upper()}."
    for key, _ in leaves(cfg):
        if key == "MODEL.ADAPTATION":
            continue
        free = (
            key in ELSEWHERE | STREAMS | unread
            or key == "CATTAN.SOURCE_BASIS"
            or key.startswith(tuple({*OTHERS} - {own}))
        )
        assert (stamp(changed(cfg, key)) == stamp(cfg)) == free, key
    assert stamp(cfg) == stamp(cfg.clone())


def test_model_subspace_data_method_and_version_are_in_it(monkeypatch):
    cfg = get_defaults()
    found = [stamp(cfg), stamp(cfg, model="n"), stamp(cfg, subspace="t"), stamp(cfg, subspace=None)]
    found.append(stamp(cfg, data={"name": "e"}))
    cfg.MODEL.ADAPTATION = "norm"
    found.append(stamp(cfg))
    found.append(cell_fingerprint(cfg, "m", "s", {"name": "d"}, "cuda"))
    now = plan.versions()
    for name in ("tta-cattan", "torch"):
        monkeypatch.setattr(plan, "versions", lambda name=name: {**now, name: "99"})
        found.append(stamp(cfg))
    assert len(set(found)) == len(found)


def test_cells_go_by_method_then_domain_then_seed():
    cfg = load_cfg(None, ["SEEDS", "3,1", "MODEL.ADAPTATION", "TENT"])
    rows = [Row(cfg), Row(get_defaults())]
    cells = [(row, cell) for row in rows for cell in plan_cells(row, [Domain("fog", 5), Domain("snow", 5)])]
    assert all(row.label == cell.label for row, cell in cells)
    assert [(cell.method, cell.domain, cell.severity, cell.seed) for _, cell in cells] == [
        ("tent", "fog", 5, 3), ("tent", "fog", 5, 1),
        ("tent", "snow", 5, 3), ("tent", "snow", 5, 1),
        ("source", "fog", 5, 1), ("source", "snow", 5, 1),
    ]  # fmt: skip
    assert seeds(cfg) == [3, 1] and seeds(get_defaults()) == [get_defaults().RNG_SEED]


def test_each_method_has_its_own_file_and_the_overrides(tmp_path):
    (tmp_path / "cattan.yaml").write_text("MODEL: {ADAPTATION: cattan}\nOPTIM: {LR: 0.5}\n")
    (tmp_path / "tent.yaml").write_text("MODEL: {ADAPTATION: tent}\nOPTIM: {LR: 0.25}\n")
    given = tmp_path / "cattan.yaml"
    configs = configs_of(given, ["TEST.EPOCHS", "9"], ["TENT", "cattan", "norm"])
    assert [(c.MODEL.ADAPTATION, c.OPTIM.LR, c.TEST.EPOCHS) for c in configs] == [
        ("tent", 0.25, 9), ("cattan", 0.5, 9), ("norm", 0.5, 9),
    ]  # fmt: skip
    assert [c.OPTIM.LR for c in configs_of(given, ["OPTIM.LR", "1"], ["tent", "norm"])] == [1.0, 1.0]
    assert [c.MODEL.ADAPTATION for c in configs_of(given, [], [])] == ["cattan"]
    assert [c.MODEL.ADAPTATION for c in configs_of(None, ["MODEL.ADAPTATION", "shot"], [])] == ["shot"]
    (tmp_path / "variant.yaml").write_text("MODEL: {ADAPTATION: tent}\nOPTIM: {LR: 0.125}\n")
    assert [c.OPTIM.LR for c in configs_of(tmp_path / "variant.yaml", [], [])] == [0.125], "not tent.yaml's"
    for methods in (["tent", "Tent"], ["tent", "tnet"]):
        with pytest.raises(UserError, match=r"asked for twice|Did you mean 'tent'"):
            configs_of(given, [], methods)
