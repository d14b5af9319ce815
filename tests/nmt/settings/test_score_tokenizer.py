"""How translations are scored: by the language that the target side is named by."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from gapless.errors import UserError
from gapless.nmt.run.scores import score
from gapless.nmt.settings import score_tokenizer
from gapless.nmt.settings.config import make_config, settings_given
from gapless.nmt.settings.score_tokenizer import (
    ScoreTokenizer,
    choose_score_tokenizer,
    has_same_score_tokenizer,
)


CHINESE = ["火车又晚点了。", "你把我的钥匙放哪儿了？"]


def make(**settings):
    return make_config({"data": "somewhere", **settings})


@pytest.fixture(params=[True, False], ids=["with mecab", "without mecab"])
def has_mecab(request, monkeypatch):
    """The packages that two tokenizers need are there, or are not."""
    monkeypatch.setattr(score_tokenizer, "_is_missing", lambda tokenizer: not request.param)
    return request.param


@pytest.mark.parametrize(
    ("name", "tokenizer"),
    [
        *[
            (name, "zh")
            for name in ("zh", "ZH", "cn", "zh-Hant", "zh_CN", "cmn", "Chinese", "中文")
        ],
        *[
            ("ja", "ja-mecab"),
            ("Japanese", "ja-mecab"),
            ("ko", "ko-mecab"),
            ("한국어", "ko-mecab"),
        ],
        *[(name, "13a") for name in ("de", "pt-BR", "sr", "th", "German", "target", "column 2")],
    ],
)
def test_the_name_of_the_target_decides(has_mecab, name, tokenizer):
    """Where a package is missing characters are counted, and a note names it."""
    found = choose_score_tokenizer(make(tgt=name))

    is_without = tokenizer.endswith("mecab") and not has_mecab
    assert found.name == ("char" if is_without else tokenizer)
    assert ("pip install" in found.note) == is_without


@pytest.mark.parametrize(
    ("settings", "tokenizer"),
    [
        ({"tgt": "target", "score_tokenizer": "zh"}, "zh"),
        ({"tgt": "zh", "score_tokenizer": "char"}, "char"),
        ({"tgt": "target", "tokenizer": "none"}, "none"),
        ({"tgt": "ja", "score_tokenizer": "char"}, "char"),
    ],
)
def test_a_tokenizer_that_is_set_wins(settings, tokenizer):
    """And text that is tokenised already is not tokenised again."""
    assert choose_score_tokenizer(make(**settings)).name == tokenizer


def test_a_target_of_no_known_language_says_what_sets_the_tokenizer():
    """It is scored with 13a, and a user of another language reads how to change that."""
    assert "score_tokenizer" in choose_score_tokenizer(make(tgt="target")).because


def test_scores_of_one_tokenizer_can_be_compared():
    """Whatever the target is called."""
    assert has_same_score_tokenizer(make(tgt="zh"), make(tgt="Chinese"))
    assert not has_same_score_tokenizer(make(tgt="zh"), make(tgt="de"))
    assert has_same_score_tokenizer(make(tgt="target", score_tokenizer="zh"), make(tgt="zh"))


def test_a_target_that_is_named_anew_drops_the_tokenizer_of_the_file(tmp_path):
    """But not one of a run that is called as before."""
    file = tmp_path / "config.yaml"
    file.write_text("data: x\ntgt: de\nscore_tokenizer: char\n")

    def kept(settings):
        return settings.get("score_tokenizer")

    assert kept(settings_given({"tgt": "de", "score_tokenizer": "zh"}, file=file)) == "zh"
    assert kept(settings_given({"tgt": "German"}, file=file)) is None
    assert kept(settings_given({"tgt": "de"}, file=file)) == "char"
    assert kept(settings_given({"lr": 1.0}, file=file)) == "char"


@pytest.mark.skipif(find_spec("MeCab") is not None, reason="mecab-python3 is installed")
def test_a_tokenizer_without_its_package_is_refused():
    """What was asked for by name is not replaced."""
    with pytest.raises(UserError, match=r'needs pip install "sacrebleu\[ja\]", or take'):
        choose_score_tokenizer(make(tgt="ja", score_tokenizer="ja-mecab"))


@pytest.mark.parametrize("tokenizer", ["zh", "char", "13a", "intl"])
def test_the_signature_says_the_tokenizer(tokenizer):
    """Chinese is scored by characters under zh, and not at all by words."""
    found = score(
        CHINESE,
        [*CHINESE[:1], "别的。"],
        score_tokenizer=ScoreTokenizer(name=tokenizer, because="set"),
    )

    assert f"tok:{tokenizer}" in found.bleu_signature


def test_the_best_translation_of_short_sentences_has_the_best_score():
    """Where no reference has four words, BLEU counts shorter n-grams, and says so."""
    references = [f"eins {number}" for number in range(50)]
    perfect, runs_on, half, cut = (
        score(lines, references, score_tokenizer=ScoreTokenizer(name="13a", because="set"))
        for lines in (
            references,
            ["eins zwei drei vier fünf sechs sieben", *references[1:]],
            [line if number % 2 else "eins x" for number, line in enumerate(references)],
            ["eins"] * 50,
        )
    )

    assert perfect.bleu == pytest.approx(100)
    assert perfect.bleu > runs_on.bleu > half.bleu > cut.bleu
    assert perfect.bleu_signature.endswith("|ngrams:2")


def test_bleu_counts_four_words_where_a_reference_has_them():
    lines = ["eins zwei drei vier", "fünf"]
    found = score(lines, lines, score_tokenizer=ScoreTokenizer(name="13a", because="set"))
    assert "ngrams" not in found.bleu_signature
