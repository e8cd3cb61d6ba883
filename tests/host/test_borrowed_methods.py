"""The methods of a user's checkout of test-time-adaptation in our tables."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from digits_runs import compare, overrides, read_cells, run_folder

from tta_cattan import ADAPTATION_REGISTRY
from tta_cattan.bench.data import benchmark_of, stream_of
from tta_cattan.bench.models.zoo import untrained_model
from tta_cattan.bench.results.store import read_predictions
from tta_cattan.bench.run import host_methods, launchers
from tta_cattan.bench.run.plan import plan_rows
from tta_cattan.bench.run.setting import check_rows, prepare_settings
from tta_cattan.cli.main import main
from tta_cattan.host.checkout import Checkout, HostError

SHARPEN = """
import random

import torch
from datasets.data_loading import get_source_loader
from torch import nn
from utils.registry import ADAPTATION_REGISTRY

import package_of_nobody.deep
from methods.base import TTAMethod
from package_of_nobody import call_me


@ADAPTATION_REGISTRY.register()
class Sharpen(TTAMethod):
    def configure_model(self):
        self.model.train().requires_grad_(False)
        self.noise = torch.ones(1).cuda() * random.random()
        for m in self.model.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.requires_grad_(True)

    def collect_params(self):
        return [p for p in self.model.parameters() if p.requires_grad], ["norm"]

    @torch.enable_grad()
    def forward_and_adapt(self, x):
        self.seen = x[0] + 0.01 * self.noise
        outputs, loss = self.loss_calculation(x)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return outputs

    def loss_calculation(self):  # as RoTTA has it, which is called with the batch
        outputs = self.model(self.seen)
        return outputs, -outputs.softmax(1).square().sum(1).mean()


@ADAPTATION_REGISTRY.register()
class Caller(Sharpen):
    def forward_and_adapt(self, x):
        return call_me(x)


@ADAPTATION_REGISTRY.register()
class Remembers(Sharpen):
    def __init__(self, cfg, model, num_classes):
        super().__init__(cfg, model, num_classes)
        data, loader = get_source_loader(cfg.CORRUPTION.DATASET, batch_size=8, num_samples=12, workers=2)
        self.sizes = [len(batch[0]) for batch in loader]
        assert len(data) == 12 and sum(self.sizes) == 12 and model.model_preprocess.transforms[0].size == (32, 32)


class Outer(torch.optim.Optimizer):  # as SAR's: the step is another optimizer's
    def __init__(self, params):
        super().__init__(params, {})
        self.inner = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)

    def step(self):
        self.inner.step()


@ADAPTATION_REGISTRY.register()
class Nested(Sharpen):
    def setup_optimizer(self):
        return Outer(self.params)


@torch.jit.script
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@ADAPTATION_REGISTRY.register()
class Scripted(Sharpen):  # as CoTTA: a scripted function among its attributes
    def __init__(self, cfg, model, num_classes):
        super().__init__(cfg, model, num_classes)
        self.doubled = doubled
