"""Compare tensors bit by bit: at once, or by checksums that stay on their device without a host wait.

Numbers will not do: NaN differs from itself, and 0.0 equals -0.0.

For a checksum the bits of every element, read as an integer, are multiplied by a weight of the element's
position, and the products are summed modulo 2**64. Integer sums do not depend on the order of
their terms, so equal bits always give equal checksums, whatever kernel adds them.

* All weights are odd, so they have an inverse modulo 2**64: a change of any one element, even of a
  single bit, always changes the checksum. (A complex128 counts as two elements.)
* The low halves of the weights are 1, 3, 5, ...: swapping two elements of at most 32 bits always
  changes it, in tensors of up to 2**31 elements. 64-bit elements are folded first, because
  x and -x differ by 2**63, which the difference of any two odd weights would bring to zero.
* The high halves are scrambled. Several changes that would cancel out because of their positions,
  such as +1 +1 -1 -1, leave it unchanged in only about one of 2**32 cases.

Source: the multilinear family of hash functions (Lemire and Kaser, "Strongly universal string
hashing is fast", The Computer Journal 57(11), 2014), here with fixed odd multipliers; the
scrambling constants are those of SplitMix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from collections.abc import Iterable


# Elements in one pass; each takes eight bytes for its weight and eight for the product.
_CHUNK = 1 << 22

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}
_LOW_HALF = 0xFFFFFFFF


def _signed(constant: int) -> int:
    return constant - (1 << 64)


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX = _signed(0xBF58476D1CE4E5B9)


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Return whether two dense tensors have elements of one size, as many, and the same bits.

    Sync: Blocks the host if they are on a device.
    """
    return torch.equal(bytes_of(ours), bytes_of(theirs))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of each element of a dense tensor, [elements, bytes], uint8.

    Sync: Does not block the host.
    """
    flat = _flat(tensor)
    return flat.view(torch.uint8).reshape(flat.numel(), flat.element_size())


class Checksums:
    """Take checksums of tensors on one device.

    Args:
        device: where the tensors are.
        num_elements: size of the largest tensor that is expected; larger ones take longer.
    """

    def __init__(self, device: torch.device, *, num_elements: int) -> None:
        self._weights = odd_weights(0, min(num_elements, _CHUNK), device)

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the checksum of a dense tensor as an int64 tensor without dimensions.

        Sync: Does not block the host.
        """
        with torch.no_grad():
            words = _words(tensor)
            starts = range(0, max(1, len(words)), _CHUNK)
            parts = [self._sum(words[start : start + _CHUNK], start) for start in starts]
            return parts[0] if len(parts) == 1 else torch.stack(parts).sum()

    def take_all(self, tensors: Iterable[torch.Tensor]) -> torch.Tensor:
        """Return the checksums of dense tensors, int64, one for each, in order.

        Sync: Does not block the host.
        """
        sums = [self.take(tensor) for tensor in tensors]
        return torch.stack(sums) if sums else self._weights.new_empty(0)

    def _sum(self, words: torch.Tensor, start: int) -> torch.Tensor:
        end = start + len(words)
        if end <= len(self._weights):
            return (words * self._weights[start:end]).sum()
        return (words * odd_weights(start, end, words.device)).sum()


def odd_weights(start: int, end: int, device: torch.device) -> torch.Tensor:
    """Return the odd weights of the positions from `start` to `end`, int64."""
    position = torch.arange(start, end, dtype=torch.int64, device=device)
    scrambled = position * _GOLDEN
    scrambled = (scrambled ^ (scrambled >> 30)) * _MIX
    scrambled = scrambled ^ (scrambled >> 27)
    return (scrambled << 32) + (2 * position + 1)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bits of a tensor as a flat tensor of integers."""
    flat = _flat(tensor)
    if flat.element_size() in _INTEGERS:
        return flat.view(_INTEGERS[flat.element_size()])
    words = flat.view(torch.int64)
    return words ^ ((words >> 32) & _LOW_HALF)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor in their order, without gaps."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
