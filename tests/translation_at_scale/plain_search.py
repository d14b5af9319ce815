"""Searches as books write them: one sentence at a time, no cache, every prefix computed anew."""

from __future__ import annotations

from dataclasses import dataclass

import torch


PAD, BOS, EOS = 0, 2, 3


@dataclass(frozen=True)
class Found:
    """A translation: its ids without marks, and the sum of its log-probabilities, the end mark included."""

    ids: tuple[int, ...]
    log_prob: float

    def score(self, penalty):
        return self.log_prob / (len(self.ids) + 1) ** penalty


@torch.inference_mode()
def next_log_probs(model, source, prefixes):
    """Return the log-probabilities of the next token after each prefix, which all have one length, [N, V]."""
    src = torch.tensor([[*source, EOS]]).expand(len(prefixes), -1)
    src_mask = torch.ones(len(prefixes), 1, src.shape[1], dtype=torch.bool)
    trg = torch.tensor([[BOS, *prefix] for prefix in prefixes])
    out = model.generator(model(src, trg, src_mask)[:, -1]).double().log_softmax(-1)
    # Marks that no translation holds.
    out[:, [PAD, BOS]] = -torch.inf
    return out


def log_prob(model, source, ids):
    """Return the log-probability of a translation, the end mark included."""
    found = 0.0
    for position, token in enumerate([*ids, EOS]):
        found += float(next_log_probs(model, source, [ids[:position]])[0, token])
    return found


def greedy(model, source, *, most):
    """Return the ids of the most probable token, again and again, until the end mark or the longest length."""
    ids = []
    while len(ids) < most:
        token = int(next_log_probs(model, source, [ids])[0].argmax())
        if token == EOS:
            break
        ids.append(token)
    return ids


def beam_search(model, source, *, beam, penalty, most):
    """Return the best translations, best first, at most as many as the beam.

    In each step those of the `beam` best continuations that end compete for as many places by log-probability /
    length ** penalty, and the `beam` best that go on do so. It is over when all places are taken, and none that
    goes on scores more than the last of them; at the longest length all must end.
    """
    alive, ended = [Found((), 0.0)], []
    for length in range(most + 1):
        rows = next_log_probs(model, source, [one.ids for one in alive])
        if length == most:
            ended += [
                Found(one.ids, one.log_prob + float(row[EOS]))
                for one, row in zip(alive, rows, strict=True)
            ]
        else:
            totals = rows + torch.tensor([one.log_prob for one in alive]).double().unsqueeze(1)
            totals, picks = totals.flatten().topk(2 * beam)
            steps = [
                (alive[pick // rows.shape[1]], pick % rows.shape[1], total)
                for pick, total in zip(picks.tolist(), totals.tolist(), strict=True)
            ]
            ended += [Found(one.ids, total) for one, token, total in steps[:beam] if token == EOS]
            alive = [
                Found((*one.ids, token), total) for one, token, total in steps if token != EOS
            ]
            alive = alive[:beam]
        ended = sorted(ended, key=lambda one: -one.score(penalty))[:beam]
        best_alive = alive[0].log_prob / (length + 1) ** penalty
        if len(ended) == beam and ended[-1].score(penalty) >= best_alive:
            break
    return ended
