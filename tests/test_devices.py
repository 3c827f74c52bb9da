"""The law of devices: wherever the model lies, the same is learnt; and the host hardly ever waits for the device."""

import copy
import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import curlicue as cq
from curlicue.config.model import Emission, Likelihood, ModelConfig
from curlicue.engines.autograd import AutogradEngine
from curlicue.errors import ConfigError
from curlicue.evaluate.scores import final_scores
from curlicue.evaluate.view import view
from curlicue.experiments.run import Run
from curlicue.experiments.settings import RunConfig
from curlicue.growth.measured import Measured
from curlicue.growth.threshold import Threshold
from curlicue.learn import learner as learners
from curlicue.learn.checkpoint import Checkpoint, to_bytes
from curlicue.learn.events import BirthRefused, ComponentBorn, Event
from curlicue.learn.learner import Learner, LearnerConfig
from curlicue.memory.snapshot import Counts, Snapshot
from curlicue.model.devices import device_of
from curlicue.model.inference import bounds, components, embed, mean_bounds, posterior, reconstruct
from curlicue.model.mixture import MixtureVAE
from curlicue.records.directory import RunDirectory
from curlicue.records.environment import environment, latest
from curlicue.rng import Rng, named_generator
from curlicue.streams.sources import Source, Split
from curlicue.systems.curl import Curl
from curlicue.systems.labelled import LabelledLearner, LabelledSystem
from elsewhere import CPU, ELSEWHERE, Remote, Traffic, offered

ROOT = Path(__file__).parent.parent
SHAPE, B, N = (4, 4), 20, 30  # of a sample; of a batch; batches
MOST_WAITS = 3  # of a step: which pairs are visited, who is poorly explained, the figures of the event
DEVICES = [
    pytest.param("elsewhere"),
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA here")),
    pytest.param("mps", marks=pytest.mark.skipif(not torch.mps.is_available(), reason="there is no MPS here")),
]
on_devices = pytest.mark.parametrize("device", DEVICES)

THRESHOLD = Threshold(c_new=-8.0, n_new=30, burn_in=10, wait=5, passes=3)
MEASURED = Measured(n_new=10, wait=3, passes=5)
SMGR, MGR = Snapshot(snapshots=8), Snapshot(snapshots=8, labelled=False)
LEARNERS: dict[str, dict[str, Any]] = {
    "sparse, fixed threshold, SMGR": {"growth": THRESHOLD, "memory": SMGR},
    "sparse, measured threshold, snapshots at changes": {"growth": MEASURED, "memory": Snapshot()},
    "exact, MGR": {"growth": THRESHOLD, "memory": MGR, "tau": 0.0},
    "importance-weighted, MGR": {"growth": THRESHOLD, "memory": MGR, "z_samples": 3},
    "importance-weighted, exact, SMGR": {"growth": THRESHOLD, "memory": SMGR, "tau": 0.0, "z_samples": 2},
    "at the cap, counts as seen, no rounding": {
        "growth": THRESHOLD,
        "max_components": 2,
        "memory": Snapshot(snapshots=5, labelled=False, counts=Counts.SEEN, emission=Emission.THRESHOLD),
    },
    "nothing but the bound": {"growth": None, "memory": None},
}
MODELS: dict[str, dict[str, Any]] = {
    "gaussian": {"likelihood": Likelihood.GAUSSIAN},
    "conv": {"encoder": "conv", "decoder": "conv"},
}
CASES = [pytest.param({}, settings, id=name) for name, settings in LEARNERS.items()] + [
    pytest.param(model, LEARNERS["sparse, fixed threshold, SMGR"], id=name) for name, model in MODELS.items()
]
laws = pytest.mark.parametrize(("model", "settings"), CASES)


def dtype_on(device: str) -> torch.dtype:
    return torch.float32 if device == "mps" else torch.float64  # which MPS does not have


def rounding(device: str) -> dict[str, float]:
    return {"rtol": 1e-2, "atol": 1e-3} if device == "mps" else {"rtol": 1e-6, "atol": 1e-9}


