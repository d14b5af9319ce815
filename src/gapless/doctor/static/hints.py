"""What people mean by a name: the only thing known of a parameter, or of a class that stands elsewhere."""

from __future__ import annotations

import re
from functools import lru_cache

from gapless.doctor.static.values import (
    DEVICE_NAME,
    HINT,
    MODULE,
    UNKNOWN,
    UNKNOWN_MASK,
    Value,
)


# Names that hold modules, and names that hold tensors: what people call them.
MODULE_NAME = re.compile(
    r"(model|net|network|module|criterion|loss_fn|loss_func|encoder|decoder|generator|discriminator"
    r"|critic|actor|policy|backbone|unet|vae|teacher|student|classifier|transformer|bert|gpt|llm"
    r"|pipe|pipeline|ema|agent|wrapper|extractor|head|layer|embedder|vocoder|gan)s?(_?[a-z\d])?$"
    r"|^(net|model|loss)_?[A-Z\d]$|^(unet|vae|net|model)_|^[GD]$",
    re.IGNORECASE,
)
# Calls that make a module: of a class by name, and of a function that says so.
MAKES_MODULE = re.compile(
    r"(^|_)(cls|class)$|^(from_pretrained|from_config|load_from_checkpoint)$"
    r"|^_?(build|create|get|make|load|init|setup|define|prepare|instantiate)_\w*"
    r"(model|net|network|module|criterion|loss|encoder|decoder|backbone)s?$",
    re.IGNORECASE,
)
MASK_NAME = re.compile(r"(^|_)mask$")
TENSOR_NAME = re.compile(r"^(loss|losses|logits|grad|grads)$")
DEVICE_WORD = re.compile(r"(^|_)(device|dev|gpu|cuda|rank)(_?ids?)?s?$", re.IGNORECASE)
# Objects that carry the settings of a run, or the run itself: their `device` is where it computes.
SETTINGS = frozenset(
    "self args cfg config opt opts options hparams params FLAGS trainer accelerator conf c a".split()  # noqa: SIM905
)
LOGGERS = re.compile(r"^_?(log|logger|logging|LOG|LOGGER|_logger)$")
LOG_METHODS = frozenset("debug info warning warn error critical exception log".split())  # noqa: SIM905

# Classes whose methods run on the host: in workers of a loader.
HOST_CLASS = re.compile(
    r"(Dataset|Sampler|Collator|Collate|Tokenizer|Dataloader|DataModule|Config)$"
)
MODULE_CLASS = re.compile(r"(Module|Model|Net|Layer|Block|Encoder|Decoder|Loss|Mixin|Pipeline)$")


@lru_cache(maxsize=4096)
def meant_by(name: str) -> Value:
    """Return what people call so, by the last part of a dotted name."""
    name = name.rpartition(".")[2]
    if TENSOR_NAME.search(name):
        return HINT
    if DEVICE_WORD.search(name):
        return DEVICE_NAME
    if MASK_NAME.search(name):
        return UNKNOWN_MASK
    return MODULE if MODULE_NAME.search(name) else UNKNOWN


@lru_cache(maxsize=4096)
def made_by(name: str) -> Value:
    """Return what a call of such a name most likely makes."""
    return MODULE if MAKES_MODULE.search(name.rpartition(".")[2]) else UNKNOWN
