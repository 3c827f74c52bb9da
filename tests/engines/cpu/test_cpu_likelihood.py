import pytest
import torch

from curlicue.config.model import Likelihood
from curlicue.engines.cpu.likelihood import log_p_backward
from curlicue.model.likelihood import GaussianNoise, likelihood
from curlicue.rng import named_generator

N, D = 7, 4


@pytest.mark.parametrize("kind", list(Likelihood))
@pytest.mark.usefixtures("in_double")
def test_the_gradients_of_a_likelihood_are_those_of_autograd(kind):
    rng = named_generator(0, "likelihood")
    p_x = likelihood(kind, D)
    if isinstance(p_x, GaussianNoise):
        p_x.raw_var.data = torch.randn(D, generator=rng) / GaussianNoise.PACE
    x, out, g = (torch.randn(*shape, generator=rng) for shape in ((N, D), (N, D), (N,)))
    out.requires_grad_(True)
    (p_x.log_p(x, out) * g).sum().backward()
    g_out, of_parameters = log_p_backward(p_x, g, x, out.detach())
    torch.testing.assert_close(g_out, out.grad)
    assert of_parameters.keys() == dict(p_x.named_parameters()).keys()
    for name, parameter in p_x.named_parameters():
        torch.testing.assert_close(of_parameters[name], parameter.grad)
