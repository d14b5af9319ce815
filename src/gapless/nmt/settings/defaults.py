"""Which settings suit a corpus and a device, where the user gave none: pure functions.

First the vocabulary, from the text. Then, once the text is tokens, all others. Each choice carries
its reason. A setting that was given is never chosen, and the choices after it follow it.

Source: small corpora as in Sennrich and Zhang 2019 and in Araabi and Monz 2020 (a small vocabulary, a
small model, more dropout, small batches), large ones as in Vaswani et al. 2017; the constants are
tried on cuts of three corpora.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapless.nmt.settings.interval import seconds_of


if TYPE_CHECKING:
    from collections.abc import Mapping


# Entries of a vocabulary that are no characters: bytes and special marks.
_RESERVED = 256 + 4
_MOST_SUBWORDS = 32_000

# Operations a second of a core, and of a GPU, in products of small matrices; both on the low side.
_CORE_SPEED = 25e9
_GPU_SPEED = 20e12
# An update takes a GPU this long, however small it is.
_LEAST_GPU_SECONDS = 2e-3
# Bytes that a token keeps for the backward pass, for each layer and each element of its width.
_BYTES_KEPT = 190

# Validations of a run: on a GPU, the same in a run of fewer updates, and on a CPU, where one takes the
# time of many updates.
_NUM_VALIDATIONS, _NUM_IN_SHORT_RUN, _NUM_ON_CPU = 25, 15, 10
# And in a limit of time, of which they take a part.
_NUM_TIMED_ON_CPU = 6
_SHORT_RUN = 5000
# Validations inside an epoch are at least so many updates apart.
_LEAST_UPDATES = 100
# A run ends after a third of its validations in a row without a better one, but not after fewer. A
# twentieth of so few pairs validates that a single score is luck to a good part; then it has more
# patience, but no more than two thirds of its validations.
_LEAST_PATIENCE, _LEAST_OF_FEW_PAIRS = 5, 10
_FEW_PAIRS = 2_000
# Loader processes take longer to start an epoch than the training process to make so few batches.
_FEW_BATCHES = 300


@dataclass(frozen=True, kw_only=True)
class TextFacts:
    """What decides about a vocabulary.

    Attributes:
        characters: of both sides together.
        alphabet: different characters that a vocabulary of both sides must hold.
    """

    characters: int
    alphabet: int


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What decides about the other settings.

    Attributes:
        pairs: training pairs, at least one.
        tokens: of their longer sides, end marks included.
        vocabulary: target entries.
        is_accelerator: whether the device is one.
        cores: that the training process computes with.
        memory_bytes: of the device; None if it has no memory of its own.
        is_trained: whether the run starts with the weights of another.
        world: number of ranks, each with a device like this.
        holds_update: whether an update has about the same tokens whatever the number of ranks.
            Otherwise it grows with them.
    """

    pairs: int
    tokens: int
    vocabulary: int
    is_accelerator: bool
    cores: int = 1
    memory_bytes: int | None = None
    is_trained: bool = False
    world: int = 1
    holds_update: bool = False


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Settings that were chosen for one reason.

    Attributes:
        settings: their values, by name.
        reason: for people, less than a line.
    """

    settings: Mapping[str, Any]
    reason: str

    @property
    def line(self) -> str:
        """What was chosen, and why."""
        chosen = ", ".join(f"{name} {_shown(value)}" for name, value in self.settings.items())
        return f"{chosen}: {self.reason}"


# Other choices are computed with these, which are refused below 1 only when the settings are whole.
_COUNTS = frozenset({"d_model", "heads", "batch_size", "batch_tokens", "accumulate", "max_steps"})


class _Choices:
    """Collects choices, of which none touches what is set already."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.known = {
            name: max(1, value) if name in _COUNTS else value
            for name, value in given.items()
            if value is not None
        }
        self.made: list[Choice] = []

    def add(self, settings: Mapping[str, Any], reason: str) -> None:
        open_ones = {name: value for name, value in settings.items() if name not in self.known}
        if open_ones:
            self.made.append(Choice(settings=open_ones, reason=reason))
            self.known |= open_ones


# All settings that may be chosen.
CHOSEN = frozenset(
    [
        *("shared_vocab", "share", "vocab_size", "batch_tokens", "accumulate"),
        *("d_model", "heads", "ffn", "encoder_layers", "decoder_layers", "dropout"),
        *("epochs", "warmup", "lr", "schedule", "val_interval", "validate_every", "patience"),
        "workers",
    ]
)


def chosen_settings(choices: list[Choice]) -> dict[str, Any]:
    """Return all settings that were chosen, by name."""
    return {name: value for choice in choices for name, value in choice.settings.items()}


# --- the vocabulary ---


