"""Steps that read a value on the host, but not while they are captured, and then do something else.

As written the value decides what is computed. In a capture nobody can read it, so the code takes a
default, as the masks of transformers do. A value of the batch alone may choose among graphs; one of
weights, of states or of random draws cannot. Batches of the default's kind, `a`, come first, so that
captures are proved on them alone; those of another kind come late.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_harness import EITHER, captured_case, refused
from hazards.captured_models import (
    Trainer,
    batch,
    host_batch,
    is_capturing,
    kept,
    mlp,
    sgd,
    state,
    updated,
)


LATE = "aaaaaaaa" + "bbab" + "aabbabab" + "bbbbaaab"
EARLY = "bbbbbbbb" + "aaba" + "bbaababa" + "aaaabbba"
MIXED = "abbaabab" * 3


def results_of(place, step, batch_of, kinds=LATE, **options):
    """Capture the step, call it with `batch_of(number, kind)` for each kind; return its results."""
    step = place.capture(step, **options)
    return [kept(step(batch_of(number, kind))) for number, kind in enumerate(kinds)]


def masked(place, number, kind, *, dtype=torch.bool):
    """Return features, classes and a mask, which has padding in batches of kind a alone."""
    (x, y), mask = batch(place, number), torch.ones(6, 8, dtype=dtype)
    if kind == "a":
        mask[number % 6, 2 + number % 5 :] = 0
    return x, y, place.moved(mask)


def flagged(place, number, kind, flags="ab"):
    """Return features, classes and a flag on the device: 0 for kind a."""
    x, y = batch(place, number)
    return x, y, place.moved(torch.tensor(flags.index(kind)))


def scaled(place, number, kind):
    """Return features and classes; the features of batches of kind b are large."""
    x, y = batch(place, number)
    return (x * 6 if kind == "b" else x), y


def ragged(place, number, kind):
    """Return features, classes and lengths of rows, all of which are short in batches of kind b."""
    x, y = batch(place, number)
    lengths = (
        torch.full((6,), 8) if kind == "a" else 2 + (torch.arange(6) + number) % (number % 5 + 1)
    )
    return x, y, place.moved(lengths)


def train_masked(trainer, x, y, mask):
    """Train on masked features, or on all of them, twice as hard."""
    if mask is None:
        return updated(trainer.optimizer, 2 * trainer.loss((x, y)))
    return trainer.train((x * mask, y))


# ------------------------------------------------------------------------ values of the batch


def _without_padding(place, kinds):
    trainer = Trainer(place)

    def step(three):
        x, y, mask = three
        if not is_capturing() and mask.all():
            mask = None
        return train_masked(trainer, x, y, mask)

    losses = results_of(place, step, lambda *one: masked(place, *one), kinds)
    return losses, trainer.state()


@captured_case("The first batch without padding comes late: `mask.all()`.", expect=EITHER)
def batches_without_padding_come_late(place):
    return _without_padding(place, LATE)


@captured_case("The first batch with padding comes late.", expect=EITHER)
def batches_with_padding_come_late(place):
    return _without_padding(place, EARLY)


@captured_case("Batches with padding and without come in turns from the start.", expect=EITHER)
def padding_in_turns(place):
    return _without_padding(place, MIXED)


@captured_case(
    "The loop never waits, and batches without padding come late.", expect=EITHER, waits=False
)
def no_waits(place):
    return _without_padding(place, LATE)


@captured_case("The mask is one tensor, which the loop fills for each batch.", expect=EITHER)
def mask_is_filled_by_the_loop(place):
    trainer, fixed = Trainer(place), place.moved(torch.ones(6, 8))

    def step(three):
        x, y, mask = three
        if not is_capturing() and bool(mask.all()):
            mask = None
        return train_masked(trainer, x, y, mask)

    def batch_of(number, kind):
        x, y, mask = masked(place, number, kind, dtype=torch.float32)
        return x, y, fixed.copy_(mask)

    return results_of(place, step, batch_of), trainer.state()


@captured_case("Features are cut to the longest row: `lengths.max().item()`.", expect=EITHER)
def cut_to_the_longest(place):
    trainer = Trainer(place)

    def step(three):
        x, y, lengths = three
        longest = x.shape[1] if is_capturing() else lengths.max().item()
        x = F.pad(x[:, :longest], (0, x.shape[1] - longest))
        return trainer.train((x, y))

    return results_of(place, step, lambda *one: ragged(place, *one)), trainer.state()


@captured_case("A list of kinds is read, and each row goes through its head.", expect=EITHER)
def heads_by_a_list(place):
    body, heads = mlp(place), [mlp(place, num_in=4), mlp(place, num_in=4, dropout=0.2)]
    models = nn.ModuleList([body, *heads])
    optimizer = sgd(models)

    def step(three):
        x, y, kinds = three
        chosen = [0] * len(x) if is_capturing() else kinds.tolist()
        hidden = body(x)
        rows = [heads[kind](hidden[row]) for row, kind in enumerate(chosen)]
        return updated(optimizer, F.cross_entropy(torch.stack(rows), y))

    def batch_of(number, kind):
        kinds = torch.zeros(6, dtype=torch.long)
        if kind == "b":
            kinds[number % 6] = kinds[(number + 2) % 6] = 1
        return (*batch(place, number), place.moved(kinds))

    return results_of(place, step, batch_of), state(models, optimizer)


@captured_case("`torch.equal` tells whether two parts of a batch are the same.", expect=EITHER)
def parts_are_equal(place):
    trainer = Trainer(place)

    def step(pair):
        first, second, y = pair["first"], pair["second"], pair["y"]
        if not is_capturing() and torch.equal(first, second):
            return updated(trainer.optimizer, 3 * trainer.loss((first, y)))
        return updated(trainer.optimizer, trainer.loss((first, y)) + trainer.loss((second, y)))

    def batch_of(number, kind):
        x, y = batch(place, number)
        second = x.clone() if kind == "b" else x.flip(0)
        return {"first": x, "second": second, "y": y}

    return results_of(place, step, batch_of), trainer.state()


@captured_case("A dict has a mask at times, and the mask has padding at times.", expect=EITHER)
def mask_of_a_dict(place):
    trainer = Trainer(place)

    def step(one):
        mask = one.get("attention_mask")
        if mask is not None and not is_capturing() and mask.all():
            mask = None
        return train_masked(trainer, one["input"], one["labels"], mask)

    def batch_of(number, kind):
        x, y, mask = masked(place, number, kind)
        named = {"input": x, "labels": y, "attention_mask": mask}
        return {key: named[key] for key in list(named)[: 2 + (number % 7 != 5)]}

    return results_of(place, step, batch_of, LATE + MIXED), trainer.state()


def ignores(mask):
    """Return whether a mask need not be used, as libraries ask it."""
    if torch.compiler.is_compiling() or is_capturing():
        return False
    return bool(mask.all())


def bias_of(mask, dtype):
    """Return what is added to scores of attention, or nothing."""
    if ignores(mask):
        return None
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -1e4)


@captured_case("Functions of a library ask, two calls deep, and return None.", expect=EITHER)
def bias_of_a_library(place):
    model = nn.Linear(8, 24).to(place.torch_device)
    optimizer = sgd(model)

    def step(three):
        x, y, mask = three
        query, key, value = model(x).chunk(3, dim=-1)
        bias = bias_of(mask.all(1).expand(6, 6), x.dtype)
        out = F.scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask=bias, is_causal=bias is None
        )
        return updated(optimizer, F.cross_entropy(out[0, :, :4], y))

    losses = results_of(place, step, lambda *one: masked(place, *one))
    return losses, state(model, optimizer)


# --------------------------------------------------------------------------- several reads


@captured_case("A second value is read only if the first is true.", expect=EITHER)
def read_after_a_read(place):
    trainer = Trainer(place)

    def step(three):
        x, y, weights = three
        loss = trainer.loss((x, y))
        if not is_capturing() and (weights > 0).any():
            row = weights.argmax().item()
            loss = loss + trainer.loss((x[row : row + 1], y[row : row + 1]))
        return updated(trainer.optimizer, loss)

    def batch_of(number, kind):
        weights = torch.zeros(6)
        weights[number % 6 if number < 16 else number % 2] = float(kind == "b")
        return (*batch(place, number), place.moved(weights))

    return results_of(place, step, batch_of, LATE + MIXED), trainer.state()


@captured_case(
    "A place is read, and then the flag in that place, unless there is none.", expect=EITHER
)
def flag_at_a_place_that_is_read(place):
    trainer = Trainer(place)

    def step(one):
        scale, first = 1.0, 0
        if not is_capturing():
            first = one["first"].item()
            if first < len(one["flags"]) and one["flags"][first].item():
                scale = 0.5 + first
        return updated(trainer.optimizer, scale * trainer.loss((one["x"], one["y"])))

    def batch_of(number, kind):
        x, y = batch(place, number)
        first = {"a": 0, "b": (2, 9, 4)[number % 3]}[kind]  # there are six flags
        flags = place.moved(torch.tensor([False, True] * 3).roll(number % 2 if first else 0))
        return {"x": x, "y": y, "first": place.moved(torch.tensor(first)), "flags": flags}

    return results_of(place, step, batch_of, LATE + MIXED), trainer.state()


@captured_case("The place that is read lies outside of some batches: IndexError.", expect=EITHER)
def place_outside_of_the_batch(place):
    trainer, losses, caught = Trainer(place), [], []

    def step(three):
        x, y, place_of = three
        row = 0 if is_capturing() else place_of.item()
        if not is_capturing() and x[row, 0].item() > 0:
            x = -x
        return trainer.train((x, y))

    step = place.capture(step)
    for number, kind in enumerate(LATE):
        x, y = batch(place, number)
        x[0, 0] = -1
        row = 0 if kind == "a" else (1, 7, 3)[number % 3]
        try:
            losses.append(kept(step((x, y, place.moved(torch.tensor(row))))))
        except IndexError as error:
            caught.append(str(error))
    return losses, caught, trainer.state()


@captured_case("Two values are read, each with consequences of its own.", expect=EITHER)
def two_reads(place):
    trainer = Trainer(place)

    def step(one):
        (x, y), loss_scale = one["pair"], 1.0
        if not is_capturing() and one["hard"].item():
            loss_scale = 3.0
        if not is_capturing() and int(one["flip"]):
            x = x.flip(1)
        return updated(trainer.optimizer, loss_scale * trainer.loss((x, y)))

    def batch_of(number, kind):
        hard, flip = kind == "b", kind == "b" and number % 3 == 0
        flip = flip or (number > 14 and number % 4 == 1)
        flags = {"hard": torch.tensor(hard), "flip": torch.tensor(int(flip))}
        return {"pair": batch(place, number), **{key: place.moved(f) for key, f in flags.items()}}

    return results_of(place, step, batch_of, LATE + MIXED), trainer.state()


@captured_case("The same value is read twice, in two functions.", expect=EITHER)
def same_read_twice(place):
    trainer = Trainer(place)

    def scale_of(mask):
        return 1.0 if is_capturing() else (2.0 if mask.all() else 1.0)

    def step(three):
        x, y, mask = three
        scale = scale_of(mask)
        if not is_capturing() and mask.all():
            x = x + 1
        return updated(trainer.optimizer, scale * trainer.loss((x, y)))

    return results_of(place, step, lambda *one: masked(place, *one)), trainer.state()


@captured_case("One line reads the same tensor, which changes in between.", expect=EITHER)
def same_read_before_and_after_a_change(place):
    trainer = Trainer(place)

    def is_odd(flag):
        return not is_capturing() and flag.item() % 2 == 1

    def step(three):
        x, y, flag = three
        if is_odd(flag):
            x = -x
        flag //= 2
        if is_odd(flag):
            x = x + 1
        flag //= 2
        if is_odd(flag):
            x = x * 2
        return trainer.train((x, y))

    def batch_of(number, kind):
        flag = 0 if kind == "a" else number % 7 + 1
        return (*batch(place, number), place.moved(torch.tensor(flag)))

    return results_of(place, step, batch_of), trainer.state()


# ---------------------------------------------------------------------- what is read, and how


@captured_case("The step changes the batch in place, and then reads it.", expect=EITHER)
def batch_is_changed_before_the_read(place):
    trainer = Trainer(place)

    def step(three):
        x, y, mask = three
        mask.logical_not_()
        if not is_capturing() and not mask.any():
            return updated(trainer.optimizer, 2 * trainer.loss((x, y)))
        return trainer.train((x * ~mask, y))

    return results_of(place, step, lambda *one: masked(place, *one)), trainer.state()


@captured_case("A view is taken, its base is changed, and the view is read.", expect=EITHER)
def view_is_read_after_its_base_changed(place):
    trainer = Trainer(place)

    def step(three):
        x, y, mask = three
        corner = mask.view(-1)[8:24].view(2, 8)[:, ::2]
        mask[1:3] = mask[4:6].clone()
        if not is_capturing() and corner.all():
            x = x.roll(1, 1)
        return trainer.train((x * mask, y))

    def batch_of(number, kind):
        mask = torch.ones(6, 8)
        mask[1] = 0.0
        mask[5, 4 * (number % 2)] = float(kind == "b")
        return (*batch(place, number), place.moved(mask))

    return results_of(place, step, batch_of), trainer.state()


@captured_case("What is read is a product under autocast, rounded to half.", expect=EITHER)
def product_under_autocast(place):
    trainer = Trainer(place)

    def step(three):
        x, y, one = three
        with torch.autocast(place.torch_device.type, dtype=torch.bfloat16):
            is_more = not is_capturing() and (one @ one.t()).amax().item() > 1.002
            loss = trainer.loss((x, y))
        return updated(trainer.optimizer, loss.float() * (3.0 if is_more else 1.0))

    def batch_of(number, kind):
        length = {"a": 1.003, "b": 1.02}[kind]  # 1.003 is 1 in bfloat16, and 1.006 when squared
        one = torch.zeros(2, 2)
        one[0, 0] = length
        return (*batch(place, number), place.moved(one))

    return results_of(place, step, batch_of), trainer.state()


@captured_case("A captured evaluation reads in inference mode; training does not.", expect=EITHER)
def evaluation_in_inference_mode(place):
    trainer, losses, scores = Trainer(place), [], []

    @torch.inference_mode()
    def evaluate(three):
        x, _, mask = three
        if not is_capturing() and mask.all():
            x = x * 2
        return trainer.model(x * mask)

    evaluate, train = place.capture(evaluate), place.capture(trainer.train)
    for number, kind in enumerate(LATE):
        losses.append(kept(train(batch(place, number))))
        scores.append(kept(evaluate(masked(place, number, kind))))
    return losses, scores, trainer.state()


@captured_case("Only training reads, and epochs of both take turns.", expect=EITHER)
def only_training_reads(place):
    trainer, found = Trainer(place, dropout=0.2), []
    model = trainer.model

    def step(three):
        x, y, mask = three
        if model.training and not is_capturing() and mask.all():
            mask = None
        if model.training:
            return train_masked(trainer, x, y, mask)
        with torch.no_grad():
            return trainer.loss((x * mask, y))

    step = place.capture(step)
    for epoch, kinds in enumerate(["aaaaaa", "abab", "bbbb", "aabb"]):
        for is_training in (True, False):
            model.train(is_training)
            for number, kind in enumerate(kinds):
                found.append(kept(step(masked(place, 10 * epoch + number, kind))))
    return found, trainer.state()


@captured_case("Rows are chosen by a mask, whose number nobody knows ahead.", expect=EITHER)
def rows_of_a_mask(place):
    trainer = Trainer(place)

    def step(three):
        x, y, keep = three
        if not is_capturing():
            x, y = x[keep], y[keep]
        return trainer.train((x, y))

    def batch_of(number, kind):
        keep = torch.arange(6) % 3 != (number % 3 if kind == "b" else 4)
        return (*batch(place, number), place.moved(keep))

    return results_of(place, step, batch_of), trainer.state()


@captured_case("A batch with infinite features is refused by the user's own check.", expect=EITHER)
def check_that_raises(place):
    trainer, losses, caught = Trainer(place), [], []

    def step(pair):
        x, y = pair
        if not is_capturing() and not x.isfinite().all():
            raise ValueError(f"{len(x)} rows, not all of them finite")
        return trainer.train((x.clamp(-4, 4), y))

    step = place.capture(step)
    for number, kind in enumerate("aaaaaaaa" + "aabaabbaaaab"):
        x, y = batch(place, number)
        if kind == "b":
            x[2, 3] = math.inf
        try:
            losses.append(kept(step((x, y))))
        except ValueError as error:
            caught.append((number, str(error)))
    return losses, caught, trainer.state()


# ---------------------------------------------------------------------------- peculiar values


@captured_case("What is read is NaN at times, which equals nothing.", expect=EITHER)
def nan_is_read(place):
    trainer = Trainer(place)

    def step(three):
        x, y, peak = three
        top = 1.0 if is_capturing() else peak.item()
        x = x + 1 if top != top else x / top
        return trainer.train((x, y))

    def batch_of(number, kind):
        peak = 1.0 if kind == "a" else (math.nan, math.inf, math.nan, 2.0)[number % 4]
        return (*batch(place, number), place.moved(torch.tensor(peak)))

    return results_of(place, step, batch_of, LATE + MIXED), trainer.state()


@captured_case("What is read is 0.0 or -0.0, which are equal.", expect=EITHER)
def signed_zero_is_read(place):
    trainer = Trainer(place)

    def step(three):
        x, y, shift = three
        sign = math.copysign(1.0, 0.0 if is_capturing() else shift.item())
        return trainer.train((x * sign, y))

    def batch_of(number, kind):
        return (*batch(place, number), place.moved(torch.tensor(0.0 if kind == "a" else -0.0)))

    return results_of(place, step, batch_of), trainer.state()


@captured_case("A flag is 1, True or 1.0: equal, and of other types.", expect=EITHER)
def flag_changes_its_dtype(place):
    trainer = Trainer(place)

    def step(three):
        x, y, flag = three
        value = 1 if is_capturing() else flag.item()
        scale = {int: 1.0, bool: 2.0, float: 3.0}[type(value)]
        return updated(trainer.optimizer, scale * trainer.loss((x, y)) + value)

    def batch_of(number, kind):
        dtype = torch.long if kind == "a" else (torch.bool, torch.float32)[number % 2]
        return (*batch(place, number), place.moved(torch.ones((), dtype=dtype)))

    return results_of(place, step, batch_of, LATE + MIXED), trainer.state()


@captured_case("Masks are of bool at first, and later of uint8 at times.", expect=EITHER)
def mask_changes_its_dtype(place):
    trainer = Trainer(place)

    def step(three):
        x, y, mask = three
        if not is_capturing() and mask.min() == 1:
            mask = None
        return train_masked(trainer, x, y, mask)

    def batch_of(number, kind):
        is_late = number > 12 and number % 3
        return masked(place, number, kind, dtype=torch.uint8 if is_late else torch.bool)

    return results_of(place, step, batch_of, LATE + MIXED), trainer.state()


@captured_case("The value that is read is another one in each of 240 batches.", expect=EITHER)
def always_another_value(place):
    trainer = Trainer(place)

    def step(three):
        x, y, total = three
        num = 1 if is_capturing() else total.sum().item()
        return updated(trainer.optimizer, trainer.loss((x, y)) / num)

    def batch_of(number, kind):
        total = torch.tensor([1, 0] if kind == "a" else [number, 1])
        return (*batch(place, number), place.moved(total))

    return results_of(place, step, batch_of, "a" * 8 + "b" * 232), trainer.state()


@captured_case("Some batches are empty, and all of nothing is true.", expect=EITHER)
def empty_batches(place):
    trainer = Trainer(place)

    def step(three):
        x, y, mask = three
        if not is_capturing() and mask.all():
            mask = None
        x = x if mask is None else x * mask
        scale = 2.0 if mask is None else 1.0
        loss = scale * F.cross_entropy(trainer.model(x), y, reduction="sum")
        return updated(trainer.optimizer, loss)

    def batch_of(number, kind):
        x, y, mask = masked(place, number, kind)
        num = 0 if number % 5 == 4 and number > 5 else 6
        return x[:num], y[:num], mask[:num]

    return results_of(place, step, batch_of, LATE + MIXED), trainer.state()


@captured_case("The branch returns something else, of other shapes.", expect=EITHER)
def results_of_another_structure(place):
    trainer, found = Trainer(place), []

    def step(three):
        x, y, kind = three
        loss = trainer.train((x, y)).detach()
        value = 0 if is_capturing() else kind.item()
        if value == 1:
            return {"loss": loss, "top": x.amax(1)}
        return loss if value == 0 else (loss, [x[:value].sum(0), value], None)

    step = place.capture(step)
    for number, kind in enumerate("aaaaaaaa" + "babcabcacbcbaacb"):
        found.append(step(flagged(place, number, kind, "abcd")))
    return found, trainer.state()


@captured_case("What is read is put into a list of the loop.", expect=EITHER)
def value_is_kept_on_the_host(place):
    trainer, seen = Trainer(place), []

    def step(three):
        x, y, flag = three
        if not is_capturing():
            seen.append(flag.item())
        return trainer.train((x, y))

    losses = results_of(place, step, lambda *one: flagged(place, *one))
    return losses, seen, trainer.state()


@captured_case("The value is compared with a number of the loop, which changes.", expect=EITHER)
def threshold_changes(place):
    trainer, settings = Trainer(place), {"most": 5, "gain": 1}

    def step(three):
        x, y, flag = three
        if not is_capturing() and (flag * settings["gain"]).item() > settings["most"]:
            x = -x
        return trainer.train((x, y))

    def batch_of(number, kind):
        settings["most"] = 5 if number < 14 else 0
        settings["gain"] = 1 if number < 20 else 1 - number % 2
        return flagged(place, number, kind, "cab")

    return results_of(place, step, batch_of, LATE + MIXED), trainer.state()


@captured_case(
    "A large tensor is copied to the host and looked through there.",
    expect=refused(at="on_host = x.cpu()"),
)
def large_copy_to_the_host(place):
    model = mlp(place, num_in=64)
    optimizer = sgd(model)

    def step(pair):
        x, y = pair
        if not is_capturing():
            on_host = x.cpu()
            if (on_host[:, 0] > 90).any():
                x = x.clamp(max=1)
        return updated(optimizer, F.cross_entropy(model(x), y))

    def batch_of(number, kind):
        x, y = host_batch(number, rows=4096, num_in=64)  # 1 MiB
        if kind == "b":
            x[number * 100, 0] = 100.0
        return place.moved(x), place.moved(y)

    return results_of(place, step, batch_of, LATE[:16]), state(model, optimizer)


@captured_case("The mask comes by its name, and is left out at times.", expect=EITHER)
def mask_is_a_keyword(place):
    trainer, losses = Trainer(place), []

    def step(x, y, *, mask=None):
        if mask is not None and not is_capturing() and mask.all():
            x = x + 1
        return train_masked(trainer, x, y, 1 if mask is None else mask)

    step = place.capture(step)
    for number, kind in enumerate(LATE + MIXED):
        x, y, mask = masked(place, number, kind)
        named = {"mask": mask} if number % 4 else {}
        losses.append(kept(step(x, y, **named)))
    return losses, trainer.state()


@captured_case("A small tensor is copied to the host, and numpy computes with it.", expect=EITHER)
def numpy_computes(place):
    trainer = Trainer(place)

    def step(three):
        x, y, lengths = three
        spread = 0.0 if is_capturing() else lengths.cpu().numpy().std()
        return trainer.train((x + float(spread), y))

    return results_of(place, step, lambda *one: ragged(place, *one)), trainer.state()


@captured_case(
    "A tensor of the loop is read, which no batch holds and the loop fills.", expect=EITHER
)
def tensor_of_the_loop(place):
    trainer, control = Trainer(place), place.moved(torch.zeros(3))

    def step(pair):
        if not is_capturing() and control[1].item() > 0:
            return updated(trainer.optimizer, 2 * trainer.loss(pair))
        return trainer.train(pair)

    def batch_of(number, kind):
        control[1] = float(kind == "b")
        return batch(place, number)

    return results_of(place, step, batch_of), trainer.state()


@captured_case("A weight is handed over with the batch, and read after the update.", expect=EITHER)
def weight_is_handed_over(place):
    trainer = Trainer(place)
    weight = trainer.model[3].weight
    limit = 1.15 * weight.norm().item()

    def step(three):
        x, y, given = three
        loss = trainer.train((x, y))
        if not is_capturing() and given.detach().norm().item() > limit:
            with torch.no_grad():
                weight.mul_(0.9)
        return loss

    losses = results_of(place, step, lambda number, _: (*batch(place, number), weight), MIXED * 2)
    return losses, trainer.state()


# ---------------------------------------------------------------------- groups of several steps


@captured_case(
    "A group is one batch four times, and each step changes it and reads.", expect=EITHER
)
def group_of_one_batch_that_changes(place):
    trainer, losses = Trainer(place), []

    def step(three):
        x, y, num_uses = three
        num_uses += 1
        if not is_capturing() and num_uses.item() > 10:
            return updated(trainer.optimizer, 2 * trainer.loss((x, y)))
        return trainer.train((x, y))

    step, uses = place.capture(step, steps_per_launch=4), []
    for number in range(16):
        num_uses = place.moved(torch.tensor(0 if number < 8 or number % 3 == 1 else 8))
        uses.append(num_uses)
        losses += [kept(loss) for loss in step([(*batch(place, number), num_uses)] * 4)]
    return losses, uses, trainer.state()


@captured_case("Groups of four batches, some with padding and some without.", expect=EITHER)
def groups_of_four(place):
    trainer, losses = Trainer(place), []

    def step(three):
        x, y, mask = three
        if not is_capturing() and mask.all():
            mask = None
        return train_masked(trainer, x, y, mask)

    step, number = place.capture(step, steps_per_launch=4), 0
    for kinds in ["aaaa"] * 8 + ["bbbb", "aaaa", "abab", "aaab", "bbbb", "baaa", "aba"] * 2:
        group = [masked(place, number + one, kind) for one, kind in enumerate(kinds)]
        losses += [kept(loss) for loss in step(group)]
        number += len(kinds)
    return losses, trainer.state()


# --------------------------------------------------- values that no batch tells: not replayed


@captured_case(
    "The norm of a weight decides how hard is trained.",
    expect=refused(at="if not is_capturing() and weight.norm().item() > limit:"),
)
def norm_of_a_weight(place):
    trainer = Trainer(place)
    weight = trainer.model[3].weight
    limit = 1.15 * weight.norm().item()

    def step(pair):
        loss = trainer.loss(pair)
        if not is_capturing() and weight.norm().item() > limit:
            loss = loss + weight.square().sum()
        return updated(trainer.optimizer, loss)

    return results_of(place, step, lambda number, _: batch(place, number)), trainer.state()


class Counting(nn.Module):
    """A model that counts its calls on the device, and doubles its scores from the 13th on."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.register_buffer("num_seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.num_seen += 1
        scores = self.layer(x)
        if not is_capturing() and self.num_seen.item() > 12:
            scores = scores * 2
        return scores


