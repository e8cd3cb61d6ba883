"""CATTAn+: CATTAn-F in a stream, and the target's classes where there is a whole set."""

from __future__ import annotations

import pytest
import torch
from small_networks import build, images, run, snapshot, target_batches

from tta_cattan.bench.run.plan import plan_rows
from tta_cattan.config import find_config


def test_in_a_stream_it_is_cattan_f_and_no_parameter_moves():
    plus, forward = build("cattan_plus", class_change=0.0), build("cattan_forward")
    before = snapshot(plus.model)
    torch.testing.assert_close(run(plus, "online"), run(forward, "online"), rtol=0, atol=0)
    assert all(torch.equal(value, before[name]) for name, value in plus.model.state_dict().items() if name in before)


def test_offline_the_classes_have_a_say():
    plus, forward = build("cattan_plus", class_change=0.0), build("cattan_forward")
    for method in (plus, forward):
        run(method, "offline")
    x = images(8, 5)
    assert plus.target.classes is not None and forward.target.classes is None
    torch.testing.assert_close(plus.infer(x, adapting=False), forward.predict(x), rtol=0, atol=0)
    assert not torch.allclose(plus.predict(x), forward.predict(x))


def test_a_whole_set_is_one_domain_and_all_of_it_counts():
    method, batches = build("cattan_forward", memory=8), [(i, x) for i, x in target_batches()]
    mixed = [*batches, *((i, -x) for i, x in batches)]  # a stream would make two of them
    method.prepare(mixed)
    assert len(method.target.domains) == 1
    assert method.target.domain.count == sum(len(x) for _, x in mixed)
    expected = torch.cat([method.model.conv1(x) for _, x in mixed]).transpose(0, 1).flatten(1)
    torch.testing.assert_close(method.target.domain.moments["norm1"].mean, expected.mean(1), rtol=1e-3, atol=1e-4)
    method.reset(keep_known=True)
    assert method.predict(images(4, 1)).shape == (4, 5) and not method.target.domains


@pytest.mark.parametrize("folder", ["office31", "office31_features", "officehome", "officehome_features"])
@pytest.mark.parametrize("name", ["cattan_forward", "cattan_plus"])
def test_the_configs_of_domains_name_the_layer_to_project(folder, name):
    (row,) = plan_rows(find_config(f"cfgs/{folder}/cattan.yaml"), [], [name])
    assert row.cfg[name.upper()].LAYER == "backbone"
