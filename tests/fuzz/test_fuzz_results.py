"""Results drawn at random, damaged and forged."""

from __future__ import annotations

import contextlib
import json

from fuzzing import EDITS, EXACT, FAST, JSON, NUMBERS, TEXT, damaged, folder, taken
from hypothesis import given
from hypothesis import strategies as st

from tta_cattan.bench.results.identity import fingerprint as checksum
from tta_cattan.bench.results.store import RANGES, SCHEMA, Cell, Record, ResultsStore
from tta_cattan.util.errors import UserError


@st.composite
def records(draw) -> Record:
    cell = Cell(draw(TEXT), draw(TEXT), draw(st.integers(0, 5)), draw(st.integers(0, 2**32)))
    names = TEXT.filter(lambda name: name not in RANGES)  # those have limits
    metrics = draw(st.dictionaries(names, st.floats(allow_nan=False, allow_infinity=False), max_size=3))
    return Record(cell, draw(TEXT), metrics, draw(st.dictionaries(TEXT, EXACT | st.lists(EXACT), max_size=2)))


@FAST
@given(st.lists(records(), min_size=1, max_size=4), EDITS, records())
def test_results_come_back_once_and_damage_costs_no_other_line(written, edits, more):
    with folder() as here:
        store = ResultsStore(here)
        for record in written:
            store.append(record)
        whole = store.path.read_bytes()
        first: dict[object, Record] = {}
        for record in written:
            first.setdefault(record.key, record)
        assert ResultsStore(here).records() == list(first.values())
        store.path.write_bytes(damaged(whole, edits))
        found = ResultsStore(here).records()
        assert all(record in written for record in found), "no number changes unnoticed"
        kept = store.path.read_bytes().split(b"\n")
        whole_lines = [record for record in written if record.to_line().encode() in kept]
        assert all(record.key in [one.key for one in found] for record in whole_lines)
        store.append(more)
        assert more.key in [one.key for one in ResultsStore(here).records()], "the store still takes results"


LINES = st.fixed_dictionaries(
    {"schema": st.just(SCHEMA) | JSON, "method": TEXT | JSON, "domain": TEXT | JSON,
     "severity": st.integers(0, 5) | JSON,
     "seed": st.integers(0, 9) | JSON, "settings": st.just([]) | JSON, "fingerprint": TEXT | JSON,
     "metrics": st.dictionaries(st.sampled_from(sorted(RANGES)) | TEXT, NUMBERS | JSON) | JSON,
     "info": st.dictionaries(TEXT, JSON) | JSON}
)  # fmt: skip


@FAST
@given(LINES, st.sampled_from([None, *Record(Cell("a", "b", 0, 0), "", {}).__dict__, "schema", "domain"]), EDITS)
def test_a_forged_line_is_a_record_or_refused(content, lost, edits):
    content.pop(lost, None)
    with contextlib.suppress(UserError):  # what canonical JSON cannot hold, no checksum covers
        content["check"] = checksum(content)
    for line in (json.dumps(content), damaged(json.dumps(content).encode(), edits).decode(errors="replace")):
        found = taken(Record.from_line, line)
        if found is not None:
            assert Record.from_line(found.to_line()) == found
            assert all(low <= found.metrics.get(name, low) <= high for name, (low, high) in RANGES.items())
            hash(found.key)
