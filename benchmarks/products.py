"""The bare matrix products of a training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from curlicue.engines.cpu.layer_kernels import find_active
from curlicue.engines.cpu.networks import worth_gathering
from curlicue.learn.learner import Learner
from curlicue.model.networks import Mlp
from models import network_of, q_y_and_pairs


@dataclass(frozen=True)
class Product:
    """A matrix product into memory that is there already."""

    a: Tensor
    b: Tensor
    out: Tensor

    def __call__(self) -> None:
        """Multiply."""
        torch.matmul(self.a, self.b, out=self.out)

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.out.numel() * self.a.shape[-1]


def products(n: int, k: int, m: int, m_back: int) -> list[Product]:
    """Forward [n, k][k, m], weight gradient [k, n][n, m_back], input gradient [n, m_back][m_back, k]."""
    return [product(n, k, m), product(k, n, m_back), product(n, m_back, k)]


def product(n: int, k: int, m: int) -> Product:
    """[n, k][k, m]."""
    return Product(torch.randn(n, k), torch.randn(k, m), torch.empty(n, m))


@torch.no_grad()
def network_products(network: Mlp, x: Tensor, dense: bool) -> list[Product]:
    """The products of all layers for the rows x: of whole layers, or of the active units."""
    found, h = [], x
    for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        a = width_active(h, dense)
        out = torch.addmm(bias, h, weight)
        h = out.clamp_min(0) if layer < len(network.weights) - 1 or network.relu_last else out
        found += products(len(x), a, weight.shape[1], width_active(h, dense))
    return found


def width_active(h: Tensor, dense: bool) -> int:
    """How many columns of h are multiplied."""
    return h.shape[1] if dense else len(worth_gathering(find_active(h.numpy())[0], h))


@torch.no_grad()
def step_products(learner: Learner, x: Tensor, dense: bool) -> list[Product]:
    """All products of the step on x, as BLAS would take them: single zeros are multiplied too."""
    model, (_, pairs) = learner.model, q_y_and_pairs(learner, x)
    h = model.encode(x)
    H, two_z = h.shape[1], 2 * model.n_z
    z = model.q_z(h, pairs).sample(learner.rng.latent)[0]
    encoder = network_products(network_of(model.encoder), x, dense)
    del encoder[2]  # nobody needs the gradient of x
    q_y = products(len(x), H, model.K, model.K)
    counts = pairs.ks.unique(return_counts=True)[1].tolist()
    q_z = [each for n in counts for each in products(n, H, two_z, two_z)]
    return encoder + q_y + q_z + network_products(network_of(model.decoder), z, dense)


def operations_ratio(exact: Learner, sparse: Learner, batches: Sequence[Tensor], dense: bool) -> float:
    """How many times the operations of the sparse step's products those of the exact one's are."""
    of, to = (
        sum(product.operations for x in batches for product in step_products(learner, x, dense))
        for learner in (exact, sparse)
    )
    return of / to


def compute(several: Sequence[Product]) -> None:
    """Each once."""
    for each in several:
        each()
