"""Progress without a terminal: a line a minute with the total, the epoch and the time left."""

from __future__ import annotations

from digits_runs import compare

from tta_cattan.cli.main import main
from tta_cattan.util import progress as module


def test_a_line_has_the_total_the_epoch_and_the_time_left(monkeypatch, capsys):
    monkeypatch.delenv("TTA_CATTAN_PROGRESS", raising=False)
    with module.progress(None, 4, "tent fog5 seed 0") as bar:
        bar.set_postfix_str("epoch 1 of 2", refresh=False)
        bar.update()
        assert capsys.readouterr().err == "", "nothing in the first minute"
        for clock in ("start_t", "last_print_t", "_next_line"):  # as if a minute had passed
            setattr(bar, clock, getattr(bar, clock) - 60)
        bar.update()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tent fog5 seed 0:  50%") and "2/4 [01:00<01:00" in line and "epoch 1 of 2" in line


def test_a_result_names_its_epochs(monkeypatch, tmp_path):
    said = []
    monkeypatch.setattr(module._Bar, "set_postfix_str", lambda bar, text, refresh: said.append(text))
    assert main(compare(tmp_path, "tent", **{"TEST.EPOCHS": 2, "CORRUPTION.TYPE": "contrast"})) == 0
    assert said == ["epoch 1 of 2", "epoch 2 of 2", "predicting"]


def test_the_results_line_has_what_the_workers_told(monkeypatch, capsys):
    told = []
    monkeypatch.setattr(module, "_tell", lambda *step: told.append(step))
    with module.progress(None, 4, "tent fog5 seed 0") as bar:
        bar.set_postfix_str("epoch 1 of 2", refresh=False)
        for clock in ("start_t", "last_print_t"):  # as if three seconds had passed
            setattr(bar, clock, getattr(bar, clock) - 3)
        bar.update()
    assert told == [(0.25, "tent fog5 seed 0, epoch 1 of 2")] and capsys.readouterr().err == ""
    monkeypatch.setattr(module, "_tell", None)
    monkeypatch.delenv("TTA_CATTAN_PROGRESS", raising=False)
    with module.progress(None, 4, "results") as bar:
        bar.update()
        for clock in ("start_t", "_next_line"):
            setattr(bar, clock, getattr(bar, clock) - 60)
        module.show_running([*told, (0.25, "tent snow5 seed 0")])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("results:  38%|") and "1.5/4 [01:00<01:40" in line
    assert "tent fog5 seed 0, epoch 1 of 2" in line