"""
ONLINE = ["TEST.PROTOCOL", "online"]
CONTINUAL = ["SETTING", "continual", *ONLINE]
STREAM = {"SETTING": "continual", "TEST.PROTOCOL": "online", "TEST.BATCH_SIZE": 16}


@pytest.fixture
def checkout(host, monkeypatch):
    """Return a checkout with methods that work and some that do not; what is registered is forgotten again."""
    monkeypatch.setattr(ADAPTATION_REGISTRY, "_entries", dict(ADAPTATION_REGISTRY._entries))
    monkeypatch.setattr(host_methods, "_borrowed", {})
    folder = host("registry")
    (folder / "methods" / "sharpen.py").write_text(SHARPEN)
    (folder / "methods" / "broken.py").write_text("1 / 0")
    (folder / "cfgs" / "digits_c").mkdir()
    (folder / "cfgs" / "digits_c" / "sharpen.yaml").write_text("{MODEL: {ADAPTATION: sharpen}, OPTIM: {LR: 1e-2}}")
    (folder / "cfgs" / "digits_c" / "gentle.yaml").write_text("{MODEL: {ADAPTATION: sharpen}, OPTIM: {LR: 1e-4}}")
    return folder


def run(save, checkout, methods, **changes):
    return main(compare(save, methods, "--host", str(checkout), **{**STREAM, **changes}))


def predictions(save, method):
    (path,) = (run_folder(save) / "predictions").glob(f"{method}-*")
    return torch.from_numpy(read_predictions(path)["prediction"])


def test_predictions_are_those_of_the_host(checkout, tmp_path, monkeypatch):
    save = tmp_path / "save"
    assert run(save, checkout, "source,host:sharpen,host:gentle") == 0
    # The host itself: its own class under its own config, on the same batches and the same network.
    (row,) = plan_rows("cfgs/digits_c/cattan.yaml", overrides(**STREAM), ["source"])
    (setting,) = prepare_settings([row], check_rows([row]))
    monkeypatch.setitem(sys.modules, "package_of_nobody", ModuleType("package_of_nobody"))
    monkeypatch.setitem(sys.modules, "package_of_nobody.deep", ModuleType("deep"))
    sys.modules["package_of_nobody"].call_me = None
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    sys.path.insert(0, str(checkout))
    import random

    from conf import cfg
    from methods.sharpen import Sharpen

    Sharpen.loss_calculation = lambda self, x, loss=Sharpen.loss_calculation: loss(self)
    for name, rate in (("sharpen", 1e-2), ("gentle", 1e-4)):
        cfg.merge_from_list(["OPTIM.LR", rate])
        random.seed(0)
        method = Sharpen(cfg, untrained_model(row.cfg, 10), 10)
        method.model.load_state_dict(setting.loaded.model.state_dict())
        with torch.no_grad():
            batches = stream_of(row.cfg, benchmark_of(row.cfg), 0, torch.device("cpu")).batches()
            expected = torch.cat([method(batch.inputs).argmax(1) for _, batch in batches])
        assert torch.equal(predictions(save, f"host_{name}"), expected.to(torch.int16))
    assert not torch.equal(*(predictions(save, f"host_{name}") for name in ("sharpen", "gentle")))
    assert not list((run_folder(save)).glob("unfinished/*"))


def test_who_cannot_run_is_named_and_the_others_go_on(checkout, tmp_path, capsys):
    assert run(tmp_path / "save", checkout, "tent,host:caller,host:broken,host:sharpen,host:remembers") == 0
    said = capsys.readouterr()
    assert {cell[0] for cell in read_cells(tmp_path / "save")} == {"tent", "host:sharpen", "host:remembers"}
    assert "left out: host:caller: it needs the package 'package_of_nobody', which is not installed" in said.err
    assert "left out: host:broken: methods/broken.py cannot be imported: ZeroDivisionError" in said.err
    assert "host:sharpen" in said.out and "host:caller" not in said.out
    assert run(tmp_path / "other", checkout, "host:caller") != 0
    assert "no method could run: host:caller" in capsys.readouterr().err


def test_a_fault_in_one_domain_takes_the_row_out_of_the_table(checkout, tmp_path, capsys):
    text = SHARPEN.replace("return call_me(x)", "return x[0].flatten(1)[:, :10] if len(x[0]) == 64 else call_me(x)")
    (checkout / "methods" / "sharpen.py").write_text(text)
    changes = {"SETTING": "reset_each_shift", "TEST.BATCH_SIZE": 64}
    assert run(tmp_path / "save", checkout, "source,host:caller", **changes, **{"CORRUPTION.NUM_EX": 80}) == 0
    assert "host:caller" not in capsys.readouterr().out


def test_no_trace_is_left(checkout, tmp_path, monkeypatch):
    ours = ModuleType("utils")
    monkeypatch.setitem(sys.modules, "utils", ours)
    path, files = list(sys.path), sorted(checkout.rglob("*"))
    with pytest.raises(HostError, match="ZeroDivisionError"):
        Checkout(checkout).class_for("broken")
    assert sys.modules["utils"] is ours and sys.path == path
    assert not {"methods", "conf", "datasets", "package_of_nobody"} & {*sys.modules}
    assert sorted(checkout.rglob("*")) == files


def test_code_and_settings_of_the_host_decide_which_result_it_is(checkout, tmp_path):
    def stored():
        ADAPTATION_REGISTRY._entries.pop("host:sharpen", None)
        run(tmp_path / "save", checkout, "host:sharpen")
        return len(read_cells(tmp_path / "save"))

    assert (stored(), stored()) == (1, 1)
    (checkout / "cfgs" / "digits_c" / "sharpen.yaml").write_text("OPTIM: {LR: 1e-3}")
    assert stored() == 2
    (checkout / "methods" / "base.py").write_text((checkout / "methods" / "base.py").read_text() + "\n# changed\n")
    assert stored() == 3
    run(tmp_path / "save", checkout, "host:sharpen", **{"HOST.OPTIONS": "OPTIM.LR,0.5"})
    assert len(read_cells(tmp_path / "save")) == 4


@pytest.mark.parametrize("name", ["sharpen", "nested", "scripted"])
def test_predicting_changes_nothing(checkout, name):
    host_methods.borrow(str(checkout), [name])
    (row,) = plan_rows("cfgs/digits_c/cattan.yaml", overrides(**STREAM), [f"host:{name}"])
    method = ADAPTATION_REGISTRY.get(f"host:{name}").from_cfg(untrained_model(row.cfg, 10), row.cfg, 10)
    x = torch.rand(16, 3, 32, 32)
    before = method.predict(x)
    assert torch.equal(method.predict(x), before) and torch.equal(method(x), before)
    assert not torch.equal(method.predict(x), before)
    method.reset()
    assert torch.equal(method.predict(x).argmax(1), before.argmax(1))


def test_workers_borrow_the_same_methods(checkout, monkeypatch, tmp_path):
    host_methods.borrow(str(checkout), ["sharpen"])
    hosts = host_methods.borrowed()
    del ADAPTATION_REGISTRY._entries["host:sharpen"]
    monkeypatch.setattr(launchers, "run_cell", lambda *given: "host:sharpen" in ADAPTATION_REGISTRY)
    assert launchers._compute(None, "cpu", None, None, None, launchers.Home(str(tmp_path), {}, [], hosts))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--methods", "host:sharpen"], "host:sharpen: give --host PATH"),
        (["--host", "HOST", "--methods", "host:sharpn"], "Did you mean 'sharpen'"),
        (["--host", "HOST/cfgs", "--methods", "host:tent"], "no checkout of mariodoebler/test-time-adaptation"),
        (["--host", "HOST", "--methods", "host:sharpen", "HOST.OPTIONS", "OPTIM.LRR,1", *ONLINE], "OPTIM.LRR"),
        (["--host", "HOST", "--methods", "host:sharpen", "TEST.PROTOCOL", "offline"], "methods are online"),
        (["--host", "HOST", "--methods", "host:sharpen", "STREAM.MONITOR", "True", *CONTINUAL], "cannot be watched"),
    ],
)
def test_refusals(checkout, capsys, arguments, said):
    given = [part.replace("HOST", str(checkout), 1) if part in ("HOST", "HOST/cfgs") else part for part in arguments]
    assert main([*given, "--dry-run", "DEVICE", "cpu"]) != 0
    assert said in capsys.readouterr().err
