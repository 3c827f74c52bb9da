import torch
from torch import Generator, Tensor

from curlicue.evaluate.view import SAMPLES, view
from curlicue.model.inference import components, embed
from curlicue.rng import named_generator


def test_a_view_shows_what_each_component_generates(system, make_batch):
    generated = view(system, make_batch(5), named_generator(0, "view")).generated
    ks = torch.tensor([k for k in range(4) for _ in range(SAMPLES)])
    alike = system.model.mean(system.model.p_z(ks).sample(named_generator(0, "view"))[0])
    assert generated.shape == (4, SAMPLES, system.model.n_x)
    assert torch.equal(generated.flatten(0, 1), alike)
    assert not generated.requires_grad


def test_a_view_places_samples_where_the_system_does(system, make_batch):
    x = make_batch(20)
    seen = view(system, x, named_generator(0, "view"))
    assert torch.equal(seen.z, embed(system.model, x))
    assert torch.equal(seen.y, components(system.model, x))
    assert len(seen.y.unique()) > 1
    assert torch.equal(seen.centres, system.model.p_z(torch.arange(4)).mean)
    assert not seen.centres.requires_grad


class Halves:
    """A system that generates nothing."""

    K = 2

    def probabilities(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0], 1 - x[:, 0]], 1)

    def embed(self, x: Tensor, sampled: Generator | None = None) -> Tensor:
        assert sampled is None
        return 2 * x


def test_a_view_of_a_system_that_generates_nothing_shows_the_samples_alone():
    x = torch.tensor([[0.9, 0.0], [0.2, 1.0]])
    seen = view(Halves(), x, named_generator(0, "view"))
    assert torch.equal(seen.z, 2 * x)
    assert seen.y.tolist() == [0, 1]
    assert seen.generated is None
    assert seen.centres is None
