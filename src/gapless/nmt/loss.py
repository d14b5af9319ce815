"""Label-smoothed cross entropy, and the origin's `LossCompute`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional as F

from gapless.nmt.vocab import PAD


if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class LabelSmoothing(nn.Module):
    """Cross entropy against smoothed targets, summed over all tokens but padding.

    Source: Szegedy et al. 2016, section 7: (1 - s) * nll + s / V * sum of -log p over all V
    classes, as torch and fairseq compute it.

    Args:
        smoothing: share s of the probability that is spread evenly over the vocabulary.
    """

    def __init__(self, smoothing: float = 0.0) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the summed loss, a scalar tensor.

        Args:
            logits: [..., vocab].
            targets: ids, [...].

        Sync: Does not block the host.
        """
        return F.cross_entropy(
            logits.reshape(-1, logits.shape[-1]),
            targets.reshape(-1),
            ignore_index=PAD,
            label_smoothing=self.smoothing,
            reduction="sum",
        )


class LossCompute:
    """Compute the loss of a batch, and train on it if an optimizer is given.

    Args:
        generator: turns the decoder's output into logits.
        criterion: turns logits and targets into a summed loss.
        optimizer: steps after each backward pass; None evaluates only.
    """

    def __init__(
        self,
        generator: Callable[[torch.Tensor], torch.Tensor],
        criterion: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.generator = generator
        self.criterion = criterion
        self.optimizer = optimizer

    def normalized(
        self, out: torch.Tensor, targets: torch.Tensor, normalize: torch.Tensor | float
    ) -> torch.Tensor:
        """Return the loss divided by `normalize`, with its graph; trains nothing.

        Args:
            out: output of the decoder, [batch, tgt_len, d_model].
            targets: ids to predict, [batch, tgt_len].
            normalize: number of tokens. Give a tensor on the device: dividing by a Python number
                rounds differently on a GPU.

        Sync: Does not block the host.
        """
        loss: torch.Tensor = self.criterion(self.generator(out), targets)
        return loss / normalize

    def compute_loss_tensor(
        self, out: torch.Tensor, targets: torch.Tensor, normalize: torch.Tensor | float
    ) -> tuple[torch.Tensor, bool]:
        """Return the normalized loss, still on the device, and whether it was trained on.

        Args:
            out: output of the decoder, [batch, tgt_len, d_model].
            targets: ids to predict, [batch, tgt_len].
            normalize: number of tokens.

        Returns:
            The loss, detached, a scalar tensor on the device of `out`; and True if the backward
            pass and the optimizer's step were made.

        Sync: Does not block the host.
        """
        loss = self.normalized(out, targets, normalize)
        if self.optimizer is None:
            return loss.detach(), False
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach(), True

    def __call__(
        self, out: torch.Tensor, targets: torch.Tensor, normalize: torch.Tensor | float
    ) -> float:
        """Return the normalized loss as a number.

        Sync: Blocks the host until the loss is computed.
        """
        loss, _ = self.compute_loss_tensor(out, targets, normalize)
        return float(loss)
