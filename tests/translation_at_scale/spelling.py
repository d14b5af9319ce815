"""How commands, options and printed lines of translation at scale are spelled, all of them here.

The cases were written from what is asked for, before the code. Where that names no option, the most natural one
stands here: whoever builds it may change names in this file, and nothing else.
"""

from __future__ import annotations

import re


# ------------------------------------------------------------------- the store of tokens


def store_in(folder):
    """Return the options of `gapless train` that keep stores in a folder."""
    return ["--store", folder]


def store_workers(count):
    """Return the options of `gapless train` that tokenise in so many processes."""
    return ["--store-workers", count]


def list_stores(folder):
    return ["store", "list", "--store", folder]


def remove_store(name, folder):
    return ["store", "remove", name, "--store", folder]


def names_of_stores(printed):
    """Return the names in what `gapless store list` prints: the first word of each line that counts pairs."""
    return [line.split()[0] for line in printed.splitlines() if "pairs" in line]


# Lines of `gapless train`.
STORE_IS_MADE = re.compile(r"^store +.*\bmade\b", re.MULTILINE)
STORE_IS_FOUND = re.compile(r"^store +.*\bfound\b", re.MULTILINE)
# Beside these words the line says which file.
STORE_IS_DAMAGED = re.compile(r"damaged|checksum")


# ----------------------------------------------------------- filters and several corpora


def corpora(weights):
    """Return the options of `gapless train` for several corpora: a weight for each path."""
    options = [option for path in weights for option in ("--data", path)]
    return [*options, "--weights", ",".join(map(str, weights.values()))]


LENGTH, RATIO, DUPLICATES, LANGUAGE = "length", "ratio", "duplicates", "language"


def filter_length(least, most):
    """Keep pairs of which each side has so many tokens."""
    return ["--filter-length", f"{least}:{most}"]


def filter_ratio(most):
    """Keep pairs whose longer side has at most so many times the tokens of the shorter one."""
    return ["--filter-ratio", most]


def filter_duplicates():
    """Keep the first of equal pairs."""
    return ["--filter-duplicates"]


def filter_language():
    """Keep pairs whose sides are in the languages that `--src` and `--tgt` name."""
    return ["--filter-language"]


# The module that tells languages apart, and the extra that brings it.
LANGUAGE_LIBRARY = "lingua"
LANGUAGE_EXTRA = "gapless[languages]"


def dropped(printed):
    """Return how many pairs each filter dropped, by its name, from lines such as `filter length: 5 ...`."""
    rows = re.findall(r"^filter (\w+):? +([\d,]+)", printed, re.MULTILINE)
    return {name: int(count.replace(",", "")) for name, count in rows}


# --------------------------------------------------------------------------- decoding


def batch_budget(tokens):
    """Return the options of `gapless translate` for batches of at most so many tokens."""
    return ["--batch-tokens", tokens]


def sampling(*, seed, temperature=None, top_k=None):
    """Return the options of `gapless translate` that draw each token from the model's distribution."""
    options = ["--sample", "--seed", seed]
    options += [] if temperature is None else ["--temperature", temperature]
    return options + ([] if top_k is None else ["--top-k", top_k])


# ---------------------------------------------------------------------------- in and out


def export(run, out, *, to):
    """Return the command that exports a run to "ctranslate2" or "marian"."""
    return ["export", run, out, "--format", to]


# ------------------------------------------------------------------------- quality tools


def bpe_dropout(share):
    return ["--bpe-dropout", share]


def tags(*names):
    """Return the options of `gapless train` whose words are one token each, wherever they stand."""
    return ["--tags", ",".join(names)]


def ensemble(*others):
    """Return the options of `gapless translate` that average the probabilities of other runs as well."""
    return [option for run in others for option in ("--ensemble", run)]


def comet(model):
    """Return the options of `gapless evaluate` that score with a COMET model in a local folder."""
    return ["--comet", model]


COMET_LIBRARY, COMET_EXTRA = "comet", "gapless[comet]"


def tracked():
    """Return the options of `gapless train` that send what is measured to a tracker."""
    return ["--track", TRACKER]


TRACKER, TRACKER_EXTRA = "wandb", "gapless[wandb]"


# ------------------------------------------------------------------------- from Python


def model_of(run):
    """Return the vocabularies and the final model of a run, on the CPU, in fp32, to evaluate."""
    from gapless.device.find import find_device
    from gapless.nmt.run.translator import load_model

    _, vocabs, model = load_model(run, device=find_device("cpu"))
    return vocabs, model.eval()
