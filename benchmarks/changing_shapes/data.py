"""Batches of sentences whose lengths change: padded, bucketed and packed.

Lengths are log-normal around 28 tokens, as of news text in subwords. A sentence is as long as its part of
ids; 0 is padding.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch


LENGTHS = ("padded", "bucketed", "packed")

VOCABULARY = 8_000

# Sentences that are sorted before batches are made of them, in batches.
_POOL = 16

# Bucketed batches are as long as a multiple of this.
_MULTIPLE = 8


@dataclass(frozen=True)
class Sizes:
    """How large a training is.

    Attributes:
        rows: sentences of a batch.
        longest: of all sentences, and what rows of packed batches hold.
        width: of the model.
        depth: of the model.
        heads: of the model.
    """

    rows: int
    longest: int
    width: int
    depth: int
    heads: int


GPU = Sizes(rows=32, longest=128, width=512, depth=4, heads=8)
TINY = Sizes(rows=4, longest=16, width=16, depth=1, heads=2)


def sentences(num: int, sizes: Sizes) -> list[list[int]]:
    """Return so many sentences, the same ones every time."""
    draw = random.Random(1)
    median = min(28, sizes.longest // 3)
    lengths = (
        max(4, min(sizes.longest, round(median * draw.lognormvariate(0.0, 0.5))))
        for _ in range(num)
    )
    return [[draw.randrange(1, VOCABULARY) for _ in range(length)] for length in lengths]


def batches_of(kind: str, num: int, sizes: Sizes) -> list[list[list[int]]]:
    """Return the sentences of so many batches: in their order, or those of like length together."""
    rows = sentences(num * sizes.rows, sizes)
    if kind == "bucketed":
        draw, pool, found = random.Random(2), _POOL * sizes.rows, []
        for begin in range(0, len(rows), pool):
            near = sorted(rows[begin : begin + pool], key=len)
            some = [near[at : at + sizes.rows] for at in range(0, len(near), sizes.rows)]
            draw.shuffle(some)
            found += some
        return found
    return [rows[at : at + sizes.rows] for at in range(0, len(rows), sizes.rows)]


def collated(rows: list[list[int]], kind: str, sizes: Sizes) -> dict[str, torch.Tensor]:
    """Return ids, [B, T], their mask, [B, T], and a label for each row.

    Rows of a packed batch hold several sentences each, as many as fit; a batch has as many rows as it
    takes, and its mask numbers the sentences of a row from one.
    """
    if kind == "packed":
        packed = _packed(rows, sizes.longest)
        length = sizes.longest
    else:
        packed = [[row] for row in rows]
        length = max(map(len, rows))
        if kind == "bucketed":
            length = min(-(-length // _MULTIPLE) * _MULTIPLE, sizes.longest)
    ids = torch.zeros(len(packed), length, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, parts in enumerate(packed):
        begin = 0
        for part, sentence in enumerate(parts, start=1):
            end = begin + len(sentence)
            ids[number, begin:end] = torch.tensor(sentence)
            mask[number, begin:end] = part
            begin = end
    return {"input_ids": ids, "attention_mask": mask, "labels": ids[:, 0] % 2}


def _packed(rows: list[list[int]], length: int) -> list[list[list[int]]]:
    found: list[list[list[int]]] = []
    room: list[int] = []
    for row in rows:
        for number, left in enumerate(room):
            if left >= len(row):
                found[number].append(row)
                room[number] -= len(row)
                break
        else:
            found.append([row])
            room.append(length - len(row))
    return found
