import copy
import gc
import inspect
from collections.abc import Container, Iterable
from functools import partial
from typing import Any, get_type_hints

import pytest
import torch
from torch import Generator, Tensor, nn

from curlicue.config.model import Emission
from curlicue.engines.protocol import Ascent, Engine
from curlicue.growth.protocol import Birth, Tuned
from curlicue.growth.threshold import Threshold
from curlicue.learn.events import BirthRefused, ComponentBorn, SnapshotTaken, StepTaken
from curlicue.learn.learner import Learner, LearnerConfig, closest_component
from curlicue.memory.snapshot import Counts, Snapshot
from curlicue.model.elbo import ElboTerms, elbo, elbo_given
from curlicue.model.likelihood import Bernoulli
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import Rng, named_generator
from learning import Stream, endless, facts, of_type, rehearsed, taught

B = 4  # samples in a batch
EVERYTHING_IS_POOR, NOTHING_IS_POOR = 1e6, -1e6
DYNAMIC = Snapshot(snapshots="dynamic", labelled=False)


def growing(**settings: Any) -> Threshold:
    """Each eligible step brings a birth, unless the settings say otherwise."""
    return Threshold(**{"c_new": EVERYTHING_IS_POOR, "n_new": 1, "burn_in": 0, "wait": 0, "passes": 1} | settings)


def every(steps: int, **settings: Any) -> Snapshot:
    return Snapshot(**{"snapshots": steps, "labelled": False} | settings)


@pytest.fixture
def stream(make_batch) -> Stream:
    """Greys: no thresholded sample could be taken for one of them."""
    return lambda t: make_batch(B, seed=t, grey=True)


def births(learner: Learner, stream: Stream, steps: int) -> list[ComponentBorn]:
    return of_type(ComponentBorn, taught(learner, stream, steps))


def state_of(model: MixtureVAE) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def twin(rng: Generator) -> Generator:
    """A generator that will draw what `rng` would, without drawing it."""
    return torch.Generator().set_state(rng.get_state())


def assert_tells_of(event: StepTaken, terms: ElboTerms) -> None:
    for name in ("bound", "log_p_x", "kl_z", "kl_y"):
        assert getattr(event, name) == pytest.approx(getattr(terms, name).mean().item(), rel=1e-5, abs=1e-6)
    assert event.q_y == pytest.approx(terms.q_y.mean(0).tolist())


