import numpy as np

from curlicue.report.latent import Projector


def clusters(seed: int) -> np.ndarray:
    """Three, of twenty samples each."""
    rng = np.random.default_rng(seed)
    return np.repeat(8 * np.eye(3), 20, axis=0) + rng.normal(0, 0.3, size=(60, 3))


def test_what_is_apart_in_latent_space_is_apart_on_the_map():
    (places,) = Projector().project([clusters(0)])
    centres = places.reshape(3, 20, 2).mean(1)
    spread = np.abs(places.reshape(3, 20, 2) - centres[:, None]).mean()
    apart = min(np.linalg.norm(centres[i] - centres[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    assert apart > 3 * spread


def test_a_map_keeps_the_places_of_the_one_before():
    first, second = Projector().project([clusters(0), clusters(1)])
    far = np.linalg.norm(first - second, axis=1).mean()
    shuffled = np.linalg.norm(first - np.roll(second, 20, axis=0), axis=1).mean()
    assert far < 0.5 * shuffled


def test_the_same_samples_give_the_same_map():
    once, again = (Projector().project([clusters(0)])[0] for _ in range(2))
    assert np.array_equal(once, again)


def test_a_handful_of_samples_or_equal_ones_have_a_map_too():
    assert [places.shape for places in Projector().project([np.ones((3, 2)), np.ones((20, 2))])] == [(3, 2), (20, 2)]
    assert all(np.isfinite(places).all() for places in Projector().project([np.ones((20, 2)), clusters(0)[:20]]))