@captured_case(
    "A buffer counts the steps, and is read.",
    expect=refused(at="if not is_capturing() and self.num_seen.item() > 12:"),
)
def buffer_that_counts(place):
    model = Counting().to(place.torch_device)
    optimizer = sgd(model)

    def step(pair):
        return updated(optimizer, F.cross_entropy(model(pair[0]), pair[1]))

    losses = results_of(place, step, lambda number, _: batch(place, number))
    return losses, state(model, optimizer)


@captured_case(
    "A loss that is too large is halved.",
    expect=refused(at="if not is_capturing() and loss.item() > 2.0:"),
)
def loss_is_read(place):
    trainer = Trainer(place)

    def step(pair):
        loss = trainer.loss(pair)
        if not is_capturing() and loss.item() > 2.0:
            loss = loss / 2
        return updated(trainer.optimizer, loss)

    return results_of(place, step, lambda *one: scaled(place, *one)), trainer.state()


@captured_case(
    "The batch and the weights together give the value.",
    expect=refused(at="if not is_capturing() and scores.argmax(1).eq(y).all():"),
)
def scores_are_read(place):
    trainer = Trainer(place)

    def step(pair):
        x, y = pair
        with torch.no_grad():
            scores = trainer.model(x)
        if not is_capturing() and scores.argmax(1).eq(y).all():
            return trainer.loss(pair)  # has learned it
        return trainer.train(pair)

    same = [batch(place, 0), batch(place, 1)]
    return results_of(place, step, lambda number, _: same[number % 2]), trainer.state()