def batches(n: int, dtype: torch.dtype) -> list[Tensor]:
    """Noisy copies of one prototype of zeros and ones, later of another, and of a third."""
    rng = named_generator(0, "batches")
    prototypes = torch.rand(3, math.prod(SHAPE), generator=rng).round()
    flips = (torch.rand(n, B, math.prod(SHAPE), generator=rng) < 0.05).float()
    return [(prototypes[3 * t // n] - flips[t]).abs().to(dtype) for t in range(n)]


def make_learner(
    device: str,
    model: dict[str, Any],
    settings: dict[str, Any],
    dtype: torch.dtype = torch.float32,
    kind: type[Learner] = Learner,
) -> Any:
    """A learner whose start does not depend on the device."""
    rng, sizes = Rng.from_seed(0), {"n_z": 2, "encoder": (12,), "decoder": (10,)} | model
    network = MixtureVAE.from_config(ModelConfig(**sizes), SHAPE, rng.init)
    network.to(dtype).to(device)
    return kind(network, LearnerConfig(learning_rate=1e-2, **settings), rng)


@pytest.fixture
def autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine that uses autograd on the CPU too."""
    monkeypatch.setattr(learners, "engine_for", AutogradEngine)


def learnt(learner: Learner, n: int = N, first: int = 0) -> list[Event]:
    stream = batches(N, learner.model.dtype)[first : first + n]
    return [event for events in learner.learn(stream) for event in events]


def figures(event: Event) -> tuple[str, list[Any], list[float]]:
    """Kind, what must be equal, and what must be equal to rounding."""
    found = [each for value in vars(event).values() for each in (value if isinstance(value, tuple) else [value])]
    exact = [each for each in found if not isinstance(each, float | Tensor)]
    near = [each for each in found if isinstance(each, float)]
    return type(event).__name__, exact, near + [x for t in found if isinstance(t, Tensor) for x in t.flatten().tolist()]


def assert_same_events(here: list[Event], there: list[Event], device: str) -> None:
    kinds = [[figures(event)[:2] for event in events] for events in (here, there)]
    assert kinds[0] == kinds[1]
    near = [np.array([x for event in events for x in figures(event)[2]]) for events in (here, there)]
    np.testing.assert_allclose(near[1], near[0], **rounding(device))


def assert_same_parameters(here: nn.Module, there: nn.Module, device: str) -> None:
    for name, parameter in there.state_dict().items():
        torch.testing.assert_close(parameter.cpu(), here.state_dict()[name].cpu(), **rounding(device))


# -- the law ----------------------------------------------------------------------------------------------------------


@on_devices
@laws
@pytest.mark.usefixtures("autograd")
def test_the_same_is_learnt_on_every_device(device, model, settings):
    here, there = (make_learner(each, model, settings, dtype_on(device)) for each in ("cpu", device))
    events = learnt(here)
    assert_same_events(events, learnt(there), device)
    assert_same_parameters(here.model, there.model, device)
    assert {parameter.device.type for parameter in there.model.parameters()} == {device}
    born = [event for event in events if isinstance(event, ComponentBorn)]
    assert len(born) == here.model.K - 1
    assert bool(born) is (settings["growth"] is not None)


@on_devices
def test_with_labels_the_same_is_learnt_on_every_device(device):
    found = []
    for each in ("cpu", device):
        learner = make_learner(each, {}, {"growth": None, "memory": SMGR}, dtype_on(device), LabelledLearner)
        stream = [(x, torch.arange(B) % (1 + t // 10)) for t, x in enumerate(batches(N, learner.model.dtype))]
        found.append([event for events in learner.learn(stream) for event in events])
        assert learner.model.K == 3
    assert_same_events(*found, device)


# -- between the devices ----------------------------------------------------------------------------------------------


Taken = tuple[list[Event], Traffic]


def taken(learner: Learner) -> Iterator[Taken]:
    """What each step brought about, and what it moved between the devices."""
    for x in batches(N, learner.model.dtype):
        for rehearsed in (False, True):
            if not rehearsed or learner.rehearsal_due:
                with Traffic() as traffic:
                    events = learner.rehearse() if rehearsed else learner.observe(x)
                yield events, traffic


def has_birth(events: list[Event]) -> bool:
    return any(isinstance(event, ComponentBorn | BirthRefused) for event in events)


@on_devices
@laws
def test_a_step_waits_for_the_device_three_times_at_most(device, model, settings):
    steps = [*taken(make_learner(device, model, settings))]
    assert {events[-1].rehearsed for events, _ in steps if not has_birth(events)} == {False, bool(settings["memory"])}
    assert all(1 <= len(traffic.waits) <= MOST_WAITS for events, traffic in steps if not has_birth(events))
    assert all(torch.float64 not in traffic.dtypes for _, traffic in steps)  # MPS does not have it
    if device != "mps":  # where a copy to the device is safe only if the host waits
        assert all(traffic.sent and not traffic.awaited for _, traffic in steps)


@pytest.mark.parametrize("case", ["sparse, fixed threshold, SMGR", "exact, MGR", "importance-weighted, MGR"])
def test_the_page_on_devices_says_what_a_step_moves(case):
    page, settings = (ROOT / "docs" / "devices.md").read_text(), LEARNERS[case]
    bound = "exact" if settings.get("tau") == 0.0 else "sparse"
    rehearsed = "rehearsed, labelled" if settings["memory"].labelled else f"rehearsed, {bound} bound"
    for events, traffic in taken(make_learner("elsewhere", {}, settings)):
        if has_birth(events):
            continue
        name = rehearsed if events[-1].rehearsed else f"real, {bound} bound"
        joined = events[-1].n_poor > 0  # their places in the batch go to the device
        assert f"| {name} | {len(traffic.waits)} | {len(traffic.sent) - joined} |" in page


@on_devices
def test_a_resumed_learner_waits_no_more_often(device):
    first, resumed = (make_learner(device, {}, {"growth": None, "memory": MGR}) for _ in range(2))
    learnt(first, 12)
    Checkpoint.of(to_bytes(first, {}), "it").restore(resumed)
    with Traffic() as traffic:
        resumed.observe(batches(N, resumed.model.dtype)[12])
    assert len(traffic.waits) <= MOST_WAITS


@pytest.mark.parametrize(
    ("crossing", "waits"),
    [
        (lambda x: x.cpu(), 1),
        (lambda x: x.tolist(), 1),
        (lambda x: float(x.sum()), 1),
        (lambda x: bool((x > 0).any()), 1),
        (lambda x: torch.zeros(3).copy_(x), 1),
        (lambda x: (x > 0).nonzero(), 1),
        (lambda x: x[x > 0], 1),
        (lambda x: x.unique(), 1),
        (lambda x: torch.equal(x, x), 1),
        (lambda x: x[x.long()] + 1, 0),
        (lambda x: x.copy_(torch.ones(3)), 0),
        (lambda x: torch.ones(3).nonzero(), 0),
    ],
)
def test_whatever_the_host_waits_for_is_counted(crossing, waits):
    x = torch.tensor([0.0, 1.0, 2.0]).to(ELSEWHERE)
    with Traffic() as traffic:
        crossing(x)
    assert len(traffic.waits) == waits


def test_waits_within_backward_are_counted():
    x = torch.ones(3).to(ELSEWHERE).requires_grad_()
    y = x.exp()
    y.register_hook(lambda g: g * float(g.sum()))
    with Traffic() as traffic:
        y.sum().backward()
    assert traffic.waits == ["aten::_local_scalar_dense"]


@pytest.mark.parametrize(
    "forgotten",
    [
        lambda x: x.numpy(),
        lambda x: np.asarray(x),
        lambda x: x + torch.ones(3),
        lambda x: torch.cat([x, torch.ones(1)]),
        lambda x: x[torch.tensor([0, 2])],
        lambda x: x.index_select(0, torch.tensor([0])),
        lambda x: torch.ones(3).add_(x),
        lambda x: nn.Linear(3, 2)(x),
        lambda x: torch.rand(3, device=x.device),
        lambda x: torch.randn_like(x),
        lambda x: x.bernoulli(generator=torch.Generator()),
    ],
)
def test_elsewhere_refuses_what_a_gpu_refuses_and_draws_of_its_own(forgotten):
    with pytest.raises((RuntimeError, TypeError), match=r"both devices|to numpy|draws elsewhere"):
        forgotten(torch.tensor([0.0, 1.0, 2.0]).to(ELSEWHERE))


# -- what a model says ------------------------------------------------------------------------------------------------


@pytest.fixture
def learners_here_and_there() -> Callable[..., tuple[Learner, Learner]]:
    """A learner with several components on the CPU, and its like on a device."""

    def make(device: str, model: dict[str, Any]) -> tuple[Learner, Learner]:
        here, there = (
            make_learner(each, {"K": 3} | model, {"growth": None, "memory": None}, dtype_on(device))
            for each in ("cpu", device)
        )
        return here, there

    return make


SAYS: dict[str, Callable[[MixtureVAE, Tensor], Tensor]] = {
    "posterior": posterior,
    "components": components,
    "embed": embed,
    "embed, sampled": lambda model, x: embed(model, x, named_generator(0, "z")),
    "bounds": lambda model, x: bounds(model, x, named_generator(0, "z")),
    "bounds, sparse": lambda model, x: bounds(model, x, named_generator(0, "z"), tau=0.5),
    "mean_bounds": mean_bounds,
    "reconstruct": reconstruct,
    "sample": lambda model, x: model.sample(torch.arange(3), Emission.SAMPLE, named_generator(0, "x")),
    "rounded": lambda model, x: model.sample(torch.arange(3), Emission.THRESHOLD, named_generator(0, "x")),
}


@on_devices
@pytest.mark.parametrize("model", [{}, *MODELS.values()], ids=["mlp", *MODELS])
@pytest.mark.parametrize("says", SAYS.values(), ids=SAYS)
def test_a_model_says_the_same_on_every_device_of_rows_on_any(device, model, says, learners_here_and_there):
    here, there = learners_here_and_there(device, model)
    x = batches(1, here.model.dtype)[0]
    expected = says(here.model, x)
    for rows in (x, x.to(device)):
        said = says(there.model, rows)
        assert said.device.type == device
        torch.testing.assert_close(said.cpu(), expected, **rounding(device))


@on_devices
def test_the_scores_are_the_same_on_every_device(device, learners_here_and_there):
    x, labels = torch.cat(batches(6, dtype_on(device))), torch.arange(6).repeat_interleave(B) // 2
    source = Source("prototypes", Split(x, labels), Split(x, labels), ("a", "b", "c"), SHAPE)
    found = []
    for learner in learners_here_and_there(device, {}):
        system, rng = LabelledSystem(learner), named_generator(0, "scores")
        learner.component_of = {0: 1, 2: 0}
        seen = view(system, x, rng)
        arrays = [seen.z, seen.y, seen.generated, seen.centres, system.class_probabilities(x, 3)]
        found.append((final_scores(system, source, rng, sampled_knn=True), [each.numpy() for each in arrays]))
    (here, shown), (there, shown_there) = found
    assert there.pop("bound") == pytest.approx(here.pop("bound"), rel=rounding(device)["rtol"])
    assert here == there
    for array, other in zip(shown, shown_there, strict=True):
        np.testing.assert_allclose(other, array, **rounding(device))


# -- keeping ----------------------------------------------------------------------------------------------------------


@on_devices
@pytest.mark.parametrize("settings", [*LEARNERS.values()][:3], ids=[*LEARNERS][:3])
def test_a_learner_moves_between_devices_at_any_step(device, settings):
    kept = make_learner("cpu", {}, settings, dtype_on(device))
    events = learnt(kept)
    for first, then in ((device, device), ("cpu", device), (device, "cpu")):
        learner = make_learner(first, {}, settings, dtype_on(device))
        before = learnt(learner, 14)
        moved = make_learner(then, {}, settings, dtype_on(device))
        Checkpoint.of(to_bytes(learner, {}), "it").restore(moved)
        assert {parameter.device.type for parameter in moved.model.parameters()} == {torch.device(then).type}
        assert_same_events(events, before + learnt(moved, first=14), device)
        assert_same_parameters(kept.model, moved.model, device)


@on_devices
def test_on_one_device_a_resumed_learner_goes_on_bit_for_bit(device):
    settings = LEARNERS["exact, MGR"]
    kept, learner, resumed = (make_learner(device, {}, settings) for _ in range(3))
    events = learnt(kept)
    before = learnt(learner, 17)
    Checkpoint.of(to_bytes(learner, {}), "it").restore(resumed)
    assert [figures(e) for e in before + learnt(resumed, first=17)] == [figures(e) for e in events]


# -- the estimator ----------------------------------------------------------------------------------------------------


def make_curl(device: str = "cpu", **settings: Any) -> cq.CURL:
    how = {"likelihood": "bernoulli", "n_z": 2, "encoder": (12,), "decoder": (10,), "batch_size": B}
    how |= {"learning_rate": 1e-2, "growth": THRESHOLD, "memory": "snapshot", "random_state": 0, "device": device}
    return cq.CURL(**how | settings)


def outputs(curl: cq.CURL, X: Any) -> dict[str, np.ndarray]:
    names = ("predict", "predict_proba", "transform", "score_samples", "reconstruct")
    x, y = curl.sample(5, random_state=0)
    return {name: getattr(curl, name)(X) for name in names} | {"x": x, "y": y, "score": np.array(curl.score(X))}


def assert_same_outputs(curl: cq.CURL, X: Any, expected: dict[str, np.ndarray]) -> None:
    found = outputs(curl, X)
    for name, array in expected.items():
        assert type(found[name]) is np.ndarray
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-4, err_msg=name)


@on_devices
@pytest.mark.parametrize("network", [{}, {"encoder": "conv", "decoder": "conv"}], ids=["mlp", "conv"])
def test_curl_takes_rows_on_any_device_and_gives_arrays(device, network):
    X = torch.cat(batches(N, torch.float32)).view(-1, *SHAPE)
    here, there = make_curl(**network).partial_fit(X), make_curl(device, **network).partial_fit(X.to(device))
    assert here.n_components_ > 1
    assert [figures(e)[:2] for e in there.events_] == [figures(e)[:2] for e in here.events_]
    seen, expected = X[::10], outputs(here, X[::10])
    for rows in (seen.numpy(), seen, seen.to(device), [*seen.to(device)]):
        assert_same_outputs(there, rows, expected)
    assert_same_outputs(here, seen.to(device), expected)


@on_devices
def test_curl_fits_streams_and_networks_of_ones_own_on_a_device(device):
    X = torch.cat(batches(10, torch.float32)).to(device)
    told: list[Any] = []
    network = nn.Sequential(nn.Linear(16, 12), nn.Tanh())
    curl = make_curl(device, encoder=network, epochs=2, on_event=told.append).fit(X)
    curl.fit_stream((x, torch.zeros(B, device=device)) for x in X.split(B))
    assert curl.labels_.shape == (200,)
    assert {p.device.type for p in curl._core.learner.model.parameters()} == {device}
    assert next(network.parameters()).device == CPU  # a copy is trained
    assert told
    assert all(fact.d_new.numpy().shape[1:] == (16,) for fact in told if isinstance(fact, ComponentBorn))


@on_devices
def test_curl_takes_a_list_of_rows_on_a_device(device):
    X = torch.cat(batches(2, torch.float32))
    curl = make_curl(device).partial_fit(X)
    np.testing.assert_array_equal(curl.predict([*X.to(device)]), curl.predict(X))


@on_devices
def test_a_saved_curl_is_loaded_on_any_device(device, tmp_path):
    X = torch.cat(batches(N, torch.float32))
    curl = make_curl(device).partial_fit(X)
    curl.save(tmp_path / "model")
    for loaded in (
        cq.CURL.load(tmp_path / "model"),
        cq.CURL.load(tmp_path / "model", device="cpu"),
        pickle.loads(pickle.dumps(curl)),
        copy.deepcopy(curl),
    ):
        assert_same_outputs(loaded, X, outputs(curl, X))
    assert cq.CURL.load(tmp_path / "model")._core.learner.model.device.type == device
    make_curl().partial_fit(X).save(tmp_path / "here")
    moved = cq.CURL.load(tmp_path / "here", device=device).partial_fit(X)
    assert moved._core.learner.model.device.type == moved.get_params()["device"] == device


def test_auto_is_the_fastest_device_there_is():
    with offered():
        curl = cq.CURL(device="auto", random_state=0).partial_fit(torch.zeros(3, 2))
        assert isinstance(curl._core.learner.model.p_z_bias, Remote)
    if torch.accelerator.current_accelerator(check_available=True) is None:
        assert device_of("auto") == CPU


@pytest.mark.parametrize("name", ["nowhere", "cuda:99", "cpu:x", "meta", ""])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(ConfigError, match=f"There is no device '{name}' here .*Choose cpu or auto"):
        cq.CURL(device=name).partial_fit(np.zeros((3, 2)))


# -- runs and the command ---------------------------------------------------------------------------------------------

STEPS = 60
CONFIG = RunConfig(
    dataset="digits",
    steps=STEPS,
    batch_size=B,
    system=Curl(
        model=ModelConfig(n_z=4, encoder=(24,), decoder=(24,)),
        learner=LearnerConfig(
            learning_rate=3e-3, growth=Threshold(c_new=-38.0, n_new=30, burn_in=10, wait=5), memory=SMGR
        ),
    ),
    evaluate_every=20,
    checkpoint_every=20,
)


@pytest.fixture
def go(tmp_path: Path) -> Callable[..., RunDirectory]:
    """A run on a device, to its end or until a step."""

    def call(name: str, device: str, until: int = STEPS) -> RunDirectory:
        directory = RunDirectory.create(tmp_path / name, CONFIG.to_json(), environment(1, device))
        run = Run(CONFIG, cq.load("digits"), directory, device_of(device))
        assert [*run.events(stop=lambda: run.system.t >= until)]
        return directory

    return call


def assert_same_run(here: RunDirectory, there: RunDirectory) -> None:
    """The same events, and the same figures to the rounding of float32."""
    for name in ("events", "metrics"):
        lines, others = here.lines(name), there.lines(name)
        assert len(lines) == len(others)
        for line, other in zip(lines, others, strict=True):
            assert {k: v for k, v in other.items() if exact(v)} == {k: v for k, v in line.items() if exact(v)}
    assert len(here.lines("metrics")) == 3
    assert there.read("result")["bound"] == pytest.approx(here.read("result")["bound"], rel=1e-3)
    assert there.read("result")["K"] == here.read("result")["K"] > 1
    np.testing.assert_array_equal(there.birth(1), here.birth(1))


def exact(value: object) -> bool:
    return isinstance(value, int | str)


@on_devices
def test_a_run_on_a_device_is_that_on_the_cpu_wherever_it_is_resumed(device, go, command):
    here = go("here", "cpu")
    assert_same_run(here, go("there", device))
    for number, options in enumerate(([], ["--device", "cpu"])):
        resumed = go(f"resumed {number}", device, until=31)
        answer = command("train", "--resume", resumed.path, *options)
        assert answer.code == 0, answer.err
        assert ("other device" in answer.err + answer.out) is bool(options)
        assert_same_run(here, resumed)
    resumed = go("moved", "cpu", until=31)
    assert command("train", "--resume", resumed.path, "--device", device).code == 0
    assert latest(resumed.read("environment"))["device"].startswith(device)
    assert_same_run(here, resumed)


@on_devices
def test_the_commands_learn_on_the_device_that_is_asked_for(device, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32))
    for line in (
        ("train", "--preset", "digits", "--steps", 20, "--out", "run", "--device", device),
        ("fit", "rows.npy", "--out", "model", "--device", device),
        ("embed", "model", "rows.npy", "--out", "z.npy"),
    ):
        with Traffic() as traffic:
            answer = command(*line)
        assert answer.code == 0, answer.err
        assert traffic.sent
    assert np.load("z.npy").shape == (200, 16)


@pytest.mark.parametrize("line", [("train", "--preset", "digits"), ("fit", "rows.npy")])
def test_the_commands_refuse_a_device_that_is_not_there_and_leave_nothing_behind(line, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", np.zeros((200, 3), np.float32))
    answer = command(*line, "--out", "made", "--device", "nowhere")
    assert answer.code == 1
    assert "There is no device 'nowhere' here" in answer.err
    assert len(answer.err.strip().splitlines()) <= 3
    assert not Path("made").exists()
