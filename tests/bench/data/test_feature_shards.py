"""Features on disk: what is written is read, and nothing half or foreign is taken for whole."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from feature_folders import manifest, write_domain, write_rows

from tta_cattan.bench.data import BENCHMARK_REGISTRY, Stream
from tta_cattan.bench.data.datasets import per_class
from tta_cattan.bench.data.features import FeatureFolder, Manifest, open_features, sealed, shard_is_complete
from tta_cattan.config import load_cfg
from tta_cattan.util.errors import UserError

CPU = torch.device("cpu")


def features_of(folder, *overrides):
    cfg = load_cfg(None, ["CORRUPTION.DATASET", "features", "CORRUPTION.NUM_EX", -1, "DATA_DIR", folder,
                          "DATA.SOURCE", "one", "DATA.TARGET", "two", "MODEL.IN_FEATURES", 6, *overrides])  # fmt: skip
    return BENCHMARK_REGISTRY.get("features")(cfg)


@pytest.fixture(autouse=True)
def _opened_anew():
    yield
    open_features.cache_clear()


@pytest.fixture
def domains(tmp_path):
    """Two domains of features; the second ends in a shard that is not full."""
    return {name: write_domain(tmp_path, name, n, seed) for seed, (name, n) in enumerate({"one": 8, "two": 11}.items())}


def test_rows_come_back_in_any_order(tmp_path):
    rows, labels = write_domain(tmp_path, "one", 23, shard_size=5)
    found = FeatureFolder(tmp_path / "one")
    order = np.random.default_rng(1).permutation(23)
    assert np.array_equal(found.rows(order), rows[order])
    assert found.rows(order).dtype == np.float32
    assert found.labels.tolist() == labels
    assert len(list((tmp_path / "one").glob("features-*.npy"))) == 5
    twice = np.array([3, 3, 22, 0])
    assert np.array_equal(found.rows(twice), rows[twice])


def test_rows_are_mapped_and_not_read(domains, tmp_path):
    found = FeatureFolder(tmp_path / "one")
    assert all(isinstance(rows.base, np.memmap) and not rows.flags.owndata for rows in found.maps)


def test_the_benchmark_gives_what_was_written(domains, tmp_path):
    benchmark = features_of(tmp_path)
    benchmark.check()
    assert benchmark.num_classes == 3 and not benchmark.images
    rows, labels = domains["two"]
    seen = []
    for batch in Stream(benchmark.target(benchmark.domains()[0]), 4, 0, CPU):
        assert torch.equal(batch.inputs, torch.from_numpy(rows[batch.indices]))
        assert batch.labels.tolist() == [labels[i] for i in batch.indices]
        seen += batch.indices.tolist()
    assert sorted(seen) == list(range(11))
    source = benchmark.source()
    assert len(source) == 8 and torch.equal(source[3][0], torch.from_numpy(domains["one"][0][3]))
    assert len(features_of(tmp_path, "CORRUPTION.NUM_EX", 5).target(benchmark.domains()[0])) == 5


def test_a_part_of_a_data_set_is_called_a_part(domains, tmp_path):
    assert features_of(tmp_path).differs_from_published().endswith("; one 8, two 11 samples")
    for seed, name in enumerate(("amazon", "dslr", "webcam")):
        write_domain(tmp_path, name, 8, seed)
    office = ["DATA.DOMAINS", ["amazon", "dslr", "webcam"], "DATA.SOURCE", "dslr", "DATA.TARGET", "webcam"]
    assert features_of(tmp_path, *office).differs_from_published().endswith("; dslr 8 of 498, webcam 8 of 795 samples")


def test_the_description_follows_the_content(domains, tmp_path):
    before = features_of(tmp_path).describe()
    open_features.cache_clear()
    write_domain(tmp_path, "two", 11, seed=9)
    after = features_of(tmp_path).describe()
    assert before["domains"]["one"] == after["domains"]["one"] and before["domains"]["two"] != after["domains"]["two"]


def cut_rows(folder):
    path = folder / "features-00001.npy"
    path.write_bytes(path.read_bytes()[:-7])


def change_a_bit(folder):
    path = folder / "features-00001.npy"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def drop_the_labels(folder):
    (folder / "features-00001.json").unlink()


def spoil_the_labels(folder):
    (folder / "features-00001.json").write_text("{")


def another_shape(folder):
    np.save(folder / "features-00001.npy", np.zeros((3, 2), np.float32))


def pickled(folder):
    np.save(folder / "features-00001.npy", np.array([{}], dtype=object), allow_pickle=True)


def edited(name, forge=False, **change):
    """Return a function that changes a JSON file, and its checksum if it is to ``forge`` it."""

    def edit(folder):
        path = folder / name
        content = {**json.loads(path.read_text()), **change}
        del content["check"]
        path.write_text(json.dumps(sealed(content) if forge else {**content, "check": "0" * 64}))

    return edit


def swapped(folder):
    """Exchange the first two shards."""
    for end in ("npy", "json"):
        first, second = (folder / f"features-0000{position}.{end}" for position in (0, 1))
        first.rename(folder / "other")
        second.rename(first)
        (folder / "other").rename(second)


def replaced_manifest(**change):
    return lambda folder: replace(Manifest.read(folder), **change).write(folder)


SHARD = "features-00001.json"
IMPOSSIBLE = edited(SHARD, forge=True, labels=[0, 1, 2, 3])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (edited(SHARD, labels=[0, 1, 2.7, 0]), r"features-00001\.json is damaged \(its hash or labels"),
        (cut_rows, r"features-00001\.npy is not an \.npy file.*replaces what is damaged"),
        (change_a_bit, r"features-00001\.npy was changed after it was written.*replaces what is damaged"),
        (drop_the_labels, r"two is not finished \(features-00001\.json is missing\).*which resumes"),
        (spoil_the_labels, r"features-00001\.json is not the description of a shard"),
        (
            edited(SHARD, forge=True, labels=[2, 0, 1]),
            r"labels. of shard 1 .* shape \(3,\): it must be integers of shape 4",
        ),
        (another_shape, r"float32 of shape \(3, 2\) and the manifest says float32 of shape \(4, 6\)"),
        (pickled, r"features-00001\.npy is not an \.npy file"),
        (edited(SHARD, labels=[2, 1, 0, 0]), r"features-00001\.json was changed after it was written.*replaces"),
        (swapped, r"features-00000\.json is not shard 0 of .*manifest\.json: delete"),
        (IMPOSSIBLE, r"labels. of shard . .* must be in \[0, 2\]"),
    ],
)
def test_what_is_damaged_is_named(domains, tmp_path, spoil, words):
    folder = tmp_path / "two"
    whole = Manifest.read(folder)
    assert shard_is_complete(folder, whole, 1)
    spoil(folder)
    assert not shard_is_complete(folder, whole, 1) or spoil is IMPOSSIBLE
    with pytest.raises(UserError, match=words):
        features_of(tmp_path).check()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"encoder": {"arch": "timm/other", "sha256": "a" * 64}},
            "encoder.arch differs between one and two.*timm/other",
        ),
        ({"encoder": {"arch": "timm/test_vit", "sha256": "c" * 64}}, "encoder.sha256 differs between one and two.*ccc"),
        ({"classes": ["ant", "bee", "dog"]}, "classes.2 differs.*'cat' and 'dog'"),
        ({"classes": ["bee", "ant", "cat"]}, "classes.0 differs.*'ant' and 'bee'"),
    ],
)
def test_domains_that_do_not_belong_together(domains, tmp_path, change, words):
    write_rows(tmp_path, replace(Manifest.read(tmp_path / "two"), **change), *domains["two"])
    with pytest.raises(UserError, match=words):
        features_of(tmp_path).check()


def test_another_length_names_the_key(domains, tmp_path):
    with pytest.raises(UserError, match=r"MODEL.IN_FEATURES = 768.*are 6 long: set MODEL.IN_FEATURES 6"):
        features_of(tmp_path, "MODEL.IN_FEATURES", 768).check()
    open_features.cache_clear()
    write_domain(tmp_path, "two", 11, dim=7)
    with pytest.raises(UserError, match=r"dim differs between one and two.*6 and 7"):
        features_of(tmp_path).check()


def test_a_missing_domain_says_which_there_are(domains, tmp_path):
    with pytest.raises(UserError, match=r"DATA.TARGET = 'three' is not a domain of features.*Domains: one, two"):
        features_of(tmp_path, "DATA.TARGET", "three").check()
    with pytest.raises(UserError, match=r"holds no features: extract them once with `tta-cattan extract-features"):
        features_of(tmp_path / "one").check()


def test_all_domains_are_targets_in_turn(domains, tmp_path):
    write_domain(tmp_path, "odd", 5)
    write_domain(tmp_path, "zebra", 5)
    benchmark = features_of(tmp_path, "DATA.TARGET", "")
    assert [domain.name for domain in benchmark.domains()] == ["odd", "two", "zebra"]
    assert benchmark.short_names == {"odd": "odd", "one": "one", "two": "T", "zebra": "Z"}
    benchmark.check()
    chosen = features_of(tmp_path, "DATA.DOMAINS", ["zebra", "one", "absent"], "DATA.TARGET", "")
    assert chosen.short_names == {"zebra": "Z", "one": "O", "absent": "A"}
    with pytest.raises(UserError, match=r"absent/manifest.json is not the manifest.*No such file"):
        chosen.check()
    drop_the_labels(tmp_path / "zebra")
    open_features.cache_clear()
    with pytest.raises(UserError, match="zebra is not finished"):
        benchmark.check()


def test_a_part_is_read_in_batches_too(domains, tmp_path):
    part = per_class(features_of(tmp_path).source(), 2, seed=0)
    rows, labels = domains["one"]
    for batch in Stream(part, 4, 0, CPU):
        places = [part.indices[i] for i in batch.indices]
        assert torch.equal(batch.inputs, torch.from_numpy(rows[places]))
        assert batch.labels.tolist() == [labels[i] for i in places]
    assert sorted(labels[i] for i in part.indices) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "not a JSON object"),
        ("{", "manifest.json is not the manifest"),
        ({"n": "8"}, "its n is '8'"),
        ({"format": 2}, "its format is 2, and this version reads 1"),
        ({"dim": 0}, "out of range"),
        ({"n": 10**18}, "out of range"),
        ({"classes": [3]}, "its classes are not names"),
    ],
)
def test_a_wrong_manifest_is_refused(domains, tmp_path, content, words):
    path = tmp_path / "one" / "manifest.json"
    if isinstance(content, dict):
        content = json.dumps({**json.loads(path.read_text()), **content})
    path.write_text(content)
    with pytest.raises(UserError, match=words):
        Manifest.read(tmp_path / "one")


EDITS = [
    {"n": 4},  # one of the two shards
    {"classes": ["bee", "ant", "cat"]},
    {"classes": ["ant", "bee", "cat", "dog"]},
    {"encoder": {"arch": "timm/other", "sha256": "b" * 64}},
    {"data": {"sha256": "x"}},
    {"domain": "two"},
]


@pytest.mark.parametrize("change", [*EDITS, {"versions": {"torch": "0"}}, {"note": 1}], ids=str)
def test_an_edited_manifest_is_refused(domains, tmp_path, change):
    edited("manifest.json", **change)(tmp_path / "one")
    for use in (features_of(tmp_path).check, features_of(tmp_path).describe, features_of(tmp_path).class_names):
        with pytest.raises(UserError, match=r"manifest\.json was changed after it was written: restore it"):
            use()


@pytest.mark.parametrize("change", EDITS, ids=str)
def test_a_manifest_of_other_shards_is_refused(domains, tmp_path, change):
    replaced_manifest(**change)(tmp_path / "one")
    for use in (features_of(tmp_path).check, features_of(tmp_path).describe):
        with pytest.raises(UserError, match=r"features-00000\.json is not shard 0 of .*manifest\.json: delete"):
            use()


def test_an_extraction_continues_only_its_own_folder(tmp_path):
    ours = manifest("one", 8, 6)
    ours.require_same(tmp_path, replace(ours, versions={"torch": "0"}))
    for change, words in (
        ({"encoder": {**ours.encoder, "sha256": "d" * 64}}, "encoder.sha256 = 'ddd"),
        ({"shard_size": 9}, "shard_size = 9, and this extraction has 4"),
        ({"data": {"sha256": "other"}}, "data.sha256 = 'other'"),
    ):
        with pytest.raises(UserError, match=f"{words}.*choose another output folder"):
            ours.require_same(tmp_path, replace(ours, **change))