def choose_vocabulary(facts: TextFacts, given: Mapping[str, Any]) -> list[Choice]:
    """Return the settings of the vocabulary that were not given.

    Args:
        facts: of the training text.
        given: settings of the user, by name; what is None was not given.
    """
    choices = _Choices(given)
    known = choices.known
    is_shared = known.get("shared_vocab", known.get("share", "all") == "all")
    choices.add(
        {"shared_vocab": is_shared, "share": "all" if is_shared else "decoder"},
        "embeddings learn from both sides" if is_shared else "each side has its own vocabulary",
    )
    if known.get("tokenizer") != "none":
        choices.add(*_vocabulary_size(facts))
    return choices.made


def _vocabulary_size(facts: TextFacts) -> tuple[dict[str, Any], str]:
    wanted = 6.0 * math.sqrt(facts.characters)
    least = 1.25 * (facts.alphabet + _RESERVED)
    size = _multiple(max(min(wanted, _MOST_SUBWORDS), least), 100)
    reason = f"6 x the square root of {facts.characters:,} characters"
    if least > wanted:
        reason = (
            f"{facts.alphabet:,} different characters and {_RESERVED} bytes, and a quarter more"
        )
    elif wanted > _MOST_SUBWORDS:
        reason = f"{facts.characters:,} characters; more takes time and gains little"
    return {"vocab_size": size}, reason


# --- the other settings ---


def choose(facts: Facts, given: Mapping[str, Any]) -> list[Choice]:
    """Return the settings that were not given, but for those of the vocabulary.

    Args:
        facts: of the training pairs and the device.
        given: settings of the user, by name; what is None was not given.

    Raises:
        UserError: `max_time` was given and is no time.
    """
    choices = _Choices(given)
    known = choices.known
    has_end = "epochs" in known or "max_steps" in known
    choices.add(*_model(facts, known))
    choices.add(*_dropout(facts))
    if facts.holds_update:
        held = choose_update(facts, known, update_tokens=_update_tokens(facts))
        choices.add(held.settings, held.reason)
    elif "batch_size" not in known:
        choices.add(*_batches(facts, known))
    run = _run_length(facts, known)
    choices.add({"epochs": run.epochs}, run.reason)
    warmup = _warmup(run.updates)
    # The batches of an epoch are only estimated.
    about = "" if run.updates == known.get("max_steps") else "about "
    choices.add(
        {"warmup": warmup}, f"{warmup / run.updates:.0%} of {about}{run.updates:,} updates"
    )
    width = known["d_model"]
    factor = 0.1 if facts.is_trained else 0.3
    reason = f"{factor} / {width}, the width of the model"
    choices.add(
        {"lr": float(f"{factor / width:.1e}")},
        f"{reason}; a third, for its weights are trained" if facts.is_trained else reason,
    )
    choices.add(*_schedule(facts, known))
    validations = _num_validations(facts, run)
    if "validate_every" not in known:
        if "max_time" in known and "val_interval" not in known:
            choices.add(*_timed_validations(facts, known["max_time"]))
        else:
            choices.add(*_validations(run, known, wanted=validations))
    if known["schedule"] == "inverse-sqrt" and not has_end:
        patience = _patience(facts, validations)
        choices.add(
            {"patience": patience},
            f"the run ends after {patience} validations without a better one",
        )
    if facts.is_accelerator and run.batches_per_epoch < _FEW_BATCHES:
        choices.add(
            {"workers": 0}, f"{run.batches_per_epoch} batches an epoch are made in no time"
        )
    return choices.made


# Pairs below which a model serves; its width, layers of each side, and widths of its feed-forward part.
_GPU_MODELS = (
    (_FEW_PAIRS, (256, 3, 2)),
    (10_000, (256, 4, 4)),
    (100_000, (256, 5, 4)),
    (500_000, (512, 6, 2)),
    (math.inf, (512, 6, 4)),
)
_CPU_MODELS = (
    (20_000, (128, 3, 4)),
    (200_000, (192, 3, 4)),
    (math.inf, (256, 4, 4)),
)

# Heads, and the width from which on there are so many.
_HEADS = ((8, 512), (4, 128), (2, 64), (1, 0))


