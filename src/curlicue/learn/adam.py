"""Adam, which leaves components at rest alone.

A component that no sample of a batch visits has no gradient. Once its first moment has faded too, all that Adam does to
it is to let its second moment fade by β₂ a step, which can be done for many steps at once when it moves again. The
numbers are Adam's up to rounding. What is saved is memory traffic: of many components few are ever on the move, and the
heads of q(z|x,y) are most of what a model with many components has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from curlicue.model.mixture import WORTH_RESTING, MixtureVAE

FADED = 1e-30  # of a first moment: a step in proportion to it is lost in rounding


class Adam(torch.optim.Adam):
    """With TensorFlow's defaults, which are torch's too."""

    def __init__(self, model: MixtureVAE, learning_rate: float) -> None:
        super().__init__(model.parameters(), lr=learning_rate, fused=True)
        self.heads = model.heads
        self.rested = torch.zeros(model.K, dtype=torch.int64)  # [K], steps that the second moments have yet to fade by

    def __getstate__(self) -> dict[str, Any]:
        """For copies; torch's own leaves out what it does not know."""
        return {**super().__getstate__(), "heads": self.heads, "rested": self.rested}

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One step on all parameters that have a gradient."""
        weight = self.heads["q_z_weight"]  # [K, H, 2Z]
        if weight.grad is None or weight.numel() < WORTH_RESTING:  # nobody can rest
            super().step()
            return
        grad, moving = weight.grad, self._moving()  # [K]
        if weight[0].numel() * int((~moving).sum()) < WORTH_RESTING:
            self._fade(torch.ones_like(moving))
            weight.grad = grad.to_dense()
            super().step()
            return
        weight.grad = None
        super().step()
        weight.grad = grad
        self._fade(moving)
        self._move(moving.nonzero().squeeze(1).tolist(), grad)
        self.rested += ~moving

    def _moving(self) -> Tensor:
        """Which components have a gradient, be it NaN, or a first moment; that of their biases stands for all."""
        bias = self.heads["q_z_bias"]
        if bias.grad is None or "exp_avg" not in self.state[bias]:
            return torch.ones(len(bias), dtype=torch.bool)
        return ~(torch.maximum(bias.grad.abs(), self.state[bias]["exp_avg"].abs() - FADED).amax(1) <= 0)

    def _fade(self, ks: Tensor) -> None:
        """Let the second moments of the components ks [K] fade by the steps they have rested."""
        late = (ks & (self.rested > 0)).nonzero().squeeze(1).tolist()
        beta2 = self.param_groups[0]["betas"][1]
        for k in late:
            self.state[self.heads["q_z_weight"]]["exp_avg_sq"][k].mul_(beta2 ** int(self.rested[k]))
        self.rested[late] = 0

    def _move(self, ks: list[int], grad: Tensor) -> None:
        """torch's step on the slices ks of the heads."""
        weight, group = self.heads["q_z_weight"], self.param_groups[0]
        state = self.state[weight]
        adam(
            [weight[k] for k in ks],
            _of_components(ks, grad),
            [state["exp_avg"][k] for k in ks],
            [state["exp_avg_sq"][k] for k in ks],
            [],
            [state["step"].clone() for _ in ks],
            fused=True,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )
        state["step"] += 1


def _of_components(ks: list[int], grad: Tensor) -> list[Tensor]:
    """The gradient of each; zeros where a sparse one has none."""
    if not grad.is_sparse:
        return [grad[k] for k in ks]
    visited = dict(zip(grad._indices()[0].tolist(), grad._values(), strict=True))
    zeros = torch.zeros_like(grad._values()[0])
    return [visited.get(k, zeros) for k in ks]
