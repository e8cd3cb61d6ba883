"""Folders of features, damaged."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from feature_folders import write_domain
from fuzzing import EDITS, FAST, JSON, damaged, folder, taken
from hypothesis import given
from hypothesis import strategies as st

from tta_cattan.bench.data import benchmark_of
from tta_cattan.bench.data.features import Manifest, open_features, sealed
from tta_cattan.config import load_cfg

FIELDS = [*Manifest.__dataclass_fields__, "labels", "sha256"]
FILES = st.sampled_from(["manifest.json", "features-00000.json", "features-00000.npy"])
SIZES = st.integers(-2, 9) | st.sampled_from([10**9, 10**18, 10**30, True, 2.0])


@FAST
@given(st.dictionaries(st.sampled_from(FIELDS), SIZES | JSON, max_size=2), FILES, EDITS, st.booleans(), st.booleans())
def test_features_are_read_as_they_were_written_or_refused(changes, name, edits, anew, forged):
    with folder() as here:
        rows, labels = write_domain(here, "d", 5)
        path = here / "d" / name
        if anew:
            path.write_bytes(damaged(path.read_bytes(), edits))
        elif path.suffix == ".json":
            content = {**json.loads(path.read_text()), **changes}
            if forged:
                del content["check"]
            path.write_text(json.dumps(sealed(content) if forged else content))
        where = ["CORRUPTION.DATASET", "features", "DATA.SOURCE", "d", "DATA.TARGET", "d", "DATA_DIR", str(here)]
        benchmark = benchmark_of(load_cfg(None, [*where, "MODEL.IN_FEATURES", 6]))
        open_features.cache_clear()

        def read() -> Any:
            benchmark.check()
            benchmark.describe()
            benchmark.differs_from_published()
            return open_features(here / "d")

        found = taken(read)
    if found is None:
        return
    whole = found.rows(np.arange(len(found.labels)))
    assert np.isfinite(whole).all() and len(whole) == len(found.labels)
    assert np.array_equal(whole, rows), "rows have a hash"
    assert found.labels.min() >= 0 and found.labels.max() < len(found.manifest.classes)
    if name != "features-00000.json" or not forged:
        assert found.labels.tolist() == labels
