"""How much arithmetic a batch takes, whatever padding or capture make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np


if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gapless.nmt.settings.config import TrainConfig


def model_flops(
    config: TrainConfig,
    *,
    tgt_vocab: int,
    src_lengths: NDArray[np.integer[Any]],
    tgt_lengths: NDArray[np.integer[Any]],
) -> int:
    """Return the floating-point operations of a training step on these pairs.

    A weight takes 2 operations for each token that it is applied to in the forward pass, and 4 in
    the backward pass: 6 w for a matrix of w weights. With S source and T target tokens, width d,
    inner width f and vocabulary V:

        encoder layer   6 S (4 d^2 + 2 d f)
        decoder layer   6 T (6 d^2 + 2 d f)     self-attention; queries and output to the source
                      + 6 S (2 d^2)             keys and values of the source
        output layer    6 T d V

    Attention compares each query with n keys and sums n values: 4 d n operations forward and
    8 d n backward, 12 d n in all, where a target token has itself and those before as keys.

    Embeddings' look-ups, biases, norms, softmax, the loss and the optimizer are not counted, nor
    is padding, nor what a program computes twice.

    Source: the 6 operations, Kaplan et al. 2020, section 2.1; without what is recomputed, the
    model FLOPs of Chowdhery et al. 2022, appendix B.

    Args:
        config: sizes of the model.
        tgt_vocab: V.
        src_lengths: tokens of each source sentence.
        tgt_lengths: tokens to predict of each target sentence.
    """
    # Those of pairs have 16 bits, too few for their squares.
    src, tgt = src_lengths.astype(np.int64), tgt_lengths.astype(np.int64)
    width, inner = config.d_model, config.ffn
    num_src, num_tgt = int(src.sum()), int(tgt.sum())
    encoder = 6 * num_src * (4 * width**2 + 2 * width * inner)
    encoder += 12 * width * int((src**2).sum())
    decoder = 6 * num_tgt * (6 * width**2 + 2 * width * inner) + 6 * num_src * 2 * width**2
    to_itself = int((tgt * (tgt + 1) // 2).sum())
    decoder += 12 * width * (to_itself + int((tgt * src).sum()))
    output = 6 * num_tgt * width * tgt_vocab
    return config.encoder_layers * encoder + config.decoder_layers * decoder + output
