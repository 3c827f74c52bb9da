import copy
import inspect
from collections.abc import Callable, Container
from typing import get_type_hints

import pytest
import torch
from torch import Tensor, nn

from curlicue.config import (
    AtChange,
    BeforeBirth,
    Counts,
    Emission,
    Every,
    ExpansionConfig,
    LearnerConfig,
    Never,
    ReplayConfig,
    Tuned,
)
from curlicue.learn.events import BirthRefused, ComponentBorn, Event, SnapshotTaken, StepTaken
from curlicue.learn.learner import Learner, Stream
from curlicue.model.ascent import Ascent
from curlicue.model.elbo import elbo, elbo_given
from curlicue.model.likelihood import Bernoulli
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import Rng, named_generator

B = 4  # samples in a batch
EVERYTHING_IS_POOR, NOTHING_IS_POOR = 1e6, -1e6


def expansion(**settings: object) -> ExpansionConfig:
    """Each eligible step brings a birth, unless the settings say otherwise."""
    quick = {"c_new": EVERYTHING_IS_POOR, "n_new": 1, "burn_in": 0, "wait": 0, "passes": 1}
    return ExpansionConfig(**quick | settings)


@pytest.fixture
def stream(make_batch) -> Stream:
    """Greys: no thresholded dream could be taken for one of them."""
    return lambda t: make_batch(B, seed=t, grey=True)