@captured_case(
    "A number drawn on the device decides whether features are turned around.",
    expect=refused(at="if not is_capturing() and draw.item() < 0.4:"),
)
def draw_on_the_device(place):
    trainer = Trainer(place)

    def step(pair):
        x, y = pair
        draw = torch.rand((), device=x.device)
        if not is_capturing() and draw.item() < 0.4:
            x = x.flip(1)
        return trainer.train((x, y))

    return results_of(place, step, lambda number, _: batch(place, number)), trainer.state()


@captured_case("The number is drawn only where it is read.", expect=refused())
def draw_where_it_is_read(place):
    trainer = Trainer(place, dropout=0.3)

    def step(pair):
        x, y = pair
        if not is_capturing() and torch.rand((), device=x.device).item() < 0.4:
            x = x.flip(1)
        return trainer.train((x, y))

    return results_of(place, step, lambda number, _: batch(place, number)), trainer.state()


@captured_case(
    "The mask of the batch before is kept, and read in the next step.", expect=refused()
)
def mask_of_the_batch_before(place):
    trainer = Trainer(place)
    before = place.moved(torch.zeros(6, 8))

    def step(three):
        x, y, mask = three
        scale = 2.0 if not is_capturing() and before.all() else 1.0
        before.copy_(mask)
        return updated(trainer.optimizer, scale * trainer.loss((x, y)))

    return results_of(place, step, lambda *one: masked(place, *one)), before, trainer.state()