def _model(facts: Facts, known: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    table = _GPU_MODELS if facts.is_accelerator else _CPU_MODELS
    width, layers, widening = next(sizes for below, sizes in table if facts.pairs < below)
    heads = known.get("heads")
    if heads is not None:
        width = _multiple(width, 2 * heads)
    width = known.get("d_model", width)
    if heads is None:
        heads = next(
            n for n, least in _HEADS if width >= least and (n == 1 or not width % (2 * n))
        )
    sizes = {
        "d_model": width,
        "heads": heads,
        "ffn": widening * width,
        "encoder_layers": layers,
        "decoder_layers": layers,
    }
    return sizes, f"{facts.pairs:,} pairs on {'a GPU' if facts.is_accelerator else 'a CPU'}"


def _dropout(facts: Facts) -> tuple[dict[str, Any], str]:
    if not facts.is_accelerator:
        # More dropout would need more updates than a CPU makes.
        return {"dropout": 0.1}, "a CPU makes few updates"
    share = 0.3 if facts.pairs < 100_000 else 0.2 if facts.pairs < 500_000 else 0.1
    return {"dropout": share}, f"{facts.pairs:,} pairs"


def _batches(facts: Facts, known: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return batches so small that an epoch has many updates, and so large that they keep a GPU busy."""
    tokens = _update_tokens(facts)
    updates = -(-facts.tokens // tokens)
    accumulate = 1
    while tokens > 1024 and not _fits(facts, known, tokens):
        tokens, accumulate = _multiple(tokens / 2, 256), accumulate * 2
    settings = {"batch_tokens": tokens}
    if accumulate > 1 and "accumulate" not in known:
        return {**settings, "accumulate": accumulate}, "as many as the memory holds in one batch"
    return settings, f"{facts.tokens:,} tokens make about {updates:,} updates an epoch"


def _update_tokens(facts: Facts) -> int:
    """Return the tokens of an update of one rank."""
    if facts.is_accelerator:
        # Of a very large corpus a thousandth, up to 25,600.
        most = max(8192, min(25_600, facts.tokens // 1000))
        return _multiple(_within(facts.tokens / 64, 1024, most), 256)
    return _multiple(_within(facts.tokens / 48, 512, 2048), 256)


def choose_update(facts: Facts, known: Mapping[str, Any], *, update_tokens: int) -> Choice:
    """Return batches of which all ranks together take about as many tokens as one rank alone would.

    Args:
        facts: of the training pairs, the device and the ranks.
        known: settings, with the model's sizes if the size of a batch is not among them.
        update_tokens: of one rank.
    """
    own = update_tokens / facts.world
    settings: dict[str, Any] = {}
    if known.get("batch_size") is not None:
        tokens = facts.tokens / -(-facts.pairs // known["batch_size"])
    elif known.get("batch_tokens") is not None:
        tokens = known["batch_tokens"]
    else:
        tokens = settings["batch_tokens"] = _batch_that_fits(facts, known, own)
    accumulate = settings["accumulate"] = max(1, round(own / tokens))
    return Choice(
        settings=settings,
        reason=f"an update of {facts.world} x {accumulate} batches has about "
        f"{facts.world * accumulate * tokens:,.0f} tokens; {update_tokens:,} suit the text",
    )


def _batch_that_fits(facts: Facts, known: Mapping[str, Any], most: float) -> int:
    """Return the tokens of a batch: about as many as given, or half of that until memory holds it."""
    tokens = math.ceil(most)
    while tokens > 1024 and not _fits(facts, known, tokens):
        tokens = math.ceil(tokens / 2)
    return tokens


def _fits(facts: Facts, known: Mapping[str, Any], tokens: int) -> bool:
    """Return whether a step on so many tokens leaves half of the memory free."""
    most = math.inf if facts.memory_bytes is None else facts.memory_bytes / 2
    return _memory(facts, known, tokens) <= most


def _memory(facts: Facts, known: Mapping[str, Any], tokens: int) -> float:
    """Return about how many bytes a training step takes: weights, Adam, gradients, activations."""
    layers = known["encoder_layers"] + known["decoder_layers"]
    kept: float = tokens * layers * known["d_model"] * _BYTES_KEPT
    return 16.0 * _weights(facts, known) + kept


def _weights(facts: Facts, known: Mapping[str, Any]) -> int:
    """Return how many weights of the model a token is multiplied with."""
    width, inner = known["d_model"], known["ffn"]
    encoder = known["encoder_layers"] * (4 * width + 2 * inner)
    decoder = known["decoder_layers"] * (8 * width + 2 * inner)
    return int(width * (encoder + decoder + facts.vocabulary))


@dataclass(frozen=True, kw_only=True)
class _RunLength:
    """How long a run is going to be.

    Attributes:
        epochs: passes over the pairs.
        updates: about how many it makes, at least one.
        updates_per_epoch: about how many an epoch has, at least one.
        batches_per_epoch: about how many an epoch has, at least one.
        reason: for the number of epochs.
    """

    epochs: int
    updates: int
    updates_per_epoch: int
    batches_per_epoch: int
    reason: str


def _run_length(facts: Facts, known: Mapping[str, Any]) -> _RunLength:
    if known.get("batch_size") is not None:
        batches = -(-facts.pairs // known["batch_size"])
    else:
        batches = -(-facts.tokens // known["batch_tokens"])
    per_epoch = max(1, -(-batches // (facts.world * known.get("accumulate", 1))))
    seconds = _update_seconds(facts, known, facts.tokens / batches)
    max_time = known.get("max_time")
    most = math.inf if max_time is None else seconds_of(max_time, name="max_time") / seconds
    epochs, reason = _epochs(facts), f"{facts.pairs:,} pairs; the fewer, the more epochs"
    if max_time is None and not facts.is_accelerator:
        budget = _cpu_seconds(facts)
        affordable = max(3, int(budget / (seconds * per_epoch)))
        if affordable < epochs:
            epochs, reason = affordable, f"about {_time(budget)} on this CPU, by estimate"
    if "max_steps" in known:
        most = known["max_steps"]
        # More than enough: the batches of an epoch are only estimated.
        epochs, reason = 2 * -(-most // per_epoch), "enough for max_steps"
    epochs = known.get("epochs", epochs)
    updates = max(1, int(min(most, epochs * per_epoch)))
    return _RunLength(
        epochs=epochs,
        updates=updates,
        updates_per_epoch=per_epoch,
        batches_per_epoch=batches,
        reason=reason,
    )


def _epochs(facts: Facts) -> int:
    """Return after how many epochs a corpus has nothing left to teach."""
    return round(_within(190.0 * (5000.0 / facts.pairs) ** 0.4, 3, 600))


def _cpu_seconds(facts: Facts) -> float:
    """Return the time that people wait for a CPU, by the size of their corpus."""
    least = 30.0 if facts.cores > 1 else 60.0
    return _within(0.008 * facts.tokens, least, 6 * 3600.0)


def _update_seconds(facts: Facts, known: Mapping[str, Any], batch_tokens: float) -> float:
    """Return about how long an update takes: 6 operations a weight and token."""
    operations: float = 6.0 * _weights(facts, known) * batch_tokens * known.get("accumulate", 1)
    if facts.is_accelerator:
        return max(_LEAST_GPU_SECONDS, operations / _GPU_SPEED)
    return operations / (_CORE_SPEED * max(1, facts.cores))


def _warmup(updates: int) -> int:
    """Return a twentieth of the updates, more in a short run, 4,000 at most."""
    return min(4000, max(updates // 20, min(updates // 10, 100)))


def _schedule(facts: Facts, known: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    if facts.is_accelerator or "max_time" in known:
        return {"schedule": "inverse-sqrt"}, "the run may end at any update"
    return {"schedule": "cosine"}, "the number of updates is known, and small"


def _num_validations(facts: Facts, run: _RunLength) -> int:
    if not facts.is_accelerator:
        return _NUM_ON_CPU
    return _NUM_IN_SHORT_RUN if run.updates < _SHORT_RUN else _NUM_VALIDATIONS


def _patience(facts: Facts, validations: int) -> int:
    patience = max(_LEAST_PATIENCE, validations // 3)
    if facts.pairs >= _FEW_PAIRS:
        return patience
    return max(patience, min(_LEAST_OF_FEW_PAIRS, 2 * validations // 3))


def _timed_validations(facts: Facts, max_time: str) -> tuple[dict[str, Any], str]:
    """Return an interval of time: how many updates a limit of time allows is only estimated."""
    num = _NUM_IN_SHORT_RUN if facts.is_accelerator else _NUM_TIMED_ON_CPU
    apart = max(1, round(seconds_of(max_time, name="max_time") / num))
    return {"validate_every": f"{apart}s"}, f"1/{num} of {max_time}"


def _validations(
    run: _RunLength, known: Mapping[str, Any], *, wanted: int
) -> tuple[dict[str, Any], str]:
    apart = run.updates // wanted
    if "val_interval" in known or max(apart, _LEAST_UPDATES) >= run.updates_per_epoch:
        epochs = max(1, apart // run.updates_per_epoch)
        apart = epochs * run.updates_per_epoch
        setting: dict[str, Any] = {"val_interval": epochs}
    else:
        apart = max(apart, _LEAST_UPDATES)
        setting = {"validate_every": str(apart)}
    # The end of the run is validated as well.
    count = max(1, math.ceil(run.updates / apart))
    validations = "validation" if count == 1 else "validations"
    return setting, f"about {count} {validations} in {run.updates:,} updates"


# --- numbers ---


def _within(number: float, least: float, most: float) -> float:
    return float(min(max(number, least), most))


def _multiple(number: float, unit: int) -> int:
    """Return the multiple of a unit that is nearest above."""
    return unit * max(1, math.ceil(number / unit))


def _time(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