class Recorder:
    """An engine that writes down what it climbs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.given: list[tuple[Tensor, Tensor]] = []
        self.climbed: list[tuple[Ascent, Container[str] | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def bound_given(self, x: Tensor, y: Tensor, *others: object) -> Ascent:
        self.given.append((x, y))
        return self.engine.bound_given(x, y, *others)

    def climb(self, ascent: Ascent, only: Container[str] | None = None) -> None:
        self.climbed.append((ascent, only))
        self.engine.climb(ascent, only)


def recorded(learner: Learner) -> Recorder:
    learner.engine = Recorder(learner.engine)
    return learner.engine


# -- no labels -----------------------------------------------------------------------------------------------------


def test_nothing_but_x_can_be_observed():
    assert list(inspect.signature(Learner.observe).parameters) == ["self", "x"]
    assert get_type_hints(Learner.observe)["x"] is Tensor
    assert get_type_hints(Learner.learn)["stream"] == Iterable[Tensor]


# -- a real step -----------------------------------------------------------------------------------------------------


def test_learning_raises_the_bound(make_learner, make_batch):
    learner, x = make_learner(K=3, learning_rate=0.01), make_batch(20)
    before = elbo(learner.model, x, named_generator(0, "z")).bound.mean()
    taught(learner, lambda t: x, 100)
    assert elbo(learner.model, x, named_generator(0, "z")).bound.mean() > before + 0.3


@pytest.mark.parametrize(("tau", "z_samples"), [(0.0, 1), (0.3, 1), (0.0, 4), (0.3, 4)])
def test_the_bound_that_training_sees_is_the_one_its_settings_name(make_learner, make_batch, tau, z_samples):
    learner, x = make_learner(K=5, tau=tau, z_samples=z_samples), make_batch()
    rng = twin(learner.rng.latent)
    terms = elbo(learner.model, x, rng, tau=tau, z_samples=z_samples)
    (event,) = learner.observe(x)
    assert_tells_of(event, terms)
    assert torch.equal(learner.rng.latent.get_state(), rng.get_state())  # the draws are the same


@pytest.mark.parametrize("z_samples", [1, 2])
def test_learning_is_torchs_adam_on_autograds_gradient_even_where_a_whole_batch_is_silent(
    make_learner, make_batch, z_samples
):
    learner = make_learner(K=3, learning_rate=0.01, z_samples=z_samples)
    model, latent = copy.deepcopy(learner.model), twin(learner.rng.latent)
    tensorflows = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "amsgrad": False}
    reference = torch.optim.Adam(model.parameters(), lr=0.01, **tensorflows)
    for t in range(12):
        x = torch.zeros(5, 6) if t % 3 == 2 else make_batch(seed=t)
        learner.observe(x)
        reference.zero_grad()
        (-elbo(model, x, latent, tau=learner.config.tau, z_samples=z_samples).bound.mean()).backward()
        reference.step()
    now = dict(learner.model.named_parameters())
    for name, value in model.named_parameters():
        torch.testing.assert_close(now[name].detach(), value.detach(), rtol=1e-4, atol=1e-5, msg=name)


def test_steps_are_told_in_the_order_of_time(make_learner, stream):
    steps = taught(make_learner(K=3), stream, 5)
    assert [(event.t, event.K, event.rehearsed, event.n_poor) for event in steps] == [
        (t, 3, False, 0) for t in range(5)
    ]


def test_a_stream_that_ends_ends_learning(make_learner, make_batch):
    learner = make_learner()
    assert len(list(learner.learn([make_batch(3)] * 7))) == 7
    assert list(learner.learn([])) == []


# -- when a component is born ----------------------------------------------------------------------------------------


def test_nobody_is_born_in_the_burn_in(make_learner, stream):
    learner = make_learner(growth=growing(burn_in=7))
    assert [birth.t for birth in births(learner, stream, 9)] == [8, 9]  # steps taken by then


@pytest.mark.parametrize("wait", [0, 1, 3])
def test_nobody_is_born_for_so_many_real_steps_after_a_birth(make_learner, stream, wait):
    learner = make_learner(growth=growing(wait=wait))
    assert [birth.t for birth in births(learner, stream, 3 * (wait + 1))] == [1, wait + 2, 2 * (wait + 1) + 1]


def test_rehearsed_steps_do_not_shorten_the_wait(make_learner, stream):
    learner = make_learner(growth=growing(wait=3), memory=DYNAMIC)
    events = taught(learner, stream, 20)
    assert [birth.t for birth in of_type(ComponentBorn, events)] == [1, 9, 17]
    real_between = [e.t for e in of_type(StepTaken, events) if not e.rehearsed and 0 < e.t < 8]
    assert real_between == [2, 4, 6]


@pytest.mark.parametrize(("n_new", "steps_to_fill"), [(1, 1), (B, 1), (B + 1, 2), (3 * B, 3)])
def test_a_birth_takes_as_many_poor_samples_as_the_settings_say(make_learner, stream, n_new, steps_to_fill):
    learner = make_learner(growth=growing(n_new=n_new, burn_in=2))
    birth = births(learner, stream, 2 + steps_to_fill)[0]
    assert birth.t == 2 + steps_to_fill
    assert len(birth.d_new) == steps_to_fill * B


def test_nobody_is_born_once_the_cap_is_reached(make_learner, stream):
    learner = make_learner(growth=growing(), max_components=3)
    assert [birth.K for birth in births(learner, stream, 10)] == [2, 3]
    assert learner.model.K == 3


def test_a_d_new_that_is_full_at_the_cap_is_emptied_and_told(make_learner, stream):
    learner = make_learner(growth=growing(wait=2), max_components=1)
    refused = of_type(BirthRefused, taught(learner, stream, 10))
    assert [(event.t, event.K, len(event.d_new)) for event in refused] == [(1, 1, B), (4, 1, B), (7, 1, B), (10, 1, B)]
    assert torch.equal(refused[1].d_new, stream(3))


def test_a_rule_of_growth_is_told_what_became_of_what_it_asked_for(make_learner, stream, monkeypatch):
    learner, told = make_learner(growth=growing(), max_components=3), []
    for name in ("born", "refused"):
        monkeypatch.setattr(learner.growth, name, partial(told.append, name))
    taught(learner, stream, 4)
    assert told == ["born", "born", "refused", "refused"]


def test_nobody_is_born_while_all_is_well_explained_or_without_a_rule_of_growth(make_learner, stream):
    assert births(make_learner(growth=growing(c_new=NOTHING_IS_POOR)), stream, 10) == []
    assert births(make_learner(growth=None), stream, 10) == []


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_samples_join_d_new_by_the_bound_of_that_very_training_pass(make_learner, make_batch, tau):
    x = make_batch(50, grey=True)
    learner = make_learner(K=3, tau=tau, growth=growing(c_new=-4.5))
    poor = elbo(learner.model, x, twin(learner.rng.latent), tau=tau).bound < -4.5
    assert 5 < poor.sum() < 45
    step, birth = learner.observe(x)
    assert step.n_poor == poor.sum()
    assert torch.equal(birth.d_new, x[poor])


def test_d_new_is_the_real_samples_that_joined_since_the_last_birth_and_then_empty(make_learner, stream):
    learner = make_learner(K=2, growth=growing(n_new=3 * B, wait=2), memory=DYNAMIC)
    joined: list[int] = []
    n_births = 0
    for event in taught(learner, stream, 40):
        match event:
            case StepTaken(rehearsed=True):
                assert event.n_poor == 0
            case StepTaken(n_poor=n) if n:
                joined.append(event.t)
            case ComponentBorn(d_new=d_new):
                assert torch.equal(d_new, torch.cat([stream(t) for t in joined]))
                joined, n_births = [], n_births + 1
    assert n_births > 2


# -- how a component is born ---------------------------------------------------------------------------------------


def test_the_parent_has_the_greatest_summed_posterior():
    model = MixtureVAE(nn.Identity(), nn.Linear(2, 3), Bernoulli(), n_x=3, n_z=2, K=3, rng=named_generator(0, "init"))
    with torch.no_grad():
        model.heads["q_y_weight"].copy_(torch.eye(3))  # q(y|x) = softmax(x)
    q_y = torch.tensor([[0.45, 0.35, 0.2], [0.45, 0.35, 0.2], [1e-4, 0.8, 0.1999], [0.5, 1e-6, 0.499999]])
    assert closest_component(model, q_y.log()) == 1  # the most votes has 0, the greatest product 2


def test_the_parent_has_the_greatest_summed_posterior_over_d_new_just_before_the_birth(make_learner, stream):
    parents = []
    for seed in range(6):
        learner = make_learner(seed, K=4, growth=growing(n_new=2 * B, passes=0), memory=DYNAMIC)
        (birth,) = births(learner, stream, 2)
        before = learner.memory.snapshot
        used = before.log_q_y(before.encode(birth.d_new)).exp().sum(0)
        assert birth.parent == used.argmax()
        assert birth.component == before.K == birth.K - 1
        for head in learner.model.heads.values():  # not fitted, for want of passes
            assert torch.equal(head[birth.component], head[birth.parent])
        parents.append(birth.parent)
    assert len(set(parents)) > 1


@pytest.mark.parametrize("passes", [0, 1, 3])
@pytest.mark.parametrize("n_d_new", [B, 2 * B + 3, 3 * B])
def test_a_newborn_is_fitted_to_the_last_full_batches_of_d_new_with_its_own_label(
    make_learner, make_batch, passes, n_d_new
):
    learner = make_learner(K=2, growth=growing())
    engine = recorded(learner)
    learner.batch_size = B
    d_new = make_batch(n_d_new)
    newborn = learner.grow(0)
    learner.fit(newborn, Birth(d_new, passes, Tuned.ALL))
    n_batches = n_d_new // B
    assert len(engine.climbed) == len(engine.given) == passes * n_batches
    for i, (x, y) in enumerate(engine.given):
        start = n_d_new % B + i % n_batches * B
        assert torch.equal(x, d_new[start : start + B])
        assert torch.equal(y, torch.full((B,), newborn))


def test_a_birth_climbs_so_many_passes_over_d_new_besides_the_real_step(make_learner, stream):
    learner = make_learner(growth=growing(n_new=2 * B + 1, passes=5))
    engine = recorded(learner)
    assert [len(birth.d_new) for birth in births(learner, stream, 3)] == [3 * B]
    assert len(engine.climbed) == 3 + 5 * 3


@pytest.mark.parametrize(("batch_size", "n", "sizes"), [(50, 7, [7]), (1, 100, [10] * 10), (1, 7, [1] * 7)])
def test_d_new_is_fitted_in_batches_of_the_stream_but_in_ten_at_most(make_learner, make_batch, batch_size, n, sizes):
    learner = make_learner(K=2, growth=growing())
    engine = recorded(learner)
    learner.batch_size = batch_size
    learner.fit(learner.grow(0), Birth(make_batch(n), 2, Tuned.ALL))
    assert [len(x) for x, _ in engine.given] == 2 * sizes


@pytest.mark.parametrize("tuned", list(Tuned))
def test_fitting_tunes_all_parameters_or_the_heads_alone(make_learner, stream, make_batch, tuned):
    learner = make_learner(K=2, growth=growing(c_new=NOTHING_IS_POOR))
    taught(learner, stream, 5)  # so that Adam's moments could carry shared parameters on
    newborn = learner.grow(1)
    before = state_of(learner.model)
    learner.fit(newborn, Birth(make_batch(2 * B), 3, tuned))
    for name, value in learner.model.state_dict().items():
        fixed = tuned is Tuned.HEADS and not name.startswith("heads.")
        assert torch.equal(value, before[name]) == fixed, name


@pytest.mark.parametrize("tuned", list(Tuned))
def test_fitting_raises_the_bound_of_d_new_under_the_newborns_label(make_learner, stream, tuned):
    rule = growing(n_new=10 * B, passes=20, tuned=tuned, wait=50)
    (birth,) = births(make_learner(K=2, learning_rate=0.01, growth=rule), stream, 15)
    assert birth.bound_after > birth.bound_before + 0.1


def test_a_birth_tells_the_bound_of_the_bare_copy_and_of_the_fitted_newborn(make_learner, stream):
    learner = make_learner(K=2, learning_rate=0.02, growth=growing(n_new=100 * B, passes=5), memory=DYNAMIC)
    (birth,) = births(learner, stream, 100)
    bare_copy = copy.deepcopy(learner.memory.snapshot)
    bare_copy.grow(birth.parent)
    y = torch.full((100 * B,), birth.component)
    for told, model in ((birth.bound_before, bare_copy), (birth.bound_after, learner.model)):
        bound = elbo_given(model, birth.d_new, y, named_generator(0, "z")).bound
        assert told == pytest.approx(bound.mean().item(), abs=4.5 * (2 * bound.var() / len(bound)).sqrt().item())


def test_a_newborn_stands_for_nothing_yet(make_learner, stream):
    learner = make_learner(K=2)
    taught(learner, stream, 3)
    before = learner.memory.counts().clone()
    learner.grow(1)
    assert torch.equal(learner.memory.counts(), torch.cat([before, torch.zeros(1)]))


def test_a_learner_may_grow_before_its_first_step_and_then_trains_the_newborn(make_learner, stream):
    learner = make_learner(K=2)
    learner.grow(0)
    before = state_of(learner.model)
    taught(learner, stream, 1)
    for name, head in learner.model.heads.items():
        assert all((head[k] != before[f"heads.{name}"][k]).any() for k in range(3))


# -- snapshots -------------------------------------------------------------------------------------------------------


def test_without_a_memory_nothing_is_rehearsed(make_learner, stream):
    events = taught(make_learner(growth=growing(wait=2), memory=None), stream, 12)
    assert of_type(SnapshotTaken, events) == []
    assert not any(rehearsed(events))


@pytest.mark.parametrize("n", [2, 4, 5, 7])
def test_periodic_snapshots_are_taken_each_time_so_many_steps_have_passed(make_learner, stream, n):
    taken = [event.t for event in of_type(SnapshotTaken, taught(make_learner(memory=every(n)), stream, 30))]
    # once replay has begun at step n every other step is real: n, n + 2, …; a snapshot waits for the next of these
    assert taken == [m for k in range(1, 30) if (m := k * n + (k - 1) * n % 2) < 30]


def test_a_periodic_snapshot_is_the_model_and_the_counts_before_its_step(make_learner, stream):
    learner = make_learner(K=3, memory=every(6, counts=Counts.SEEN))
    n_taken = 0
    while learner.t < 20:
        before, counts = state_of(learner.model), learner.memory.counts().clone()
        if of_type(SnapshotTaken, taught(learner, stream, learner.t + 1)):
            n_taken += 1
            for name, value in learner.memory.snapshot.state_dict().items():
                assert torch.equal(value, before[name])
            torch.testing.assert_close(learner.memory.pi, counts / counts.sum())
    assert n_taken == 3


def test_a_dynamic_snapshot_is_the_model_just_before_each_birth(make_learner, stream):
    learner = make_learner(K=2, growth=growing(wait=2, passes=0), memory=DYNAMIC)
    n_births = 0
    while learner.t < 20:
        events = taught(learner, stream, learner.t + 1)
        assert [type(event) for event in events] in ([StepTaken], [StepTaken, SnapshotTaken, ComponentBorn])
        if len(events) == 3:
            n_births += 1
            _, snapshot, birth = events
            assert snapshot.K == learner.memory.snapshot.K == birth.K - 1
            for name, value in learner.memory.snapshot.state_dict().items():  # nothing was fitted since
                now = learner.model.state_dict()[name]
                assert torch.equal(value, now[:-1] if name.startswith("heads.") else now)
    assert n_births > 2


def test_when_the_stream_changes_the_model_is_remembered_as_it_was_before(make_learner, stream, monkeypatch):
    learner = make_learner(memory=Snapshot(snapshots="change"))
    monkeypatch.setattr(learner.memory.change, "update", lambda q_y: learner.t == 3)
    taught(learner, stream, 3)
    before = state_of(learner.model)
    assert [type(event) for event in taught(learner, stream, 5)] == [SnapshotTaken, StepTaken, StepTaken]
    for name, value in learner.memory.snapshot.state_dict().items():
        assert torch.equal(value, before[name])
    assert learner.memory.taken_at == 3


def test_dynamic_snapshots_are_taken_at_births_only(make_learner, stream):
    learner = make_learner(growth=growing(c_new=NOTHING_IS_POOR), memory=DYNAMIC)
    assert {type(event) for event in taught(learner, stream, 12)} == {StepTaken}
    assert not learner.memory.ready


# -- real and rehearsed steps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("memory", "first_rehearsed"), [(every(4), 5), (every(5), 6), (DYNAMIC, 7)])
def test_from_the_first_snapshot_on_real_and_rehearsed_steps_alternate(make_learner, stream, memory, first_rehearsed):
    learner = make_learner(growth=growing(burn_in=6, wait=3), memory=memory)
    seen = rehearsed(taught(learner, stream, 31))
    assert seen[:first_rehearsed] == [False] * first_rehearsed
    assert seen[first_rehearsed:] == [i % 2 == 0 for i in range(31 - first_rehearsed)]


def test_learning_in_pieces_is_learning_in_one(make_learner, stream):
    """Wherever it is cut: a rehearsal that is due is the first step of the next piece."""
    whole = taught(make_learner(**BUSY), stream, 30)
    learner, parts = make_learner(**BUSY), []
    for t in range(1, 31):
        parts += taught(learner, stream, t)
    assert facts(parts) == facts(whole)


def test_the_stream_is_asked_for_the_real_steps_only(make_learner, stream):
    learner, asked = make_learner(memory=every(4)), []
    events = taught(learner, lambda t: (asked.append(t), stream(t))[1], 20)
    assert asked == [step.t for step in of_type(StepTaken, events) if not step.rehearsed]


def remembering(make_learner, x: Tensor, **memory: object) -> Learner:
    """A learner whose snapshot was taken a few steps ago."""
    learner = make_learner(K=4, learning_rate=0.05, tau=0.0, memory=Snapshot(**{"snapshots": "dynamic"} | memory))
    for t in range(6):
        learner.observe(x)
        if t == 2:
            learner.memory.before_birth(learner.t)
    return learner


@pytest.mark.parametrize("emission", list(Emission))
@pytest.mark.parametrize("labelled", [False, True])
def test_rehearsing_climbs_the_plain_bound_or_with_labels_that_of_the_component(
    make_learner, make_batch, labelled, emission
):
    learner = remembering(make_learner, make_batch(7), labelled=labelled, emission=emission)
    replay, latent = twin(learner.rng.replay), twin(learner.rng.latent)
    past = learner.memory.recall(7)
    learner.rng.replay.set_state(replay.get_state())
    terms = elbo_given(learner.model, past.x, past.y, latent) if labelled else elbo(learner.model, past.x, latent)
    before = state_of(learner.model)
    (event,) = learner.rehearse()
    assert_tells_of(event, terms)
    assert (event.t, event.K, event.rehearsed, event.n_poor) == (6, 4, True, 0)
    assert all(not torch.equal(value, before[name]) for name, value in learner.model.named_parameters())


def test_rehearsing_does_not_touch_the_snapshot(make_learner, make_batch):
    learner = remembering(make_learner, make_batch(7))
    before = state_of(learner.memory.snapshot)
    for _ in range(3):
        learner.rehearse()
    for name, value in learner.memory.snapshot.state_dict().items():
        assert torch.equal(value, before[name])


def test_real_batches_are_counted_and_rehearsed_ones_are_not(make_learner, make_batch):
    learner = remembering(make_learner, make_batch(7))
    before, x = learner.memory.counts().clone(), make_batch(5, seed=1)
    learner.rehearse()
    assert torch.equal(learner.memory.counts(), before)
    q_y = elbo(learner.model, x, named_generator(0, "z")).q_y
    learner.observe(x)
    torch.testing.assert_close(learner.memory.counts(), before + q_y.double().sum(0))


def test_the_counts_of_the_past_move_to_the_components_that_explain_what_is_rehearsed(make_learner, make_batch):
    learner = remembering(make_learner, make_batch(7), labelled=False)
    past, seen = learner.memory.usage.past.clone(), learner.memory.counts().clone()
    moved = torch.zeros(4, 4, dtype=torch.float64)
    for _ in range(9):
        replay = twin(learner.rng.replay)
        again = learner.memory.recall(7)
        learner.rng.replay.set_state(replay.get_state())
        moved.index_add_(0, again.y, elbo(learner.model, again.x, named_generator(0, "z")).q_y.double())
        learner.rehearse()
    assert (moved.sum(1) > 0).all()
    expected = seen - past + sum(past[j] * moved[j] / moved[j].sum() for j in range(4))
    torch.testing.assert_close(learner.memory.counts(), expected)
    learner.grow(1)
    learner.memory.before_birth(learner.t)
    torch.testing.assert_close(
        learner.memory.pi, torch.cat([expected / expected.sum(), torch.zeros(1)]), atol=1e-9, rtol=0
    )
    assert expected.sum() == pytest.approx(seen.sum())  # one for each real sample, as before
    assert (expected - seen).abs().max() > 0.01


def test_a_rehearsed_batch_is_as_large_as_the_largest_real_one_so_far(make_learner, make_batch):
    learner = remembering(make_learner, make_batch(7))
    engine = recorded(learner)
    for n in (11, 7):
        learner.observe(make_batch(n))
        learner.rehearse()
    assert [len(ascent.terms.kl_y) for ascent, _ in engine.climbed] == [11, 11, 7, 11]


# -- π ---------------------------------------------------------------------------------------------------------------


def test_without_moving_pi_is_the_summed_posterior_of_all_real_samples_so_far(make_learner, stream):
    learner = make_learner(K=2, growth=growing(wait=4), memory=Snapshot(snapshots="dynamic", labelled=True))
    used = torch.zeros(0, dtype=torch.float64)

    def watched(t: int) -> Tensor:
        nonlocal used
        x = stream(t)
        q_y = learner.model.log_q_y(learner.model.encode(x)).exp().detach().double()  # as this step will see it
        used = torch.cat([used, torch.zeros(learner.model.K - len(used))]) + q_y.sum(0)
        return x

    for events in learner.learn(endless(learner, watched)):
        if of_type(SnapshotTaken, events):
            torch.testing.assert_close(learner.memory.pi, used / used.sum())
        if learner.t == 40:
            break
    assert learner.model.K > 4
    torch.testing.assert_close(learner.memory.counts()[: len(used)], used)
    assert learner.memory.counts().sum() == pytest.approx(B * 40 / 2, abs=B)  # one for each real sample


# -- chance ----------------------------------------------------------------------------------------------------------

BUSY = {
    "K": 2,
    "tau": 0.3,
    "growth": growing(n_new=2 * B, wait=3),
    "memory": Snapshot(snapshots="dynamic", labelled=True),
}


def test_the_same_seed_brings_the_same_events_and_another_seed_others(make_learner, stream):
    first, again, other = (facts(taught(make_learner(seed, **BUSY), stream, 30)) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_what_others_draw_does_not_shift_what_a_learner_does(make_learner, stream):
    undisturbed = facts(taught(make_learner(**BUSY), stream, 30))
    learner = make_learner(**BUSY)

    def drawing(t: int) -> Tensor:
        for rng in (learner.rng.data, learner.rng.init):
            torch.rand(7, generator=rng)
        torch.rand(3)
        return stream(t)

    with torch.random.fork_rng(devices=[]):
        assert facts(taught(learner, drawing, 30)) == undisturbed


def test_what_is_inferred_does_not_shift_what_is_rehearsed(make_learner, make_batch):
    recalled = []
    for n in (1, 9):
        learner = make_learner(K=3, memory=DYNAMIC)
        learner.memory.before_birth(0)
        for _ in range(n):
            learner.engine.bound(make_batch())
        recalled.append(learner.memory.recall(20).x)
    assert torch.equal(*recalled)


def test_learning_leaves_torchs_global_chance_alone(make_learner, stream):
    before = torch.get_rng_state()
    events = taught(make_learner(**BUSY), stream, 30)
    assert {type(event) for event in events} == {StepTaken, SnapshotTaken, ComponentBorn}
    assert torch.equal(torch.get_rng_state(), before)


# -- networks of your own --------------------------------------------------------------------------------------------


def convolutional(rng: Rng) -> MixtureVAE:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten())
        decoder = nn.Sequential(
            nn.Linear(2, 12), nn.ReLU(), nn.Unflatten(1, (3, 2, 2)), nn.ConvTranspose2d(3, 1, 3), nn.Flatten()
        )
    return MixtureVAE(encoder, decoder, Bernoulli(), n_x=16, n_z=2, K=1, rng=rng.init)


def test_any_pair_of_networks_learns_grows_and_rehearses():
    rng = Rng.from_seed(0)
    config = LearnerConfig(learning_rate=0.01, growth=growing(n_new=20, wait=20), memory=DYNAMIC)
    learner = Learner(convolutional(rng), config, rng)
    x = (torch.arange(16) % 4 < 2).float().repeat(8, 1)  # [8, 16], all alike
    weights = copy.deepcopy(learner.model.state_dict())
    events = taught(learner, lambda t: x, 150)
    real = [step.bound for step in of_type(StepTaken, events) if not step.rehearsed]
    assert real[-1] > real[0] + 2
    assert learner.model.K > 2
    assert any(rehearsed(events))
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

    growth = Threshold(c_new=-4.5, n_new=30, burn_in=20, wait=10)
    learner = make_learner(learning_rate=0.02, growth=growth, memory=DYNAMIC)
    events = taught(learner, stream, 210)
    born = [(e.t, e.component, e.parent) for e in of_type(ComponentBorn, events)]
    assert born == [(36, 1, 0), (82, 2, 1), (106, 3, 2), (142, 4, 3), (202, 5, 1)]
    bounds = {e.t: e.bound for e in of_type(StepTaken, events)}
    expected = {0: -4.5781, 50: -2.2016, 99: -2.2661, 100: -2.4981, 150: -4.7804, 200: -4.6112}
    assert {t: bounds[t] for t in expected} == pytest.approx(expected, abs=2e-3)


# -- what a learner is not -----------------------------------------------------------------------------------------


def live_numbers() -> int:
    """How many numbers all tensors hold that are alive."""
    gc.collect()
    return sum(thing.numel() for thing in gc.get_objects() if issubclass(type(thing), Tensor))


def test_memory_does_not_grow_with_the_number_of_steps(make_learner, make_batch):
    learner = make_learner(K=3, tau=0.3, growth=growing(n_new=12, wait=3), max_components=4, memory=every(10))
    x = make_batch()
    taught(learner, lambda t: x, 140)
    before = live_numbers()
    taught(learner, lambda t: x, 140 + 10 * 42)  # as far into the wait, and from a snapshot, as before
    assert live_numbers() == before
