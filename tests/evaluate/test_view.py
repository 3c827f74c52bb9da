from collections.abc import Callable

import torch
from torch import Tensor

from curlicue.config import Emission
from curlicue.evaluate.representation import components, embed
from curlicue.evaluate.view import DREAMS, view
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import named_generator

MakeModel = Callable[..., MixtureVAE]
MakeBatch = Callable[..., Tensor]


def test_a_view_shows_each_components_own_dreams(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model = make_model(K=3)
    dreams = view(model, make_batch(5), named_generator(0, "view")).dreams
    ks = torch.tensor([k for k in range(3) for _ in range(DREAMS)])
    alike = model.sample(ks, Emission.MEAN, named_generator(0, "view"))
    assert dreams.shape == (3, DREAMS, model.n_x)
    assert torch.equal(dreams.flatten(0, 1), alike)


def test_a_view_places_samples_where_the_model_does(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model, x = make_model(K=4), make_batch(20)
    seen = view(model, x, named_generator(0, "view"))
    assert torch.equal(seen.z, embed(model, x))
    assert torch.equal(seen.y, components(model, x))
    assert torch.equal(seen.centres, model.p_z(torch.arange(4)).mean)
    assert not seen.centres.requires_grad