def of_type(kind: type, events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


def births(learner: Learner, stream: Stream, steps: int) -> list[ComponentBorn]:
    return of_type(ComponentBorn, list(learner.learn(stream, steps)))


def state_of(model: MixtureVAE) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def facts(events: list[Event]) -> list[tuple[object, ...]]:
    return [
        (type(event), *(v.tolist() if isinstance(v, Tensor) else v for v in vars(event).values())) for event in events
    ]


# -- no labels -----------------------------------------------------------------------------------------------------


def test_nothing_but_x_can_be_observed():
    assert list(inspect.signature(Learner.observe).parameters) == ["self", "x"]
    assert get_type_hints(Learner.observe)["x"] is Tensor
    assert Stream == Callable[[int], Tensor]


# -- when a component is born ----------------------------------------------------------------------------------------


def test_nobody_is_born_in_the_burn_in(make_learner, stream):
    learner = make_learner(expansion=expansion(burn_in=7))
    assert [birth.t for birth in births(learner, stream, 9)] == [8, 9]  # steps taken by then


@pytest.mark.parametrize("wait", [0, 1, 3])
def test_nobody_is_born_for_so_many_real_steps_after_a_birth(make_learner, stream, wait):
    learner = make_learner(expansion=expansion(wait=wait))
    assert [birth.t for birth in births(learner, stream, 3 * (wait + 1))] == [1, wait + 2, 2 * (wait + 1) + 1]


def test_rehearsed_steps_do_not_shorten_the_wait(make_learner, stream):
    learner = make_learner(expansion=expansion(wait=3), replay=ReplayConfig(snapshots=BeforeBirth()))
    events = list(learner.learn(stream, 20))
    assert [birth.t for birth in of_type(ComponentBorn, events)] == [1, 9, 17]
    real_between = [e.t for e in of_type(StepTaken, events) if not e.rehearsed and 0 < e.t < 8]
    assert real_between == [2, 4, 6]


@pytest.mark.parametrize(("n_new", "steps_to_fill"), [(1, 1), (B, 1), (B + 1, 2), (3 * B, 3)])
def test_a_birth_takes_as_many_poor_samples_as_the_settings_say(make_learner, stream, n_new, steps_to_fill):
    learner = make_learner(expansion=expansion(n_new=n_new, burn_in=2))
    birth = births(learner, stream, 2 + steps_to_fill)[0]
    assert birth.t == 2 + steps_to_fill
    assert len(birth.d_new) == steps_to_fill * B


def test_nobody_is_born_once_the_cap_is_reached(make_learner, stream):
    learner = make_learner(expansion=expansion(max_components=3))
    assert [birth.K for birth in births(learner, stream, 10)] == [2, 3]
    assert learner.model.K == 3


def test_a_d_new_that_is_full_at_the_cap_is_emptied_and_told(make_learner, stream):
    learner = make_learner(expansion=expansion(max_components=1, wait=2))
    refused = of_type(BirthRefused, list(learner.learn(stream, 10)))
    assert [(event.t, event.K, len(event.d_new)) for event in refused] == [(1, 1, B), (4, 1, B), (7, 1, B), (10, 1, B)]
    assert torch.equal(refused[1].d_new, stream(3))
    assert len(learner.d_new.samples) == 0


def test_nobody_is_born_while_all_is_well_explained_or_without_expansion(make_learner, stream):
    assert births(make_learner(expansion=expansion(c_new=NOTHING_IS_POOR)), stream, 10) == []
    assert births(make_learner(expansion=None), stream, 10) == []


@pytest.mark.parametrize("tau", [None, 1.0])
def test_samples_join_d_new_by_the_bound_of_that_very_training_pass(make_learner, make_batch, tau):
    x = make_batch(50, grey=True)
    learner = make_learner(K=3, tau=tau, expansion=expansion(c_new=-4.5, n_new=1000))
    rng = torch.Generator().set_state(learner.rng.latent.get_state())
    poor = elbo(learner.model, x, rng, tau=tau).bound < -4.5
    assert 5 < poor.sum() < 45
    (step,) = learner.observe(x)
    assert step.n_poor == poor.sum()
    assert torch.equal(learner.d_new.empty(), x[poor])


def test_d_new_is_the_real_samples_that_joined_since_the_last_birth_and_then_empty(make_learner, stream):
    learner = make_learner(K=2, expansion=expansion(n_new=3 * B, wait=2), replay=ReplayConfig(snapshots=BeforeBirth()))
    shown: dict[int, Tensor] = {}

    def recorded(t: int) -> Tensor:
        shown[t] = stream(t)
        return shown[t]

    joined: list[int] = []
    n_births = 0
    for event in learner.learn(recorded, 40):
        match event:
            case StepTaken(rehearsed=True):
                assert event.n_poor == 0
            case StepTaken(n_poor=n) if n:
                joined.append(event.t)
            case ComponentBorn(d_new=d_new):
                assert torch.equal(d_new, torch.cat([shown[t] for t in joined]))
                assert len(learner.d_new.samples) == 0
                joined, n_births = [], n_births + 1
    assert n_births > 2


# -- how a component is born ---------------------------------------------------------------------------------------


def test_the_parent_has_the_greatest_summed_posterior_over_d_new_just_before_the_birth(make_learner, stream):
    parents = []
    for seed in range(6):
        learner = make_learner(
            seed, K=4, expansion=expansion(n_new=2 * B, passes=0), replay=ReplayConfig(snapshots=BeforeBirth())
        )
        (birth,) = births(learner, stream, 2)
        before = learner.snapshot.model
        used = before.log_q_y(before.encode(birth.d_new)).exp().sum(0)
        assert birth.parent == used.argmax()
        assert birth.component == before.K == birth.K - 1
        for head in learner.model.heads.values():  # not fitted, for want of passes
            assert torch.equal(head[birth.component], head[birth.parent])
        parents.append(birth.parent)
    assert len(set(parents)) > 1


class Recorder(Learner):
    """A learner that writes down what it is fitted to."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner.model, learner.config, learner.rng)
        self.given: list[tuple[Tensor, Tensor]] = []
        self.climbed: list[Ascent] = []

    def elbo_given(self, x: Tensor, y: Tensor) -> Ascent:
        self.given.append((x, y))
        return super().elbo_given(x, y)

    def climb(self, ascent: Ascent, only: Container[str] | None = None) -> None:
        self.climbed.append(ascent)
        super().climb(ascent, only)


@pytest.mark.parametrize("passes", [0, 1, 3])
@pytest.mark.parametrize("n_d_new", [B, 2 * B + 3, 3 * B])
def test_a_newborn_is_fitted_to_the_last_full_batches_of_d_new_with_its_own_label(
    make_learner, make_batch, passes, n_d_new
):
    learner = Recorder(make_learner(K=2, expansion=expansion()))
    learner.batch_size = B
    d_new = make_batch(n_d_new)
    newborn = learner.grow(0)
    learner.fit(newborn, d_new, passes, Tuned.ALL)
    n_batches = n_d_new // B
    assert len(learner.climbed) == len(learner.given) == passes * n_batches
    for i, (x, y) in enumerate(learner.given):
        start = n_d_new % B + i % n_batches * B
        assert torch.equal(x, d_new[start : start + B])
        assert torch.equal(y, torch.full((B,), newborn))


def test_a_birth_climbs_so_many_passes_over_d_new_besides_the_real_step(make_learner, stream):
    learner = Recorder(make_learner(expansion=expansion(n_new=2 * B + 1, passes=5)))
    births_seen = births(learner, stream, 3)
    assert [len(birth.d_new) for birth in births_seen] == [3 * B]
    assert len(learner.climbed) == 3 + 5 * 3


def test_a_d_new_smaller_than_a_batch_is_fitted_whole(make_learner, make_batch):
    learner = Recorder(make_learner(K=2, expansion=expansion()))
    learner.batch_size = 50
    learner.fit(learner.grow(0), make_batch(7), 2, Tuned.ALL)
    assert [len(x) for x, _ in learner.given] == [7, 7]


@pytest.mark.parametrize("tuned", list(Tuned))
def test_fitting_tunes_all_parameters_or_the_heads_alone(make_learner, stream, make_batch, tuned):
    learner = make_learner(K=2, expansion=expansion(c_new=NOTHING_IS_POOR))
    list(learner.learn(stream, 5))  # so that Adam's moments could carry shared parameters on
    newborn = learner.grow(1)
    before = state_of(learner.model)
    learner.fit(newborn, make_batch(2 * B), 3, tuned)
    for name, value in learner.model.state_dict().items():
        fixed = tuned is Tuned.HEADS and not name.startswith("heads.")
        assert torch.equal(value, before[name]) == fixed, name


@pytest.mark.parametrize("tuned", list(Tuned))
def test_fitting_raises_the_bound_of_d_new_under_the_newborns_label(make_learner, stream, tuned):
    learner = make_learner(K=2, learning_rate=0.01, expansion=expansion(n_new=10 * B, passes=20, tuned=tuned, wait=50))
    (birth,) = births(learner, stream, 15)
    assert birth.bound_after > birth.bound_before + 0.1


def test_a_birth_tells_the_bound_of_the_bare_copy_and_of_the_fitted_newborn(make_learner, stream):
    learner = make_learner(
        K=2,
        learning_rate=0.02,
        expansion=expansion(n_new=100 * B, passes=5),
        replay=ReplayConfig(snapshots=BeforeBirth()),
    )
    (birth,) = births(learner, stream, 100)
    bare_copy = learner.snapshot.model
    bare_copy.grow(birth.parent)
    y = torch.full((100 * B,), birth.component)
    for told, model in ((birth.bound_before, bare_copy), (birth.bound_after, learner.model)):
        bound = elbo_given(model, birth.d_new, y, named_generator(0, "z")).bound
        assert told == pytest.approx(bound.mean().item(), abs=4.5 * (2 * bound.var() / len(bound)).sqrt().item())


# -- snapshots -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replay", [None, ReplayConfig(snapshots=Never())])
def test_without_snapshots_nothing_is_rehearsed(make_learner, stream, replay):
    events = list(make_learner(expansion=expansion(wait=2), replay=replay).learn(stream, 12))
    assert of_type(SnapshotTaken, events) == []
    assert not any(step.rehearsed for step in of_type(StepTaken, events))


@pytest.mark.parametrize("n", [2, 4, 5, 7])
def test_periodic_snapshots_are_taken_each_time_so_many_steps_have_passed(make_learner, stream, n):
    learner = make_learner(replay=ReplayConfig(snapshots=Every(n)))
    taken = [event.t for event in of_type(SnapshotTaken, list(learner.learn(stream, 30)))]
    # once replay has begun at step n every other step is real: n, n + 2, …; a snapshot waits for the next of these
    assert taken == [m for k in range(1, 30) if (m := k * n + (k - 1) * n % 2) < 30]


def test_a_periodic_snapshot_is_the_model_and_the_counts_before_its_step(make_learner, stream):
    learner = make_learner(K=3, replay=ReplayConfig(snapshots=Every(6), counts=Counts.SEEN))
    n_taken = 0
    while learner.t < 20:
        before, counts = state_of(learner.model), learner.counts.clone()
        if of_type(SnapshotTaken, learner.advance(stream)):
            n_taken += 1
            for name, value in learner.snapshot.model.state_dict().items():
                assert torch.equal(value, before[name])
            torch.testing.assert_close(learner.snapshot.pi, counts / counts.sum())
    assert n_taken == 3


def test_a_dynamic_snapshot_is_the_model_just_before_each_birth(make_learner, stream):
    learner = make_learner(K=2, expansion=expansion(wait=2, passes=0), replay=ReplayConfig(snapshots=BeforeBirth()))
    n_births = 0
    while learner.t < 20:
        events = learner.advance(stream)
        kinds = [type(event) for event in events]
        assert kinds in ([StepTaken], [StepTaken, SnapshotTaken, ComponentBorn])
        if len(events) == 3:
            n_births += 1
            _, snapshot, birth = events
            assert snapshot.K == learner.snapshot.model.K == birth.K - 1
            for name, value in learner.snapshot.model.state_dict().items():  # nothing was fitted since
                now = learner.model.state_dict()[name]
                assert torch.equal(value, now[:-1] if name.startswith("heads.") else now)
    assert n_births > 2


def test_when_the_stream_changes_the_model_is_remembered_as_it_was_before(make_learner, stream, monkeypatch):
    learner = make_learner(expansion=None, replay=ReplayConfig(snapshots=AtChange()))
    monkeypatch.setattr(learner.usage, "update", lambda q_y: learner.t == 3)
    list(learner.learn(stream, 3))
    before = state_of(learner.model)
    assert [type(event) for event in learner.learn(stream, 5)] == [SnapshotTaken, StepTaken, StepTaken]
    for name, value in learner.snapshot.model.state_dict().items():
        assert torch.equal(value, before[name])
    assert learner.snapshot_t == 3


def test_dynamic_snapshots_are_taken_at_births_only(make_learner, stream):
    learner = make_learner(expansion=expansion(c_new=NOTHING_IS_POOR), replay=ReplayConfig(snapshots=BeforeBirth()))
    assert {type(event) for event in learner.learn(stream, 12)} == {StepTaken}
    assert learner.snapshot is None


@pytest.mark.parametrize(("snapshots", "first_rehearsed"), [(Every(4), 5), (Every(5), 6), (BeforeBirth(), 7)])
def test_from_the_first_snapshot_on_real_and_rehearsed_steps_alternate(
    make_learner, stream, snapshots, first_rehearsed
):
    learner = make_learner(expansion=expansion(burn_in=6, wait=3), replay=ReplayConfig(snapshots=snapshots))
    rehearsed = [step.rehearsed for step in of_type(StepTaken, list(learner.learn(stream, 31)))]
    assert rehearsed[:first_rehearsed] == [False] * first_rehearsed
    assert rehearsed[first_rehearsed:] == [i % 2 == 0 for i in range(31 - first_rehearsed)]


@pytest.mark.parametrize("steps", [1, 13, 14])
def test_exactly_so_many_steps_are_taken_real_and_rehearsed_together(make_learner, stream, steps):
    learner = make_learner(expansion=expansion(wait=3), replay=ReplayConfig(snapshots=BeforeBirth()))
    taken = of_type(StepTaken, list(learner.learn(stream, steps)))
    assert [step.t for step in taken] == list(range(steps))
    assert list(learner.learn(stream, steps)) == []
    assert len(of_type(StepTaken, list(learner.learn(stream, steps + 5)))) == 5


def test_the_stream_is_asked_for_the_real_steps_only(make_learner, stream):
    learner, asked = make_learner(replay=ReplayConfig(snapshots=Every(4))), []

    def asking(t: int) -> Tensor:
        asked.append(t)
        return stream(t)

    events = list(learner.learn(asking, 20))
    assert asked == [step.t for step in of_type(StepTaken, events) if not step.rehearsed]


# -- π ---------------------------------------------------------------------------------------------------------------


def test_without_moving_pi_is_the_summed_posterior_of_all_real_samples_so_far(make_learner, stream):
    learner = make_learner(
        K=2, expansion=expansion(wait=4), replay=ReplayConfig(snapshots=BeforeBirth(), labelled=True)
    )
    used = torch.zeros(0, dtype=torch.float64)

    def watched(t: int) -> Tensor:
        nonlocal used
        x = stream(t)
        q_y = learner.model.log_q_y(learner.model.encode(x)).exp().detach().double()  # as this step will see it
        used = torch.cat([used, torch.zeros(learner.model.K - len(used))]) + q_y.sum(0)
        return x

    for event in learner.learn(watched, 40):
        if isinstance(event, SnapshotTaken):
            torch.testing.assert_close(learner.snapshot.pi, used / used.sum())
    assert learner.model.K > 4
    torch.testing.assert_close(learner.counts[: len(used)], used)
    assert learner.counts.sum() == pytest.approx(B * 40 / 2, abs=B)  # one for each real sample


# -- chance ----------------------------------------------------------------------------------------------------------

BUSY = {
    "K": 2,
    "tau": 0.3,
    "expansion": expansion(n_new=2 * B, wait=3),
    "replay": ReplayConfig(snapshots=BeforeBirth(), labelled=True),
}


def test_the_same_seed_brings_the_same_events_and_another_seed_others(make_learner, stream):
    first, again, other = (facts(list(make_learner(seed, **BUSY).learn(stream, 30))) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_what_others_draw_does_not_shift_what_a_learner_does(make_learner, stream):
    undisturbed = facts(list(make_learner(**BUSY).learn(stream, 30)))
    learner = make_learner(**BUSY)

    def drawing(t: int) -> Tensor:
        for rng in (learner.rng.data, learner.rng.init):
            torch.rand(7, generator=rng)
        torch.rand(3)
        return stream(t)

    with torch.random.fork_rng():
        assert facts(list(learner.learn(drawing, 30))) == undisturbed


def test_what_is_inferred_does_not_shift_what_is_dreamt(make_learner, make_batch):
    dreams = []
    for n in (1, 9):
        learner = make_learner(K=3, replay=ReplayConfig(snapshots=Every(2)))
        learner.take_snapshot()
        for _ in range(n):
            learner.elbo(make_batch())
        dreams.append(learner.snapshot.dream(20, Emission.SAMPLE, learner.rng.replay)[0])
    assert torch.equal(*dreams)


def test_learning_leaves_torchs_global_chance_alone(make_learner, stream):
    before = torch.get_rng_state()
    events = list(make_learner(**BUSY).learn(stream, 30))
    assert {type(event) for event in events} == {StepTaken, SnapshotTaken, ComponentBorn}
    assert torch.equal(torch.get_rng_state(), before)


# -- networks of your own --------------------------------------------------------------------------------------------


def convolutional(rng: Rng) -> MixtureVAE:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten())
        decoder = nn.Sequential(
            nn.Linear(2, 12), nn.ReLU(), nn.Unflatten(1, (3, 2, 2)), nn.ConvTranspose2d(3, 1, 3), nn.Flatten()
        )
    return MixtureVAE(encoder, decoder, Bernoulli(), n_x=16, n_z=2, K=1, rng=rng.init)


def test_any_pair_of_networks_learns_grows_and_rehearses():
    rng = Rng.from_seed(0)
    config = LearnerConfig(
        learning_rate=0.01,
        expansion=expansion(n_new=20, wait=20),
        replay=ReplayConfig(snapshots=BeforeBirth()),
    )
    learner = Learner(convolutional(rng), config, rng)
    x = (torch.arange(16) % 4 < 2).float().repeat(8, 1)  # [8, 16], all alike
    weights = copy.deepcopy(learner.model.state_dict())
    events = list(learner.learn(lambda t: x, 150))
    steps = of_type(StepTaken, events)
    real = [step.bound for step in steps if not step.rehearsed]
    assert real[-1] > real[0] + 2
    assert learner.model.K > 2
    assert any(step.rehearsed for step in steps)
    for name, value in learner.model.encoder.state_dict().items():
        assert not torch.equal(value, weights[f"encoder.{name}"])


# -- one small run, number by number ------------------------------------------------------------------------------


def test_a_seeded_run_gives_the_numbers_it_has_always_given(make_learner):
    """They stand here so that nobody changes what is computed without meaning to."""

    def stream(t: int) -> Tensor:
        """Three kinds of samples in turn, each a pattern of which some bits are flipped."""
        flipped = torch.rand(20, 6, generator=named_generator(t, "flips")) < 0.1
        pattern = torch.tensor([[1.0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1], [1, 0, 1, 0, 1, 0]])[t // 100]
        return torch.where(flipped, 1 - pattern, pattern)

    growth = ExpansionConfig(c_new=-4.5, n_new=30, burn_in=20, wait=10)
    replay = ReplayConfig(snapshots=BeforeBirth())
    learner = make_learner(learning_rate=0.02, expansion=growth, replay=replay)
    events = list(learner.learn(stream, 210))
    born = [(e.t, e.component, e.parent) for e in of_type(ComponentBorn, events)]
    assert born == [(36, 1, 0), (82, 2, 1), (106, 3, 2), (142, 4, 3), (202, 5, 1)]
    bounds = {e.t: e.bound for e in of_type(StepTaken, events)}
    expected = {0: -4.5781, 50: -2.2016, 99: -2.2661, 100: -2.4981, 150: -4.7804, 200: -4.6112}
    assert {t: bounds[t] for t in expected} == pytest.approx(expected, abs=2e-3)
