"""The results store: what goes in comes out, and what is not a record does no harm."""

from __future__ import annotations

import json
import logging
import os

import numpy as np
import pytest

from tta_cattan.bench.results.identity import fingerprint as checksum
from tta_cattan.bench.results.store import SCHEMA, Cell, Record, ResultsStore
from tta_cattan.util.errors import UserError


def make_record(seed: int = 0, stamp: str = "f0", accuracy: float = 0.5, **info: object) -> Record:
    return Record(Cell("tent", "gaussian_noise", 5, seed), stamp, {"accuracy": accuracy, "n": 10}, info)


def test_labels():
    assert Cell("tent", "gaussian_noise", 5, 0).target.label == "gaussian_noise5"
    assert Cell("tent", "usps", 0, 0).target.label == "usps"
    assert Cell("tent", "usps", 0, 0).label == "tent"
    settings = (("CATTAN.D", 64), ("CORRUPTION.TYPE", ["fog", "snow"]))
    assert Cell("cattan", "fog", 5, 0, settings).label == "cattan [CATTAN.D=64, CORRUPTION.TYPE=[fog,snow]]"


@pytest.mark.parametrize("settings", ["D", 3, None, [["D"]], [["D", 1, 2]], [[1, "D"]], {"D": 1}, [["D", {}]]])
def test_settings_are_keys_and_values(settings):
    with pytest.raises(UserError, match="settings of a cell"):
        Cell("tent", "fog", 5, 0, settings)


def test_settings_survive_the_file_in_their_order(tmp_path):
    cell = Cell("cattan", "fog", 5, 0, (("TEST.EPOCHS", 2), ("CORRUPTION.TYPE", ["fog"]), ("CATTAN.D", 8)))
    record = Record(cell, "f", {"accuracy": 0.5})
    ResultsStore(tmp_path).append(record)
    assert ResultsStore(tmp_path).records() == [record] and hash(cell) == hash(ResultsStore(tmp_path).records()[0].cell)


def test_round_trip(tmp_path):
    record = Record(
        Cell("cattan", "fog", 3, 7),
        "abc",
        {"accuracy": 0.1 + 0.2, "n": 3},
        {"d": 12, "curve": (0.5, 1e-300), "s": "a\n"},
    )
    assert "\n" not in record.to_line()
    assert json.loads(record.to_line())["schema"] == SCHEMA
    assert Record.from_line(record.to_line()) == record
    ResultsStore(tmp_path / "new" / "run").append(record)
    store = ResultsStore(tmp_path / "new" / "run")
    assert store.records() == [record]
    assert store.find(record.cell, "abc") == record
    assert store.find(record.cell, "abd") is None
    assert store.find(Cell("cattan", "fog", 4, 7), "abc") is None


def test_numpy_numbers_become_plain():
    metrics = Record(Cell("m", "d", 1, 0), "f", {"a": np.float32(0.5), "n": np.int64(3)}, {}).metrics
    assert metrics == {"a": 0.5, "n": 3} and {type(value) for value in metrics.values()} == {float, int}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "0.5", None, True, 10**400])
def test_metrics_must_be_finite_numbers(value):
    with pytest.raises(UserError, match=r"'ece'.*Cell"):
        Record(Cell("m", "d", 1, 0), "f", {"ece": value}, {})


def test_first_record_of_a_key_wins_and_fingerprints_stay_apart(tmp_path):
    store = ResultsStore(tmp_path)
    for record in (make_record(accuracy=0.1), make_record(accuracy=0.2), make_record(stamp="f1", accuracy=0.3)):
        store.append(record)
        store.find(record.cell, record.fingerprint)
    for reader in (store, ResultsStore(tmp_path)):
        assert reader.find(make_record().cell, "f0").metrics["accuracy"] == 0.1
        assert [record.metrics["accuracy"] for record in reader.records()] == [0.1, 0.3]


def checked(line: str, **changes: object) -> bytes:
    """Return a line with other content and the checksum of it, as whoever knows the format can write it."""
    content = {**json.loads(line), **changes}
    content.pop("check")
    return json.dumps({**content, "check": checksum(content)}).encode()


BAD_LINES = [
    json.dumps({k: v for k, v in json.loads(make_record().to_line()).items() if k != "check"}).encode(),
    checked(make_record().to_line(), metrics={"accuracy": 5.0, "n": 10}),
    checked(make_record().to_line(), metrics={"accuracy": -0.1, "n": 10}),
    checked(make_record().to_line(), metrics={"accuracy": 0.5, "n": -10}),
    checked(make_record().to_line(), metrics={"accuracy": 0.5, "ece": 1.5}),
    b'{"domain":"fog","fing',
    b"\x00\x00\x00",
    b"\xff\xfe{}",
    b"[]",
    b"{}",
    make_record().to_line().replace(f'"schema":{SCHEMA}', '"schema":1').encode(),
    make_record().to_line().replace('"seed":0', '"seed":"0"').encode(),
    make_record().to_line().replace('"settings":[]', '"settings":7').encode(),
    make_record().to_line().replace('"n":10', '"n":NaN').encode(),
    make_record().to_line().replace('"n":10', '"n":1' + "0" * 400).encode(),
    make_record().to_line().replace('"info":{}', '"info":[]').encode(),
    make_record().to_line().replace('"info":{}', '"info":{"x":' + "[" * 700 + "]" * 700 + "}").encode(),
    b"[" * 100_000,
]


@pytest.mark.parametrize("bad", BAD_LINES, ids=range(len(BAD_LINES)))
def test_corrupt_line_in_the_middle_is_skipped_counted_and_reported_once(tmp_path, caplog, bad):
    first, last = make_record(seed=1), make_record(seed=2)
    content = b"\n".join([first.to_line().encode(), bad, last.to_line().encode(), b""])
    store = ResultsStore(tmp_path)
    store.path.write_bytes(content)
    with caplog.at_level(logging.WARNING, logger="tta_cattan"):
        assert store.records() == [first, last] == store.records()
    assert store.skipped == 1
    assert ["line 2" in message for message in caplog.messages] == [True]
    assert store.path.read_bytes() == content


def test_a_pipe_for_results_is_refused(tmp_path):
    os.mkfifo(tmp_path / "results.jsonl")
    store = ResultsStore(tmp_path)
    for use in (store.records, lambda: store.append(make_record()), lambda: store.lock().__enter__()):
        with pytest.raises(UserError, match=r"results.jsonl is a pipe, not a file"):
            use()


def test_a_file_cut_at_any_byte_loses_at_most_its_last_record(tmp_path):
    store, lines = ResultsStore(tmp_path), [make_record(seed=seed).to_line().encode() + b"\n" for seed in range(2)]
    for cut in range(len(lines[1]) + 1):
        store.path.write_bytes(lines[0] + lines[1][:cut])
        whole = cut >= len(lines[1]) - 1  # a line that lacks only its newline holds all of its record
        assert [record.cell.seed for record in ResultsStore(tmp_path).records()] == ([0, 1] if whole else [0])
        store.append(make_record(seed=2))
        expected = [0, 1, 2] if whole else [0, 2]
        assert [record.cell.seed for record in ResultsStore(tmp_path).records()] == expected
