"""The ways in which ranks can sum their gradients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WayToSum:
    """How ranks sum their gradients; all of them must have the same.

    Attributes:
        bucket_bytes: size above which a bucket takes no further gradient. Buckets are sent during
            the backward pass. None: all gradients are sent in one piece after it.
        sends_bf16: gradients of fp32 are sent and summed as bf16, which is half as much, and changes
            their bits.
        has_priority: on GPUs, sums that run during the backward pass go before its own kernels.
        most_channels: on GPUs, most blocks of threads that NCCL takes from the other kernels; None:
            as many as it wants. The last bucket, beside which nothing runs, has as many in any case.
        copies: on GPUs of one host, buckets are brought by copy engines instead, which take no
            multiprocessor; the sum of two ranks has the same bits.
    """

    bucket_bytes: int | None = None
    sends_bf16: bool = False
    has_priority: bool = False
    most_channels: int | None = None
    copies: bool = False

    @property
    def last(self) -> WayToSum:
        """How the last bucket is summed."""
        return WayToSum() if self.bucket_bytes is not None and self.most_channels else self
