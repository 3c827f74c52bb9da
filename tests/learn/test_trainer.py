import copy
import gc

import pytest
import torch
from torch import Generator, Tensor, nn

from curlicue.config import Counts, Emission, Every, ExpansionConfig, ReplayConfig
from curlicue.learn.adam import MOVING
from curlicue.learn.events import StepTaken
from curlicue.learn.trainer import Trainer
from curlicue.model.ascent import Ascent
from curlicue.model.elbo import ElboTerms, elbo, elbo_given
from curlicue.model.gradient import Gradient
from curlicue.rng import named_generator


def twin(rng: Generator) -> Generator:
    """A generator that will draw what `rng` would, without drawing it."""
    return torch.Generator().set_state(rng.get_state())


def parameters(trainer: Trainer) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


def moments(trainer: Trainer) -> dict[str, dict[str, Tensor]]:
    return {name: copy.deepcopy(moments.tensors) for name, moments in trainer.optimiser.moments.items()}


def warmed_up(trainer: Trainer, x: Tensor, steps: int = 3) -> Trainer:
    for _ in range(steps):
        trainer.real_step(trainer.elbo(x))
    return trainer


def assert_tells_of(event: StepTaken, terms: ElboTerms) -> None:
    for name in ("bound", "log_p_x", "kl_z", "kl_y"):
        assert getattr(event, name) == pytest.approx(getattr(terms, name).mean().item(), rel=1e-5, abs=1e-6)


def assert_same_ascent(trainer: Trainer, ascent: Ascent, terms: ElboTerms) -> None:
    """The bound and the way up that `terms` have."""
    torch.testing.assert_close(ascent.terms.bound, terms.bound.detach(), rtol=1e-6, atol=0)
    named = dict(trainer.model.named_parameters())
    slopes = {name: gradient.dense(named[name]) for name, gradient in ascent.slopes()}
    gradients = torch.autograd.grad(-terms.bound.mean(), list(named.values()))
    for name, g in zip(named, gradients, strict=True):
        torch.testing.assert_close(slopes.pop(name), g, rtol=1e-4, atol=1e-6)
    assert not slopes


# -- climbing ----------------------------------------------------------------------------------------------------


def test_climbing_raises_the_bound(make_learner, make_batch):
    trainer, x = make_learner(K=3, learning_rate=0.01), make_batch(20)
    before = elbo(trainer.model, x, named_generator(0, "z")).bound.mean()
    warmed_up(trainer, x, 100)
    assert elbo(trainer.model, x, named_generator(0, "z")).bound.mean() > before + 0.3


