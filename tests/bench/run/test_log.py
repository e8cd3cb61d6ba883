"""Log lines that people's scripts parse, and bars that keep out of their way."""

from __future__ import annotations

import logging
import re
import sys

import pytest

from tta_cattan.bench.run.log import error_line, reset_logging, setup_logging
from tta_cattan.util import progress as progress_module
from tta_cattan.util.errors import UserError
from tta_cattan.util.progress import progress

LINE = r"\[\d\d/\d\d/\d\d \d\d:\d\d:\d\d\] \[test_log\.py: +\d+\]: "


@pytest.mark.parametrize(
    ("accuracy", "line"),
    [
        (0.8766, "error % [gaussian_noise5]: 12.34%"),
        (1.0, "error % [gaussian_noise5]: 0.00%"),
        (0.0, "error % [gaussian_noise5]: 100.00%"),
    ],
)
def test_error_line_is_tents(accuracy, line):
    assert error_line("gaussian_noise5", accuracy) == line


def test_lines_go_to_console_and_file_once_in_tents_format(tmp_path, capsys):
    setup_logging(tmp_path / "run")
    logger = setup_logging(tmp_path / "run")
    logging.getLogger("tta_cattan.bench.run.x").info(error_line("fog5", 0.5))
    expected = re.compile(LINE + r"error % \[fog5\]: 50\.00%\n")
    captured = capsys.readouterr()
    assert expected.fullmatch(captured.err) and captured.out == ""
    assert expected.fullmatch((tmp_path / "run" / "log.txt").read_text())
    assert logger.name == "tta_cattan" and len(logger.handlers) == 2


def test_file_is_appended_to_and_may_be_elsewhere(tmp_path):
    for number in range(2):
        setup_logging(tmp_path, "other.txt").info("run %d", number)
        reset_logging()
    assert [line[-5:] for line in (tmp_path / "other.txt").read_text().splitlines()] == ["run 0", "run 1"]
    setup_logging(tmp_path)
    setup_logging().info("console only")
    assert (tmp_path / "log.txt").read_text() == ""


def test_root_logger_is_left_alone_and_does_not_repeat_our_lines(caplog):
    root, level = list(logging.getLogger().handlers), logging.getLogger().level
    setup_logging().info("once")
    assert logging.getLogger().handlers == root and logging.getLogger().level == level
    assert caplog.messages == []
    reset_logging()
    logging.getLogger("tta_cattan").warning("seen")
    assert caplog.messages == ["seen"]


def test_handlers_of_the_user_survive():
    mine = logging.NullHandler()
    logging.getLogger("tta_cattan").addHandler(mine)
    try:
        setup_logging()
        reset_logging()
        assert logging.getLogger("tta_cattan").handlers == [mine]
    finally:
        logging.getLogger("tta_cattan").removeHandler(mine)


def test_folder_that_cannot_be_written_is_refused_and_changes_nothing(tmp_path, capsys):
    logger = setup_logging()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write.*log.txt"):
        setup_logging(tmp_path / "file")
    logger.info("still here")
    assert "still here" in capsys.readouterr().err


def test_full_disk_costs_one_notice(tmp_path, capsys):
    (tmp_path / "log.txt").symlink_to("/dev/full")
    logger = setup_logging(tmp_path)
    for number in range(3):
        logger.info("line %d", number)
    shown = capsys.readouterr().err
    assert shown.count("cannot write to the log") == 1 and "Traceback" not in shown
    assert all(f"line {number}" in shown for number in range(3))


def test_progress_without_a_terminal_is_a_line_a_minute(capsys, monkeypatch):
    assert list(progress(range(5), total=5, desc="x")) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().err == ""
    now = [1000.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    bar = progress(None, total=5, desc="slow")
    for _ in range(4):
        now[0] += 40
        bar.update()
        bar.refresh()
    bar.close()
    shown = capsys.readouterr().err.splitlines()
    assert [re.search(r"slow: .* (\d)/5 \[.*<", line)[1] for line in shown] == ["2", "4"], "and the time that is left"
    monkeypatch.setenv("TTA_CATTAN_PROGRESS", "0")
    assert progress(range(5)).disable


def test_progress_appears_late_on_stderr_and_vanishes(monkeypatch, capsys):
    monkeypatch.setenv("TTA_CATTAN_PROGRESS", "1")
    assert list(progress(range(5), total=5, desc="quick")) == [0, 1, 2, 3, 4]
    assert "quick" not in capsys.readouterr().err
    bar = progress(range(5), total=5, desc="slow")
    assert bar.delay == 2 and not bar.leave and bar.fp is not sys.stdout
    bar.start_t -= 3  # as if three seconds had gone by
    bar.refresh()
    setup_logging().info("between")
    bar.close()
    captured = capsys.readouterr()
    assert captured.out == "" and "slow" in captured.err
    assert re.search(r"\r" + LINE + "between\n", captured.err), "the line stands on its own, not behind the bar"


def test_progress_on_a_terminal_needs_no_variable(monkeypatch):
    monkeypatch.delenv("TTA_CATTAN_PROGRESS", raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert not progress(range(5)).disable
