"""The monitor: its formulas against loops, what it finds in made streams, what it does about it, and its state."""

from __future__ import annotations

import copy
import io
import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tta_cattan import Monitor, UserError
from tta_cattan.methods import Tent
from tta_cattan.monitor import Calibration, Reference
from tta_cattan.monitor.estimate import fitted_temperature, frechet_distance, mean_shift, transport_confidence

D, CLASSES = 12, 4


def draw(n: int, seed: int = 0, shift: float = 0.0, only: int | None = None) -> tuple[torch.Tensor, ...]:
    """Return features around one corner per class, the logits of a good classifier, and the labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (n,), generator=generator)
    features = torch.randn(n, D, generator=generator) * torch.linspace(2, 0.5, D) + shift
    features[:, :CLASSES] += 3 * nn.functional.one_hot(labels, CLASSES)
    logits = 3 * nn.functional.one_hot(labels, CLASSES) + torch.randn(n, CLASSES, generator=generator)
    if only is not None:
        logits[:, only] += 20
    return features, logits, labels


def monitor(**options: object) -> Monitor:
    features, logits, labels = draw(2000, seed=99)
    return Monitor(Reference.of(features, Calibration.of([(logits, labels)]), d=6), **options)


def feed(watching: Monitor, features: torch.Tensor, logits: torch.Tensor, batch: int = 50) -> list:
    return [watching.observe(y, z) for y, z in zip(logits.split(batch), features.split(batch), strict=True)]


def test_the_distance_is_the_formula():
    rng = np.random.default_rng(0)
    rows, variances = rng.normal(1, 2, (30, 3)), np.array([4.0, 2.0, 0.5])
    expected = sum(
        rows[:, j].mean() ** 2 + (math.sqrt(((rows[:, j] - rows[:, j].mean()) ** 2).mean()) - math.sqrt(e)) ** 2
        for j, e in enumerate(variances)
    ) / sum(variances)
    assert frechet_distance(torch.tensor(rows), torch.tensor(variances)) == pytest.approx(expected)


def test_the_shift_of_the_mean_is_the_formula():
    rng = np.random.default_rng(0)
    new, old = rng.normal(0.5, 1, (40, 3)), rng.normal(0, 2, (70, 3))
    t = 0.0
    for j in range(3):
        pooled = (40 * new[:, j].var() + 70 * old[:, j].var()) / 110
        t += (new[:, j].mean() - old[:, j].mean()) ** 2 / (pooled * (1 / 40 + 1 / 70))
    found = mean_shift(torch.tensor(new), 70, torch.tensor(old.mean(0)), torch.tensor((old**2).mean(0)))
    assert found == pytest.approx((t - 3) / math.sqrt(6))


def test_the_transport_is_the_best_assignment():
    from scipy.optimize import linear_sum_assignment

    p = torch.tensor(np.random.default_rng(0).dirichlet([0.3] * 4, 40))
    prior = torch.tensor([0.1, 0.2, 0.3, 0.4])
    places = np.repeat(np.arange(4), (40 * prior).round().int().numpy())
    rows, columns = linear_sum_assignment(-p.numpy()[:, places])
    best = p.numpy()[rows, places[columns]].mean()
    assert transport_confidence(p, prior, blur=0.005, rounds=3000) == pytest.approx(best, abs=2e-3)
    assert transport_confidence(p, prior) == pytest.approx(best, abs=0.02)
    one = torch.tensor([[1.0, 0, 0, 0]]).expand(40, -1)
    assert transport_confidence(one, torch.full((4,), 0.25)) == pytest.approx(0.25, abs=1e-6)


def test_the_temperature_is_the_best_of_a_grid():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(0, 4, (200, 3)), rng.integers(0, 3, 200)
    logits[np.arange(200), labels] += 3.0

    def loss(t: float) -> float:
        scaled = logits / t
        return -np.mean(
            [row[y] - math.log(sum(math.exp(one) for one in row)) for row, y in zip(scaled, labels, strict=True)]
        )

    best = min(np.linspace(0.5, 10, 951), key=loss)
    assert fitted_temperature(torch.tensor(logits), torch.tensor(labels)) == pytest.approx(best, abs=0.01)


def test_the_score_is_the_lower_of_two_and_the_simpler_one_with_few_samples():
    _, logits, labels = draw(400, 1)
    _, others, _ = draw(250, 2, only=1)
    for count in (CLASSES * 20 - 1, 400):
        clean, truth = logits[:count], labels[:count]
        found = Calibration.of([(clean, truth)], window=count)
        p = clean.double().softmax(1).numpy()
        entropy = np.sort((-p * np.log(p)).sum(1))
        right = int((clean.argmax(1) == truth).sum())
        level = entropy[right - 1]
        q = others.double().softmax(1).numpy()
        simple = ((-q * np.log(q)).sum(1) <= level + 1e-9).mean()
        if count < CLASSES * 20:
            assert found.score(others) == pytest.approx(simple) and simple > 0.9
            continue
        prior = (torch.bincount(truth, minlength=CLASSES) + 1.0) / (count + CLASSES)
        transported = [transport_confidence((y / found.temperature).softmax(1), prior) for y in (clean, others)]
        lower = transported[1] - transported[0] + right / count
        assert lower < simple and found.score(others) == pytest.approx(lower)
        assert found.estimate(clean).value == pytest.approx(right / count)


def test_a_stream_like_the_source_raises_nothing():
    for seed in range(3):
        features, logits, labels = draw(5000, seed)
        readings = feed(monitor(), features, logits)
        assert not [event for reading in readings for event in reading.events]
        truth = (logits.argmax(1) == labels).double().mean().item()
        found = [reading.accuracy for reading in readings if reading.accuracy]
        assert abs(np.mean([one.value for one in found]) - truth) < 0.01
        assert np.mean([one.low < truth < one.high for one in found]) > 0.9
        assert readings[3].accuracy is None, "the window is not full yet"


@pytest.mark.parametrize("batch", [8, 50, 400])
def test_a_new_domain_is_found_once_and_soon(batch):
    before, after = draw(800, 1, shift=0.5), draw(800, 2, shift=-1.0)
    features, logits = (torch.cat([a, b]) for a, b in zip(before[:2], after[:2], strict=True))
    readings = feed(monitor(), features, logits, batch)
    found = [reading.seen for reading in readings if "change" in reading.state]
    assert len(found) == 1 and 800 < found[0] <= 800 + max(250, batch)
    assert "drift" in readings[-1].state and readings[-1].drift > 10 * monitor().reference.drift_limit / 8


def test_a_collapse_is_found_within_five_batches_and_lowers_the_estimate(caplog):
    good, bad = draw(600, 1), draw(600, 2, only=3)
    features, logits = (torch.cat([a, b]) for a, b in zip(good[:2], bad[:2], strict=True))
    told: list[tuple[str, int]] = []
    watching = monitor(callback=lambda event, reading: told.append((event, reading.seen)))
    with caplog.at_level(logging.WARNING, "tta_cattan"):
        readings = feed(watching, features, logits, 40)
    assert told[0][0] == "collapse" and 600 < told[0][1] <= 600 + 5 * 40
    assert [event for event, _ in told[1:]] == ["change"], "confidence jumps too"
    assert "the last predictions fall into about 1." in caplog.text
    confidence = logits[600:].softmax(1).amax(1).mean().item()
    assert confidence > 0.99 and readings[-1].accuracy.value < 0.5, "it is not the confidence that counts"


def test_samples_that_are_not_finite_are_left_out():
    features, logits, _ = draw(500)
    spoilt = features.clone()
    spoilt[::5, 0] = float("nan")
    watching, kept = monitor(window=100), torch.arange(500) % 5 != 0
    one = feed(watching, spoilt, logits)[-1]
    other = feed(monitor(window=100), features[kept], logits[kept], 40)[-1]
    assert one.seen == 500 and (one.drift, one.accuracy) == (other.drift, other.accuracy)


def test_the_state_goes_on_where_it_was_taken():
    features, logits, _ = draw(900, 1, shift=0.5)
    watching = monitor(window=100, on_change="ignore")
    feed(watching, features[:450], logits[:450])
    file = io.BytesIO()
    torch.save(watching.state_dict(), file)
    restored = monitor()
    file.seek(0)
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert feed(restored, features[450:], logits[450:]) == feed(watching, features[450:], logits[450:])
    assert restored.window == 100 and restored.on_change == "ignore"


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(D), nn.Linear(D, CLASSES)
        with torch.no_grad():
            self.fc.weight.copy_(torch.eye(CLASSES, D) * 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.norm(x))


def batches(n: int, seed: int, batch: int = 50, **options: object) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, _, y = draw(n, seed, **options)
    return list(zip(x.split(batch), y.split(batch), strict=True))


def fitted(model: nn.Module, **options: object) -> Monitor:
    return Monitor.fit(model, batches(1000, 7), shifts=[batches(500, s, shift=s / 10) for s in (8, 9)], d=6, **options)


def test_a_network_of_ones_own_is_watched_from_outside():
    network = Network().eval()
    before = copy.deepcopy(network.state_dict())
    watched = fitted(network).watch(network)
    for x, _ in batches(500, 1):
        assert torch.equal(watched(x), network(x))
    assert watched.reading.seen == 500 and "drift" not in watched.reading.state
    for x, _ in batches(500, 2, shift=4.0):
        watched(x)
    assert "drift" in watched.reading.state
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_fitting_leaves_the_modes_as_they_were_and_begins_with_a_fresh_method():
    network, frozen = Network().train(), Network().eval()
    fitted(network, frozen=frozen)
    assert network.training and network.norm.training and not frozen.training
    fresh = Tent(Network(), lr=0.1)
    adapted = copy.deepcopy(fresh)
    for x, _ in batches(500, 3):
        adapted(x)
    one, other = fitted(fresh), fitted(adapted)
    assert one.reference.calibration.temperature == other.reference.calibration.temperature


def spoil(method: Tent) -> None:
    with torch.no_grad():
        method.model.norm.bias[0] = 50.0


@pytest.mark.parametrize("reaction", ["warn", "reset", "source"])
def test_the_policy_answers_a_collapse(reaction):
    method, frozen = Tent(Network(), lr=0.0, on_collapse="report"), Network().eval()
    watched = fitted(method, on_collapse=reaction).watch(method, frozen=frozen)
    stream = [x for x, _ in batches(1000, 1)]
    for x in stream[:6]:
        watched(x)
    spoil(method)
    for x in stream[6:16]:
        logits = watched(x)
    bias = method.model.norm.bias[0].item()
    assert bias == (50.0 if reaction == "warn" else 0.0)
    assert watched.on_source == (reaction == "source")
    assert torch.equal(logits, frozen(stream[15])) == (reaction == "source")


@pytest.mark.parametrize("mirror", [False, True])
def test_a_watched_method_goes_on_where_its_state_was_taken(mirror, monkeypatch):
    def make() -> nn.Module:
        method = Tent(Network(), lr=0.01)
        if mirror:  # two rows of features a sample, as methods have that look at mirror images
            monkeypatch.setattr(Tent, "infer", lambda self, x, adapting: self.model(torch.cat([x, x]))[: len(x)])
        return fitted(method, window=100, on_collapse="source").watch(method, frozen=Network().eval())

    first, stream = make(), [x for x, _ in batches(400, 1)]
    for x in stream[:5]:
        first(x)
    first.on_source = True
    second = make()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for x in stream[5:]:
        assert torch.equal(first(x), second(x)) and first.reading == second.reading


def test_a_method_rests_on_data_without_drift():
    method = Tent(Network(), lr=0.1, statistics="source")
    watched = fitted(method, without_drift="predict", window=100).watch(method)
    clean = [x for x, _ in batches(500, 1)]
    watched(clean[0])
    start = method.model.norm.weight.clone()
    for x in clean[1:]:
        watched(x)
    assert torch.equal(method.model.norm.weight, start)
    for x, _ in batches(500, 2, shift=4.0):
        watched(x)
    assert not torch.equal(method.model.norm.weight, start)


def test_what_is_worse_than_the_frozen_network_is_told():
    method, frozen = Tent(Network(), lr=0.0), Network().eval()
    told: list[str] = []
    watching = fitted(method, callback=lambda event, _: told.append(event))
    watched = watching.watch(method, frozen=frozen)
    spoil(method)
    for x, _ in batches(600, 1):
        watched(x)
    assert "worse" in told and watched.reading.accuracy.high < watched.reading.frozen.low


def test_clean_digits_raise_no_alarm():
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x = torch.tensor(digits.data[order] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target[order])
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x[:600]), y[:600]).backward()
        optimizer.step()
    watching = Monitor.fit(network, [(x[600:1000], y[600:1000])], d=8, window=100)
    watched = watching.watch(network)
    events = []
    for seed in range(8):
        again = 1000 + torch.randperm(797, generator=torch.Generator().manual_seed(seed))
        for places in again.split(50):
            watched(x[places])
            events += watched.reading.events
    assert not events
    for batch in (1 - x[1000:]).split(50):
        watched(batch)
        events += watched.reading.events
    assert "drift" in events


class Two(Network):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x), x


class Unused(Network):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(D, CLASSES)


def watched_images() -> nn.Module:
    return monitor().watch(nn.Sequential(nn.Conv2d(3, D, 3), nn.BatchNorm2d(D), nn.Flatten(), nn.Linear(36 * D, 4)))


def test_a_frozen_network_that_adapts_too_is_refused():
    network = Network().eval()
    method = Tent(network)
    for frozen in (network, method):
        with pytest.raises(UserError, match="frozen shares layers with the model"):
            monitor().watch(method, frozen=frozen)
        with pytest.raises(UserError, match="frozen shares layers with the model"):
            Monitor.fit(method, batches(200, 1), frozen=frozen)


def test_a_refused_fit_leaves_the_method_as_it_was():
    method = Tent(Network(), lr=0.1)
    before = copy.deepcopy(method.model.state_dict())
    with pytest.raises(UserError, match="batches of"):
        Monitor.fit(method, [*batches(100, 1), torch.zeros(8, D)])
    assert all(torch.equal(value, before[name]) for name, value in method.model.state_dict().items())


@pytest.mark.parametrize("kind", [Network, lambda: Tent(Network(), lr=0.0)])
def test_threads_share_a_watched_network(kind):
    model = kind().eval()
    watched = fitted(model).watch(model)
    model.register_forward_hook(lambda *_: time.sleep(0.005))  # the other threads' turn, before the features are read
    stream = [x[: 20 + n] for n, (x, _) in enumerate(batches(1000, 1))]  # features of another batch do not fit
    expected = [model(x) for x in stream]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(watched, stream))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert watched.reading.seen == sum(len(x) for x in stream)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: monitor(windw=3), "Monitor has no option 'windw'. Did you mean 'window'?"),
        (lambda: monitor(on_collapse="restart"), "on_collapse = 'restart': must be one of"),
        (lambda: Monitor(None), "reference is a NoneType"),
        (lambda: monitor().observe(torch.zeros(3, 5), torch.zeros(3, D)), "the reference is of 4 classes"),
        (lambda: monitor(on_worse="source").watch(Network()), "pass frozen="),
        (lambda: monitor(on_change="reset").watch(Network()), "has no reset()"),
        (lambda: monitor(without_drift="predict").watch(Network()), "has no predict()"),
        (lambda: Monitor.fit(Network(), []), "no batches were given"),
        (lambda: Monitor.fit(Network(), [torch.zeros(8, D)]), "batches of (inputs, labels)"),
        (lambda: Monitor.fit(Network(), [(torch.zeros(8, D), torch.zeros(8, CLASSES))]), "one class number per input"),
        (lambda: Monitor.fit(nn.Sequential(nn.BatchNorm1d(D)), batches(100, 1)), "name a layer with layer="),
        (lambda: Monitor.fit(Network(), batches(20, 1), d=6), "at least 24"),
        (lambda: Monitor.fit(Network(), [(x, y + 1) for x, y in batches(100, 1)]), "the network has 4 classes"),
        (lambda: Monitor.fit(Network(), [(x, y - 1) for x, y in batches(100, 1)]), "labels lie in -1..2"),
        (lambda: Monitor.fit(Network, batches(100, 1)), "give a torch.nn.Module"),
        (lambda: Monitor.fit(Network(), batches(100, 1), frozen="net"), "frozen = 'net'"),
        (lambda: Monitor.fit(Network(), batches(100, 1), frozen=nn.Linear(D, 3)), "has 3 classes"),
        (lambda: Monitor.fit(Two(), batches(100, 1)), "of type tuple"),
        (lambda: Monitor.fit(Network(), batches(100, 1), frozen=Two()), "of type tuple"),
        (lambda: monitor(callback="mail"), "callback = 'mail'"),
        (lambda: Monitor.fit(Network(), [], on_drift="mail"), "on_drift = 'mail'"),
        (lambda: monitor().watch(nn.Sequential(Network(), nn.Identity()), layer="1")(torch.zeros(0, D)), "empty batch"),
        (lambda: monitor().watch(Unused())(torch.zeros(8, D)), "does not call its last linear layer"),
        (lambda: watched_images()(torch.zeros(3, 8, 8)), "x[None]"),
    ],
)
def test_mistakes_are_refused(make, words):
    with pytest.raises(UserError) as error:
        make()
    assert words in str(error.value)


def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "docs" / "monitor.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    net = Network().eval()
    sets = {name: batches(500, n, shift=n / 2) for n, name in enumerate(("clean", "noisy", "blurred"))}
    names = {"copy": copy, "torch": torch, "net": net, **sets, "stream": [x for x, _ in batches(500, 4)]}
    exec(code, names)
    assert names["watched"].reading.seen == 500
    torch.load("watched.pt", weights_only=True)
