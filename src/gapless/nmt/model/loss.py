"""Label-smoothed cross entropy, computed from hidden vectors in chunks.

The logits of a batch are its largest tensor: 25,000 tokens times a vocabulary of 32,000 are 3 GB
in float32. So only a chunk of them exists at a time. The gradients of the output layer's input and
weight, which the backward pass needs, are computed chunk by chunk along with the loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from gapless.device.kernels import HAS_TRITON
from gapless.nmt.data.vocab import PAD


if TYPE_CHECKING:
    from collections.abc import Callable


# Most elements of logits that exist at a time; more if their gradient is written over them.
_CHUNK_ELEMENTS = 2**26
_CHUNK_ELEMENTS_IN_PLACE = 2**28


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

    def of_hidden(
        self, hidden: torch.Tensor, output_layer: nn.Linear, targets: torch.Tensor
    ) -> torch.Tensor:
        """Return the summed loss of hidden vectors, in less memory than `forward` of their logits, unless a script compiles it.

        Args:
            hidden: input of the output layer, [..., d_model].
            output_layer: weight [vocab, d_model].
            targets: ids, [...].

        Sync: Does not block the host.
        """
        flat, weight = hidden.reshape(-1, hidden.shape[-1]), output_layer.weight
        if output_layer.bias is not None:
            # The weight of one input more, which is always 1; eight, so that products stay aligned.
            flat = F.pad(F.pad(flat, (0, 1), value=1.0), (0, 7))
            weight = F.pad(torch.cat((weight, output_layer.bias.unsqueeze(1)), dim=1), (0, 7))
        # What a script compiles, the compiler differentiates: torch 2.11 loses what is written into a part of a gradient.
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return _loss_of(flat, weight, targets.reshape(-1), self.smoothing)
        loss: torch.Tensor = _ChunkedLoss.apply(flat, weight, targets.reshape(-1), self.smoothing)
        return loss


class _ChunkedLoss(torch.autograd.Function):
    """The summed loss of hidden vectors; the forward pass computes the gradients as well."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: torch.Tensor,
        weight_VD: torch.Tensor,
        targets_N: torch.Tensor,
        smoothing: float,
    ) -> torch.Tensor:
        loss, grad_hidden, grad_weight = _loss_and_gradients(
            hidden_ND, weight_VD, targets_N, smoothing
        )
        ctx.save_for_backward(grad_hidden, grad_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grads[0], grad_weight * grads[0], None, None


def _in_precision_of_products(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return tensors in the type in which autocast multiplies, if autocast is on."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [tensor.to(dtype) for tensor in tensors]


def _loss_of(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, smoothing: float
) -> torch.Tensor:
    hidden, weight = _in_precision_of_products(hidden, weight)
    size = max(1, _CHUNK_ELEMENTS // len(weight))
    total = hidden.new_zeros((), dtype=torch.float32)
    for x, y in zip(hidden.split(size), targets.split(size), strict=True):
        total += _chunk_loss(x @ weight.T, y, smoothing)
    return total


def _loss_and_gradients(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the loss and its gradients by hidden vectors and weight, [N, D] and [V, D], float32."""
    hidden, weight = _in_precision_of_products(hidden, weight)
    in_place = hidden.is_cuda and HAS_TRITON
    math = _chunk_loss_and_gradient_in_place if in_place else _chunk_loss_and_gradient
    elements = _CHUNK_ELEMENTS_IN_PLACE if in_place else _CHUNK_ELEMENTS
    size = max(1, elements // len(weight))
    total = hidden.new_zeros((), dtype=torch.float32)
    # Products of 16 bits are added up in float32 as they are: a GPU need not write them in 16 bits first.
    sums_in_float32 = hidden.is_cuda and hidden.dtype != torch.float32
    # There the first chunk's gradient is written, not added.
    make = torch.empty_like if sums_in_float32 and len(hidden) else torch.zeros_like
    grad_weight = make(weight, dtype=torch.float32)
    grad_hidden = torch.empty_like(hidden, dtype=torch.float32)
    for start in range(0, len(hidden), size):
        x, y = hidden[start : start + size], targets[start : start + size]
        loss, grad_logits = math(x @ weight.T, y, smoothing)
        total += loss
        part = grad_hidden[start : start + size]
        if sums_in_float32:
            torch.mm(grad_logits, weight, torch.float32, out=part)
            if start == 0:
                torch.mm(grad_logits.T, x, torch.float32, out=grad_weight)
            else:
                torch.addmm(grad_weight, grad_logits.T, x, torch.float32, out=grad_weight)
        else:
            part.copy_(grad_logits @ weight)
            grad_weight += grad_logits.T @ x
        # The next chunk's logits take its memory.
        del grad_logits
    return total, grad_hidden, grad_weight


def _chunk_loss(logits: torch.Tensor, targets: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Return the summed loss of logits, [N, V], against targets, [N], in float32."""
    logits = logits.float()
    return _smoothed(logits, logits.logsumexp(dim=-1), targets, smoothing)


def _smoothed(
    logits: torch.Tensor, log_sum: torch.Tensor, targets: torch.Tensor, smoothing: float
) -> torch.Tensor:
    """Return the summed loss, given the logarithm of each row's sum of exponentials, [N]."""
    nll = log_sum - logits.gather(1, targets.unsqueeze(1)).squeeze(1)
    smooth = log_sum - logits.mean(dim=-1)
    losses = (1.0 - smoothing) * nll + smoothing * smooth
    return torch.where(targets == PAD, 0.0, losses).sum()


def _chunk_loss_and_gradient(
    logits: torch.Tensor, targets: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of a chunk, and its gradient by the logits, in their type.

    The gradient is p - (1 - s) * [target] - s / V, with p the softmax, and nothing for padding.
    """
    vocab = logits.shape[-1]
    values = logits.float()
    highest = values.amax(dim=-1, keepdim=True)
    exponentials = (values - highest).exp()
    sums = exponentials.sum(dim=-1, keepdim=True)
    gradient = exponentials / sums - smoothing / vocab
    is_target = torch.arange(vocab, device=logits.device) == targets.unsqueeze(1)
    gradient = torch.where(is_target, gradient - (1.0 - smoothing), gradient)
    gradient = torch.where((targets == PAD).unsqueeze(1), 0.0, gradient)
    log_sum = (sums.log() + highest).squeeze(-1)
    return _smoothed(values, log_sum, targets, smoothing), gradient.to(logits.dtype)


def _chunk_loss_and_gradient_in_place(
    logits: torch.Tensor, targets: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same on a GPU; the gradient stands where the logits stood."""
    from gapless.device.kernels.softmax_gradient import losses_and_gradient_

    return losses_and_gradient_(logits, targets, smoothing, padding=PAD).sum(), logits


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
        if isinstance(self.generator, nn.Linear) and isinstance(self.criterion, LabelSmoothing):
            loss = self.criterion.of_hidden(out, self.generator, targets)
        else:
            loss = self.criterion(self.generator(out), targets)
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
