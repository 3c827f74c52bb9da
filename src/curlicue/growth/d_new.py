"""D_new: the poorly explained samples that a component may be born from."""

from __future__ import annotations

import torch
from torch import Tensor

from curlicue.growth.protocol import Birth, Tuned
from curlicue.model.devices import sent
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import Fields, State


class Buffer:
    """D_new: gathers poorly explained real samples until they are enough, and waits after each birth."""

    def __init__(self, model: MixtureVAE, n_new: int, wait: int, window: int | None = None) -> None:
        self.model, self.n_new, self.wait, self.window = model, n_new, wait, window
        self.samples: Tensor | None = None  # [N, D], on the model's device
        self.numbers = torch.empty(0, dtype=torch.int64)  # [N], the position of each sample in the stream
        self.seen = 0  # real samples
        self.real_steps_to_wait = 0  # until samples may join again

    def add(self, x: Tensor, poor: Tensor) -> int:
        """Take in a real batch x [B, D] of which `poor` [B], on the CPU, may join; returns how many joined."""
        poor = poor if self.real_steps_to_wait == 0 else torch.zeros_like(poor)
        places = poor.nonzero().squeeze(1)
        if len(places):
            joined = x.index_select(0, sent(places, x.device))
            self.samples = joined if self.samples is None else torch.cat([self.samples, joined])
            self.numbers = torch.cat([self.numbers, self.seen + places])
        self.seen += len(x)
        self._forget_what_left_the_window()
        self.real_steps_to_wait = max(0, self.real_steps_to_wait - 1)
        return len(places)

    def _forget_what_left_the_window(self) -> None:
        if self.window is None or self.samples is None:
            return
        recent = (self.numbers >= self.seen - self.window).nonzero().squeeze(1)
        if len(recent) < len(self.numbers):
            self.samples = self.samples.index_select(0, sent(recent, self.samples.device)) if len(recent) else None
            self.numbers = self.numbers[recent]

    def due(self, passes: int, tuned: Tuned) -> Birth | None:
        """Hand over D_new if it is full, and begin the wait for the next one."""
        if self.samples is None or len(self.samples) < self.n_new:
            return None
        birth = Birth(self.samples, passes, tuned)
        self.samples, self.numbers = None, self.numbers[:0]
        self.real_steps_to_wait = self.wait
        return birth

    def state(self) -> State:
        """The samples gathered and the counters."""
        held = {} if self.samples is None else {"samples": self.samples, "numbers": self.numbers}
        return {"seen": self.seen, "real_steps_to_wait": self.real_steps_to_wait, **held}

    def restore(self, fields: Fields) -> None:
        """Go on from `state`."""
        self.seen, self.real_steps_to_wait = fields.count("seen"), fields.count("real_steps_to_wait")
        self.samples, self.numbers = None, self.numbers[:0]
        if "samples" in fields:
            samples = fields.tensor("samples", (None, self.model.n_x), self.model.dtype)
            self.samples = samples.to(self.model.device)
            self.numbers = fields.tensor("numbers", (len(self.samples),), torch.int64)
