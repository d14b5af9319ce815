"""The settings of a new run: those that its user gave, and those that suit its text and device."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gapless.device.find import find_device
from gapless.errors import UserError
from gapless.nmt.run.config import DEMO, make_config
from gapless.nmt.run.defaults import (
    Choice,
    Facts,
    TextFacts,
    choose,
    choose_update,
    choose_vocabulary,
    chosen_settings,
)
from gapless.nmt.run.first_weights import FirstWeights, read_first_weights
from gapless.nmt.run.scoring import decide_scoring
from gapless.nmt.run.task import Task, make_vocabs, may_be_learned, prepare, read_corpus
from gapless.nmt.run.time_limit import WallClock


if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.device.base import Device
    from gapless.nmt.data.corpus import Pairs
    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.task import Vocabs


# Sentencepiece's own share; it leaves rarer characters to bytes.
_COVERAGE = 0.9995
# The alphabet of so many pairs stands for that of all.
_MAX_COUNTED = 200_000


@dataclass(frozen=True, kw_only=True)
class ChosenRun:
    """What a new run is to be.

    Attributes:
        config: all of its settings.
        choices: those that its user left open, with reasons; none for the embedded corpus.
        task: what it learns.
        clock: runs since its text was read.
        holds_update: whether its batches were chosen for the number of ranks.
    """

    config: TrainConfig
    choices: list[Choice]
    task: Task
    clock: WallClock
    holds_update: bool = False


def choose_run(
    given: Mapping[str, Any], *, world: int = 1, is_size_asked: bool = True
) -> ChosenRun:
    """Read the text of a new run, and choose the settings that were not given.

    The embedded corpus has settings of its own.

    Args:
        given: settings of the user, by name.
        world: number of ranks that are going to train it.
        is_size_asked: whether the size of its vocabularies, if it was given, was asked for. That of an
            earlier run may have been chosen, and is the nearest one of each side, where both have their own.

    Raises:
        UserError: anything about settings, data or device that cannot be used.
    """
    clock = WallClock()
    holds_update = given.get("accumulate") == "auto"
    if holds_update:
        given = {name: value for name, value in given.items() if name != "accumulate"}
    if given.get("data") is None:
        if given.get("init_from") is not None:
            raise UserError(
                f"`init_from={given['init_from']}` goes on with other text, and none is named; name it "
                "with `data`"
            )
        return _embedded(given, clock=clock, world=world, holds_update=holds_update)
    first, choices = None, list[Choice]()
    if given.get("init_from") is not None:
        first = read_first_weights(Path(given["init_from"]))
        first.check(given)
        choices = _of_first(first, given)
        given = {**given, **first.settings()}
    draft = _draft(given)
    device = find_device(draft.device)
    corpus = read_corpus(draft)
    # Refuses a tokenizer that is missing before the work on the vocabulary.
    decide_scoring(draft)
    note = None if first is None else first.note_of_direction(draft)
    if note is not None:
        corpus = replace(corpus, notes=(*corpus.notes, note))
    if first is None:
        choices = choose_vocabulary(_text_facts(may_be_learned(corpus.train, draft)), given)
        config = _so_far(choices, given)
        is_chosen = given.get("vocab_size") is None
        is_near = is_chosen or not (is_size_asked or config.shared_vocab)
        vocabs = make_vocabs(corpus.train, config, nearest=is_near)
        choices = _with_real_size(choices, vocabs)
    else:
        vocabs = first.vocabs
    known = {**given, **chosen_settings(choices)}
    task = prepare(_so_far(choices, given), vocabs=vocabs, corpus=corpus)
    facts = _facts(task, device, is_trained=first is not None)
    choices += choose(replace(facts, world=world, holds_update=holds_update), known)
    return ChosenRun(
        config=_with(choices, given),
        choices=choices,
        task=task,
        clock=clock,
        holds_update=holds_update,
    )


def _embedded(
    given: Mapping[str, Any], *, clock: WallClock, world: int, holds_update: bool
) -> ChosenRun:
    config, choices = make_config(given), list[Choice]()
    task = prepare(config)
    if holds_update:
        facts = _facts(task, find_device(config.device), is_trained=False)
        known = {**asdict(config), "batch_tokens": given.get("batch_tokens")}
        tokens = DEMO["batch_tokens"]
        choices = [choose_update(replace(facts, world=world), known, update_tokens=tokens)]
        config = replace(config, **chosen_settings(choices))
    return ChosenRun(
        config=config, choices=choices, task=task, clock=clock, holds_update=holds_update
    )


def _draft(given: Mapping[str, Any]) -> TrainConfig:
    """Return settings of which only those that were given count; they are checked."""
    return _so_far(choose_vocabulary(TextFacts(characters=1, alphabet=1), given), given)


def _so_far(choices: list[Choice], given: Mapping[str, Any]) -> TrainConfig:
    """Return settings of which only those that were given or chosen count; what fits them stands beside."""
    one = Facts(pairs=1, tokens=1, vocabulary=1, is_accelerator=False)
    return _with([*choose(one, {**given, **chosen_settings(choices)}), *choices], given)


def _with(choices: list[Choice], given: Mapping[str, Any]) -> TrainConfig:
    return make_config(
        chosen_settings(choices) | {name: v for name, v in given.items() if v is not None}
    )


def _of_first(first: FirstWeights, given: Mapping[str, Any]) -> list[Choice]:
    """Return the settings that come with the weights of another run, if any was left open."""
    settings = {
        name: value
        for name, value in first.settings().items()
        if given.get(name) is None and value is not None
    }
    reason = f"as in {first.path}, whose weights it starts with"
    return [Choice(settings=settings, reason=reason)] if settings else []


def _with_real_size(choices: list[Choice], vocabs: Vocabs) -> list[Choice]:
    """Return the choices with the size of the vocabulary that the text could give."""

    def real(choice: Choice) -> Choice:
        size = max(len(vocabs.src), len(vocabs.tgt))
        if choice.settings.get("vocab_size", size) == size or not vocabs.is_shared:
            return choice
        return replace(choice, settings={"vocab_size": size}, reason="all that the text can give")

    return [real(choice) for choice in choices]


def _text_facts(train: Pairs) -> TextFacts:
    characters = sum(map(len, train.src)) + sum(map(len, train.tgt))
    counts: Counter[str] = Counter()
    every = -(-len(train) // _MAX_COUNTED)
    for sentence in (*train.src[::every], *train.tgt[::every]):
        counts.update(sentence)
    shares = np.cumsum(sorted(counts.values(), reverse=True)) / max(1, counts.total())
    alphabet = int(np.searchsorted(shares, _COVERAGE)) + 1
    return TextFacts(characters=characters, alphabet=min(alphabet, len(counts)))


def _facts(task: Task, device: Device, *, is_trained: bool) -> Facts:
    longer = np.maximum(task.train.src_lengths, task.train.tgt_lengths)
    return Facts(
        pairs=len(task.train),
        tokens=int(longer.sum()),
        vocabulary=len(task.vocabs.tgt),
        is_accelerator=device.is_accelerator,
        cores=torch.get_num_threads(),
        memory_bytes=device.total_memory_bytes(),
        is_trained=is_trained,
    )
