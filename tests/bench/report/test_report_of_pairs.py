"""Pairs of methods: the differences are those of the predictions, on common images alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from runs_by_hand import write_run

from tta_cattan.bench.report.comparison import group_runs
from tta_cattan.bench.report.page import verdict
from tta_cattan.bench.report.pairs import compare_all, mcnemar, paired_difference
from tta_cattan.bench.report.reading import find_runs
from tta_cattan.bench.report.tables import pairs_table

RNG = np.random.default_rng(0)


def correct(n, rate):
    return RNG.random(n) < rate


def pairs_of(folder, squares):
    (comparison,) = group_runs(find_runs([write_run(folder, squares)]))
    return comparison, compare_all(comparison)


def test_a_pair_is_the_paired_difference_of_common_squares(tmp_path):
    squares = {(m, d, s): correct(200, 0.6) for m in ("tent", "ip") for d in ("fog", "snow") for s in (0, 1)}
    squares["ip", "frost", 0] = correct(200, 0.6)
    _, pairs = pairs_of(tmp_path, squares)
    groups = [
        (np.arange(200), squares["tent", d, s].astype(int) - squares["ip", d, s].astype(int))
        for d in ("fog", "snow")
        for s in (0, 1)
    ]
    found, expected = pairs["TENT", "IP"], paired_difference(groups)
    assert (found.squares, found.p_value) == (4, None)
    assert (found.mean, found.low) == pytest.approx((expected.mean, expected.low))
    assert pairs["IP", "TENT"].low == pytest.approx(-expected.high)


def test_all_intervals_hold_at_once(tmp_path):
    squares = {(name, "fog", 0): correct(300, 0.5) for name in ("tent", "ip", "shot")}
    _, pairs = pairs_of(tmp_path, squares)
    difference = squares["tent", "fog", 0].astype(int) - squares["ip", "fog", 0].astype(int)
    expected = paired_difference([(np.arange(300), difference)], 1 - 0.05 / 3)
    assert replace(pairs["TENT", "IP"], p_value=None) == expected
    assert expected.high > paired_difference([(np.arange(300), difference)]).high


def test_one_square_has_mcnemars_p(tmp_path):
    squares = {("tent", "fog", 0): correct(300, 0.5), ("ip", "fog", 0): correct(300, 0.5)}
    _, pairs = pairs_of(tmp_path, squares)
    a, b = squares["tent", "fog", 0], squares["ip", "fog", 0]
    assert pairs["TENT", "IP"].p_value == pytest.approx(mcnemar(int((a & ~b).sum()), int((b & ~a).sum())))


def test_other_images_are_not_compared(tmp_path):
    _, pairs = pairs_of(tmp_path, {("tent", "fog", 0): correct(30, 0.5), ("ip", "fog", 0): correct(31, 0.5)})
    assert pairs == {}


def lead(tmp_path, only_first, only_second, n=2000):
    """Return the comparison of two methods that differ on so many of ``n`` images."""
    base = np.ones(n, bool)
    first, second = base.copy(), base.copy()
    second[:only_first] = False
    first[only_first : only_first + only_second] = False
    return pairs_of(tmp_path, {("tent", "fog", 0): first, ("ip", "fog", 0): second})


def test_three_tenths_of_a_point_on_2000_images_is_no_win(tmp_path):
    comparison, pairs = lead(tmp_path, 43, 37)
    assert pairs["TENT", "IP"].text == "+0.3 [−0.6,\u00a01.2]"
    assert "is not decided by these images" in verdict(comparison, pairs)
    assert not any(entry.mark for row in pairs_table(["TENT", "IP"], pairs).rows for entry in row)


def test_three_points_are(tmp_path):
    comparison, pairs = lead(tmp_path, 80, 20)
    assert verdict(comparison, pairs).startswith(
        "TENT has the highest mean accuracy (99.0 %); its lead over IP, +3.0 ["
    )
    marks = [[entry.mark for entry in row[1:]] for row in pairs_table(["TENT", "IP"], pairs).rows]
    assert marks == [["", "best"], ["", ""]]