def test_adam_has_the_settings_of_tensorflow(make_learner):
    """With gradients as small as ε, and smaller with time: each of the settings shows."""
    optimiser, scale = make_learner(learning_rate=0.25).optimiser, 1e-8 * torch.arange(1.0, 7)
    ours, reference = torch.ones(1, 6), nn.Parameter(torch.ones(1, 6))
    tensorflows = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "amsgrad": False}
    step = torch.optim.Adam([reference], lr=0.25, **tensorflows).step
    for t in range(20):
        reference.grad = scale[None] * 0.8**t
        optimiser.move("ours", ours, Gradient(reference.grad))
        step()
        torch.testing.assert_close(ours, reference.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("z_samples", [1, 2])
def test_climbing_is_torchs_adam_on_autograds_gradient_even_where_a_whole_batch_is_silent(
    make_learner, make_batch, z_samples
):
    trainer = make_learner(K=3, learning_rate=0.01, z_samples=z_samples)
    model, latent = copy.deepcopy(trainer.model), twin(trainer.rng.latent)
    reference = torch.optim.Adam(model.parameters(), lr=0.01)
    for t in range(12):
        x = torch.zeros(5, 6) if t % 3 == 2 else make_batch(seed=t)
        trainer.climb(trainer.elbo(x))
        reference.zero_grad()
        (-elbo(model, x, latent, tau=trainer.config.tau, z_samples=z_samples).bound.mean()).backward()
        reference.step()
    for name, value in model.named_parameters():
        torch.testing.assert_close(parameters(trainer)[name], value.detach(), rtol=1e-4, atol=1e-5, msg=name)


def test_climbing_on_some_parameters_leaves_the_others_and_their_moments_bit_for_bit(make_learner, make_batch):
    trainer = warmed_up(make_learner(K=3), make_batch())
    before, old = parameters(trainer), moments(trainer)
    trainer.climb(trainer.elbo(make_batch()), only=trainer.model.component_parameters())
    for name, value in parameters(trainer).items():
        assert torch.equal(value, before[name]) == (not name.startswith("heads."))
    for name, state in moments(trainer).items():
        for moment in ("steps", "first", "second"):
            assert torch.equal(state[moment], old[name][moment]) == (not name.startswith("heads."))


@pytest.mark.parametrize("z_samples", [1, 2])
def test_what_is_frozen_stays_as_it_is(make_learner, make_batch, z_samples):
    trainer = make_learner(K=3, z_samples=z_samples)
    trainer.model.encoder.requires_grad_(False)
    before = parameters(trainer)
    warmed_up(trainer, make_batch())
    for name, value in parameters(trainer).items():
        assert torch.equal(value, before[name]) == name.startswith("encoder."), name


@pytest.mark.parametrize(("tau", "z_samples"), [(None, 1), (0.3, 1), (None, 4), (0.3, 4)])
def test_the_bound_that_training_sees_is_the_one_its_settings_name(make_learner, make_batch, tau, z_samples):
    trainer, x = make_learner(K=5, tau=tau, z_samples=z_samples), make_batch()
    y = torch.tensor([4, 0, 1, 1, 2])
    for seen, expected in (
        (trainer.elbo, lambda rng: elbo(trainer.model, x, rng, tau=tau, z_samples=z_samples)),
        (lambda x: trainer.elbo_given(x, y), lambda rng: elbo_given(trainer.model, x, y, rng, z_samples=z_samples)),
    ):
        rng = twin(trainer.rng.latent)
        terms, ascent = expected(rng), seen(x)
        assert_same_ascent(trainer, ascent, terms)
        assert torch.equal(trainer.rng.latent.get_state(), rng.get_state())  # the draws are the same


def test_a_real_step_tells_the_means_of_its_terms_in_the_order_of_time(make_learner, make_batch):
    trainer = make_learner(K=3)
    for t in range(3):
        ascent = trainer.elbo(make_batch(seed=t))
        event = trainer.real_step(ascent, n_poor=t)
        assert_tells_of(event, ascent.terms)
        assert (event.t, event.K, event.rehearsed, event.n_poor) == (t, 3, False, t)


# -- growing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parent", [0, 2])
def test_growing_keeps_the_optimisers_state_bit_for_bit_and_gives_the_newborn_none(make_learner, make_batch, parent):
    trainer = warmed_up(make_learner(K=3, learning_rate=0.01), make_batch())
    resting = [name for name, head in trainer.model.heads.items() if head.ndim > 1]
    for name in resting:
        trainer.optimiser.moments[f"heads.{name}"].rested.copy_(torch.tensor([4, MOVING, 7]))
    before = moments(trainer)
    assert trainer.grow(parent) == 3
    after = moments(trainer)
    for name in resting:
        assert after[f"heads.{name}"]["rested"].tolist() == [4, MOVING, 7, MOVING]
    assert before.keys() == after.keys()
    for name, state in after.items():
        assert torch.equal(state["steps"], before[name]["steps"])
        for moment in ("first", "second"):
            assert before[name][moment].any()
            if name.startswith("heads."):
                assert torch.equal(state[moment][:3], before[name][moment])
                assert not state[moment][3].any()
            else:
                assert torch.equal(state[moment], before[name][moment])


def test_growing_leaves_the_optimiser_with_moments_of_the_parameters_of_the_model_and_of_no_others(
    make_learner, make_batch
):
    trainer = warmed_up(make_learner(K=3), make_batch())
    trainer.grow(1)
    own = {name: p.shape for name, p in trainer.model.named_parameters()}
    assert {name: m.first.shape for name, m in trainer.optimiser.moments.items()} == own
    assert {name: m.second.shape for name, m in trainer.optimiser.moments.items()} == own
    before, old = parameters(trainer), moments(trainer)
    trainer.climb(trainer.elbo(make_batch()))
    for name, state in moments(trainer).items():  # it moves the parameters that the model has now, by these moments
        assert not torch.equal(parameters(trainer)[name], before[name])
        assert not torch.equal(state["first"], old[name]["first"])


def test_a_learner_may_grow_before_its_first_step_and_then_trains_the_newborn(make_learner, make_batch):
    trainer = make_learner(K=2)
    trainer.grow(0)
    before = parameters(trainer)
    trainer.real_step(trainer.elbo(make_batch()))
    for name, value in parameters(trainer).items():
        if name.startswith("heads."):
            assert all((value[k] != before[name][k]).any() for k in range(3))


@pytest.mark.parametrize("z_samples", [1, 2])
def test_growing_while_the_last_ascent_is_alive_leaves_no_gradient_short(make_learner, make_batch, z_samples):
    trainer, x = make_learner(K=2, z_samples=z_samples), make_batch()
    old = [trainer.elbo(x), trainer.elbo(x)]
    trainer.real_step(old[0])
    newborn = trainer.grow(0)
    before = parameters(trainer)
    ascent = trainer.elbo_given(x, torch.full((len(x),), newborn))
    trainer.climb(ascent)
    for name, head in trainer.model.heads.items():
        first = trainer.optimiser.moments[f"heads.{name}"].first
        assert first.shape == head.shape
        assert first[newborn].any()
        assert not torch.equal(head[newborn], before[f"heads.{name}"][newborn])
    assert len(old[1].terms.q_y[0]) == newborn  # it is alive, and as it was


def test_a_bound_from_before_a_growth_cannot_be_climbed_and_moves_nothing(make_learner, make_batch):
    trainer = make_learner(K=2)
    ascent = trainer.elbo(make_batch())
    trainer.grow(0)
    before = parameters(trainer)
    with pytest.raises(ValueError, match=r"of a model with 2 components, which has 3 now\. Compute it anew\."):
        trainer.climb(ascent)
    assert all(torch.equal(value, before[name]) for name, value in parameters(trainer).items())


def test_a_newborn_has_not_been_used_yet(make_learner, make_batch):
    trainer = warmed_up(make_learner(K=2), make_batch())
    before = trainer.counts.clone()
    trainer.grow(1)
    assert torch.equal(trainer.counts, torch.cat([before, torch.zeros(1)]))


# -- rehearsing --------------------------------------------------------------------------------------------------


def remembering(make_learner, x: Tensor, **replay: object) -> Trainer:
    """A learner whose snapshot was taken a few steps ago."""
    settings = ReplayConfig(**{"snapshots": Every(1000)} | replay)
    trainer = warmed_up(make_learner(K=4, learning_rate=0.05, tau=None, replay=settings), x)
    trainer.take_snapshot()
    return warmed_up(trainer, x)


@pytest.mark.parametrize("emission", list(Emission))
@pytest.mark.parametrize("labelled", [False, True])
def test_rehearsing_climbs_the_plain_bound_or_with_labels_that_of_the_dreaming_component(
    make_learner, make_batch, labelled, emission
):
    trainer = remembering(make_learner, make_batch(7), labelled=labelled, emission=emission)
    dream, y = trainer.snapshot.dream(7, emission, twin(trainer.rng.replay))
    latent = twin(trainer.rng.latent)
    terms = elbo_given(trainer.model, dream, y, latent) if labelled else elbo(trainer.model, dream, latent)
    before = parameters(trainer)
    event = trainer.rehearse()
    assert_tells_of(event, terms)
    assert (event.t, event.K, event.rehearsed, event.n_poor) == (6, 4, True, 0)
    assert all(not torch.equal(value, before[name]) for name, value in parameters(trainer).items())


def test_rehearsal_shows_what_the_snapshot_dreams_whatever_the_model_has_become(make_learner, make_batch):
    trainer = remembering(make_learner, make_batch(7))
    dream, _ = trainer.snapshot.dream(7, Emission.SAMPLE, twin(trainer.rng.replay))
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.mul_(-3)
    terms = elbo(trainer.model, dream, twin(trainer.rng.latent))
    assert_tells_of(trainer.rehearse(), terms)


def test_rehearsing_does_not_touch_the_snapshot(make_learner, make_batch):
    trainer = remembering(make_learner, make_batch(7))
    before = copy.deepcopy(trainer.snapshot.model.state_dict())
    for _ in range(3):
        trainer.rehearse()
    for name, value in trainer.snapshot.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_real_batches_are_counted_and_rehearsed_ones_are_not(make_learner, make_batch):
    trainer = remembering(make_learner, make_batch(7))
    before, x = trainer.counts.clone(), make_batch(5, seed=1)
    trainer.rehearse()
    assert torch.equal(trainer.counts, before)
    q_y = trainer.model.log_q_y(trainer.model.encode(x)).exp().detach()
    trainer.real_step(trainer.elbo(x))
    torch.testing.assert_close(trainer.counts, before + q_y.double().sum(0))


def rehearse_watched(trainer: Trainer, n: int) -> Tensor:
    """Rehearse n times; Σ q(y|x) over what each component dreamt [J, K], each batch as its own step saw it."""
    total = torch.zeros(trainer.snapshot.model.K, trainer.model.K, dtype=torch.float64)
    for _ in range(n):
        dream, y = trainer.snapshot.dream(trainer.batch_size, Emission.SAMPLE, twin(trainer.rng.replay))
        q_y = trainer.model.log_q_y(trainer.model.encode(dream)).exp().detach().double()
        for j, each in zip(y, q_y, strict=True):
            total[j] += each
        trainer.rehearse()
    return total


def test_the_counts_of_the_past_move_to_the_components_that_explain_its_dreams(make_learner, make_batch):
    trainer = warmed_up(make_learner(K=4, learning_rate=0.05, replay=ReplayConfig(snapshots=Every(1000))), make_batch())
    trainer.take_snapshot()
    past = trainer.counts.clone()
    moved = rehearse_watched(trainer, 9)
    assert (moved.sum(1) > 0).all()
    trainer.real_step(trainer.elbo(make_batch(5, seed=1)))
    recent = trainer.counts - past
    trainer.grow(1)
    trainer.take_snapshot()
    expected = recent + sum(past[j] * moved[j] / moved[j].sum() for j in range(4))
    expected = torch.cat([expected, torch.zeros(1)])
    torch.testing.assert_close(trainer.counts, expected)
    torch.testing.assert_close(trainer.snapshot.pi, expected.clamp_min(1e-12) / expected.sum())
    assert trainer.counts.sum() == pytest.approx(past.sum() + 5)  # one for each real sample, as before
    assert (expected[:4] - past - recent).abs().max() > 0.01


def test_what_no_dream_has_shown_keeps_its_counts(make_learner, make_batch):
    trainer = remembering(make_learner, make_batch(7))
    trainer.snapshot.pi.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0]))  # only the first dreams
    before, past = trainer.counts.clone(), trainer.past[0].item()
    moved = rehearse_watched(trainer, 3)[0]
    trainer.take_snapshot()
    torch.testing.assert_close(
        trainer.counts, before - torch.tensor([past, 0, 0, 0]) + past * moved / moved.sum(), check_dtype=False
    )


