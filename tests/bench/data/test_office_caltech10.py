"""Office-Caltech10's histograms: the usual scaling, the four files, and what is wrong with others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler, normalize

from tta_cattan.bench.data import BENCHMARK_REGISTRY
from tta_cattan.bench.data.domain_arrays import scale_histograms
from tta_cattan.bench.domain import Domain
from tta_cattan.config import load_cfg
from tta_cattan.util.errors import UserError


def counts(n=30, dim=800, seed=0):
    rng = np.random.default_rng(seed)
    return rng.poisson(rng.uniform(0.01, 3, dim), (n, dim)).astype(np.float32)


def office(folder, *overrides):
    cfg = load_cfg(None, ["CORRUPTION.DATASET", "office_caltech10", "DATA_DIR", folder, "DATA.SOURCE", "dslr",
                          "DATA.TARGET", "webcam", "MODEL.IN_FEATURES", 800, *overrides])  # fmt: skip
    return BENCHMARK_REGISTRY.get("office_caltech10")(cfg)


@pytest.fixture
def folder(tmp_path):
    for seed, name in enumerate(("dslr", "webcam")):
        np.savez(tmp_path / f"{name}_surf800.npz", x=counts(seed=seed), y=np.arange(30) % 10)
    return tmp_path


def test_scaling_is_the_usual_one():
    x = counts().astype(np.float64)
    x[:, 3] = 0  # a word that the domain does not have
    assert np.array_equal(scale_histograms(x, "none"), x)
    assert np.allclose(scale_histograms(x, "l1"), normalize(x, norm="l1"), atol=1e-12)
    expected = StandardScaler().fit_transform(normalize(x, norm="l1"))
    assert np.allclose(scale_histograms(x, "l1_zscore"), expected, atol=1e-9)
    x[4] = 0  # an object without a single descriptor
    assert np.isfinite(scale_histograms(x, "l1_zscore")).all()


def test_each_domain_is_scaled_by_itself(folder):
    benchmark = office(folder, "DATA.SCALING", "l1_zscore")
    benchmark.check()
    for data in (benchmark.source(), benchmark.target(Domain("webcam"))):
        assert data.tensors[0].mean(0).abs().max() < 1e-5
        assert data.tensors[0].shape == (30, 800) and data.tensors[1].tolist() == [i % 10 for i in range(30)]
    raw = office(folder).target(Domain("webcam")).tensors[0]
    assert torch.equal(raw, torch.from_numpy(counts(seed=1)))
    assert len(office(folder, "CORRUPTION.NUM_EX", 7).target(Domain("webcam"))) == 7


def test_the_description_follows_file_and_scaling(folder):
    before = office(folder).describe()
    assert office(folder).describe_source() != office(folder, "DATA.SCALING", "l1").describe_source()
    np.savez(folder / "webcam_surf800.npz", x=counts(seed=5), y=np.arange(30) % 10)
    assert office(folder).describe() != before


def test_what_is_missing_or_wrong_is_named(folder):
    with pytest.raises(UserError, match=r"caltech_surf800.npz does not exist.*amazon, caltech"):
        office(folder, "DATA.TARGET", "caltech").check()
    with pytest.raises(UserError, match=r"set MODEL.IN_FEATURES 800"):
        office(folder, "MODEL.IN_FEATURES", 768).check()
    np.savez(folder / "amazon_surf800.npz", x=counts(dim=700), y=np.arange(30))
    np.savez(folder / "caltech_surf800.npz", x=np.full((30, 800), np.nan), y=np.arange(30))
    for name, problem in (("amazon", r"is float\d+ of shape \(30, 700\)"), ("caltech", "holds NaN or Inf")):
        with pytest.raises(UserError, match=f"x in .*{name}_surf800.npz {problem}"):
            office(folder).target(Domain(name))


def test_the_real_files(real_data):
    benchmark = office(real_data("office_caltech10"), "DATA.SCALING", "l1_zscore", "CORRUPTION.NUM_EX", -1)
    benchmark.check()
    sizes = {d: len(benchmark.target(Domain(d))) for d in ("amazon", "caltech", "dslr", "webcam")}
    assert sizes == {"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295}
    assert set(benchmark.source().tensors[1].tolist()) == set(range(10))
