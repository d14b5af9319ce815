"""Small parallel text made of words: each word of one language is one of the other, in the same order."""

from __future__ import annotations

import random


WORDS = {
    "the": "das",
    "a": "ein",
    "red": "rot",
    "blue": "blau",
    "small": "klein",
    "old": "alt",
    "new": "neu",
    "good": "gut",
    "cat": "katze",
    "dog": "hund",
    "house": "haus",
    "tree": "baum",
    "woman": "frau",
    "man": "mann",
    "child": "kind",
    "book": "buch",
    "sees": "sieht",
    "takes": "nimmt",
    "finds": "findet",
    "likes": "mag",
    "and": "und",
    "or": "oder",
    "not": "nicht",
    "today": "heute",
}


def sentence(draw, least=2, most=8):
    return [draw.choice(sorted(WORDS)) for _ in range(draw.randint(least, most))]


def translated(words):
    return [WORDS[word] for word in words]


def pairs(count, *, seed=1, least=2, most=8):
    """Return so many different pairs of lines."""
    draw, found = random.Random(seed), {}
    while len(found) < count:
        words = sentence(draw, least, most)
        found[" ".join(words)] = " ".join(translated(words))
    return list(found.items())


def write_tsv(path, rows):
    """Write pairs as a table whose header names both sides; return its path."""
    text = "".join(f"{source}\t{target}\n" for source, target in [("en", "de"), *rows])
    path.write_text(text, encoding="utf-8")
    return path


def write_folder(path, **splits):
    """Write pairs as a folder of parallel files, one of each split and side; return its path."""
    path.mkdir()
    for split, rows in splits.items():
        for side, ending in enumerate(("en", "de")):
            text = "".join(row[side] + "\n" for row in rows)
            (path / f"{split}.{ending}").write_text(text, encoding="utf-8")
    return path