@pytest.mark.parametrize("replay", [{"labelled": True}, {"counts": Counts.SEEN}], ids=["SMGR", "seen"])
def test_the_past_keeps_its_counts_where_components_keep_their_meaning_or_if_so_set(make_learner, make_batch, replay):
    trainer = remembering(make_learner, make_batch(7), **replay)
    before = trainer.counts.clone()
    rehearse_watched(trainer, 3)
    trainer.take_snapshot()
    assert torch.equal(trainer.counts, before)


def test_without_a_dream_between_two_snapshots_the_counts_stay(make_learner, make_batch):
    trainer = remembering(make_learner, make_batch(7))
    before = trainer.counts.clone()
    trainer.take_snapshot()
    assert torch.equal(trainer.counts, before)


def test_a_rehearsed_batch_is_as_large_as_the_largest_real_one_so_far(make_learner, make_batch):
    trainer, sizes = remembering(make_learner, make_batch(7)), []
    run = trainer.model.encoder.run
    trainer.model.encoder.run = lambda x, **how: (sizes.append(len(x)), run(x, **how))[1]
    for n in (11, 7):
        trainer.real_step(trainer.elbo(make_batch(n)))
        trainer.rehearse()
    assert sizes == [11, 11, 7, 11]


# -- what a learner is not -----------------------------------------------------------------------------------------


def live_numbers() -> int:
    """How many numbers all tensors hold that are alive."""
    gc.collect()
    return sum(thing.numel() for thing in gc.get_objects() if issubclass(type(thing), Tensor))


def test_memory_does_not_grow_with_the_number_of_steps(make_learner, make_batch):
    expansion = ExpansionConfig(c_new=0.0, n_new=12, window=20, burn_in=0, wait=3, max_components=4)
    trainer = make_learner(K=3, tau=0.3, expansion=expansion, replay=ReplayConfig(snapshots=Every(10)))
    x = make_batch()
    for _ in trainer.learn(lambda t: x, 140):
        pass
    before = live_numbers()
    for _ in trainer.learn(lambda t: x, 140 + 10 * 42):  # as far into the wait, and from a snapshot, as before
        pass
    assert live_numbers() == before