# ------------------------------------------------------------------------ reads of the update


@captured_case("A hook of the optimizer reads a gradient, and lowers it.", expect=EITHER)
def hook_of_the_optimizer(place):
    trainer = Trainer(place)
    weight = trainer.model[0].weight

    def lower(optimizer, args, kwargs):
        del optimizer, args, kwargs
        if not is_capturing() and weight.grad.norm().item() > 1.0:
            weight.grad.mul_(0.1)

    trainer.optimizer.register_step_pre_hook(lower)
    losses = results_of(place, trainer.train, lambda *one: scaled(place, *one))
    return losses, trainer.state()


class Careful(torch.optim.SGD):
    """An optimizer of the user's own, which skips updates by large gradients."""

    @torch.no_grad()
    def step(self, closure=None):
        weights = [weight for group in self.param_groups for weight in group["params"]]
        norm = torch.stack([weight.grad.norm() for weight in weights]).norm()
        if not is_capturing() and norm.item() > 2.0:
            return None
        return super().step(closure)


@captured_case("An optimizer of the user's own reads the norm of gradients.", expect=EITHER)
def optimizer_of_the_users_own(place):
    model = mlp(place)
    optimizer = Careful(model.parameters(), lr=0.1)

    def step(pair):
        return updated(optimizer, F.cross_entropy(model(pair[0]), pair[1]))

    losses = results_of(place, step, lambda *one: scaled(place, *one))
    return losses, state(model, optimizer)
