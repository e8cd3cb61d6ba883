"""Recovery through the harness: stored, resumed, and every threshold from what is stored."""

from __future__ import annotations

import pytest
import torch
from digits_runs import overrides, read_cells, run_folder

from tta_cattan.bench.data import BENCHMARK_REGISTRY
from tta_cattan.bench.protocols import one_domain
from tta_cattan.bench.protocols.recovery import agreement_counts, run_recovery
from tta_cattan.bench.results.store import ResultsStore
from tta_cattan.bench.run import cell
from tta_cattan.cli.main import main
from tta_cattan.config import load_cfg
from tta_cattan.util.errors import UserError

SMALL = {"CORRUPTION.TYPE": "contrast", "TEST.BATCH_SIZE": "32", "OPTIM.LR": "0.05"}


def recover(save, *methods: str, **changes: object) -> int:
    values = {**SMALL, "TEST.PROTOCOL": "recovery", **changes}
    return main(["--methods", ",".join(methods), *overrides(save, **values)])


def test_what_is_stored_is_enough_for_every_gate(tmp_path):
    assert recover(tmp_path, "tent", "cattan", **{"CATTAN.D": 8}) == 0
    folder = run_folder(tmp_path)
    assert folder.name.endswith("-recovery")
    records = ResultsStore(folder).records()
    assert [record.cell.method for record in records] == ["tent", "cattan"]
    for record, counts in zip(records, agreement_counts(records), strict=True):
        found = record.metrics
        assert found["n"] == 128 and sum(counts.counts["source"]["n"]) == sum(counts.counts["target"]["n"]) == 64
        assert counts.k == 3 and found["auroc"] == counts.auroc()
        assert counts.gate(0.0, "source").source_after == found["source_accuracy"]
        assert (found["source_accuracy"] + found["target_accuracy"]) / 2 == pytest.approx(found["accuracy"])


def test_thresholds_repeat_no_cell_and_hypotheses_do(tmp_path):
    assert recover(tmp_path, "tent") == 0
    before = read_cells(tmp_path)
    assert recover(tmp_path, "tent", **{"RECOVERY.TAU": 0.4}) == 0
    assert read_cells(tmp_path) == before
    assert recover(tmp_path, "tent", **{"RECOVERY.K": 2, "RECOVERY.FRACTION": 0.5}) == 0
    assert len(read_cells(tmp_path)) == 2


def test_offline_results_do_not_depend_on_the_recovery_keys(tmp_path):
    file, save = tmp_path / "tent.yaml", tmp_path / "save"
    for k in (2, 3):
        data = "CORRUPTION: {DATASET: digits_c, SEVERITY: [5]}\nTEST: {PROTOCOL: offline}\n"
        file.write_text(f"{data}MODEL: {{ADAPTATION: tent, ARCH: small_resnet}}\nRECOVERY: {{K: {k}}}\n")
        assert main(["--cfg", str(file), *overrides(save, **SMALL)]) == 0
    assert len(read_cells(save)) == 1


@pytest.mark.parametrize(("method", "said"), [("norm", "Norm updates no parameters")])
def test_what_cannot_be_recovered_is_one_line(tmp_path, capsys, method, said):
    values = {key: value for key, value in SMALL.items() if key != "OPTIM.LR"}  # which these methods do not read
    assert main(["--methods", method, *overrides(tmp_path, **values, **{"TEST.PROTOCOL": "recovery"})]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_cattan_plus_recovers_where_it_learns(tmp_path):
    assert recover(tmp_path, "cattan_plus", **{"CLASSES.USE": False}) == 0
    ((_, found),) = read_cells(tmp_path).items()
    assert found["n"] == 128


def test_a_benchmark_without_source_data_is_told():
    benchmark = BENCHMARK_REGISTRY.get("imagenet_c")(load_cfg(None, ["CORRUPTION.DATASET", "imagenet_c"]))
    with pytest.raises(UserError, match=r"imagenet_c has no source data: set DATA\.SOURCE_DIR"):
        run_recovery(None, None, benchmark, None, benchmark.cfg, 0)


def test_adapting_to_a_part_evaluates_on_all(tmp_path, monkeypatch):
    seen = []
    update = one_domain._update
    monkeypatch.setattr(
        one_domain, "_update", lambda m, stream, tick: seen.append(len(list(stream))) or update(m, stream, tick)
    )
    assert main(["--methods", "tent", *overrides(tmp_path, **{**SMALL, "TEST.ADAPT_EX": 20})]) == 0
    ((_, found),) = read_cells(tmp_path).items()
    assert seen == [1] and found["n"] == 64, "one batch of 20 of the 64 samples, which are all predicted"


def test_the_part_is_the_seeds():
    from torch.utils.data import TensorDataset

    from tta_cattan.bench.data import Stream

    whole = Stream(TensorDataset(torch.zeros(30, 1), torch.zeros(30)), 8, 0, torch.device("cpu"))
    parts = [cell._adapted_part(whole, 10, seed).among for seed in (0, 0, 1)]
    assert len(set(parts[0])) == 10 and parts[0] == parts[1] != parts[2]
    assert cell._adapted_part(whole, -1, 0) is whole and len(cell._adapted_part(whole, 99, 0).among) == 30
