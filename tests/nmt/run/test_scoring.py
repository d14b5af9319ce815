"""How translations are scored: by the language of the target side, in agreement with its text."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from gapless.errors import DataError, LanguageError, UserError
from gapless.nmt.data.corpus import Pairs
from gapless.nmt.data.languages import written_in
from gapless.nmt.run import scoring
from gapless.nmt.run.config import make_config, settings_given, settings_of_new_run
from gapless.nmt.run.score import score
from gapless.nmt.run.scoring import (
    Scoring,
    check_direction,
    decide_scoring,
    notes_of_tokenizer,
    settle_language,
)
from gapless.nmt.run.task import read_corpus


CASES = tomllib.loads(
    (Path(__file__).parents[2] / "cli" / "languages.toml").read_text(encoding="utf-8")
)
ENGLISH = ["The train is late again.", "Where did you put my keys?"]
CHINESE = ["火车又晚点了。", "你把我的钥匙放哪儿了？"]
JAPANESE = ["電車がまた遅れている。", "私の鍵をどこに置きましたか。"]
KOREAN = ["기차가 또 늦는다.", "내 열쇠를 어디에 두었습니까?"]
THAI = ["รถไฟมาสายอีกแล้ว"]
TEXTS = {"zh": CHINESE, "ja-mecab": JAPANESE, "ko-mecab": KOREAN, "13a": ENGLISH, "char": THAI}


def make(**settings):
    return make_config({"data": "somewhere", **settings})


@pytest.fixture(params=[True, False], ids=["with mecab", "without mecab"])
def has_mecab(request, monkeypatch):
    """The packages that two tokenizers need are there, or are not."""
    monkeypatch.setattr(scoring, "_missing", lambda tokenizer: [] if request.param else ["MeCab"])
    return request.param


@pytest.mark.parametrize(("name", "expected"), CASES["names"].items())
def test_every_name_leads_to_its_tokenizer_or_to_a_question(has_mecab, name, expected):
    """Where a package is missing characters are counted, and a note names it."""
    config = make(tgt=name)
    if expected == "ask":
        with pytest.raises(LanguageError, match=r"`tgt_language=.*`score_tokenizer="):
            decide_scoring(config, ENGLISH)
        return

    found = decide_scoring(config, TEXTS[expected])

    fallback = {} if has_mecab else CASES["without_mecab"]
    assert found.tokenizer == fallback.get(expected, expected)
    assert ("pip install" in found.note) == (expected in fallback)


@pytest.mark.parametrize(
    ("text", "parts", "suggestion"),
    [
        (
            CHINESE,
            ["'target'", "looks Chinese", "`tgt_language=zh`", "`score_tokenizer=zh`"],
            "zh",
        ),
        (KOREAN, ["looks Korean", "`tgt_language=ko`"], "ko"),
        (ENGLISH, ["is written in Latin letters", "=CODE`", "`score_tokenizer=13a`"], None),
        (["1", "2"], ["BLEU depends on it; name it"], None),
    ],
)
def test_a_question_says_what_the_text_looks_like(text, parts, suggestion):
    """The script of the text is a suggestion, not an answer."""
    with pytest.raises(LanguageError) as caught:
        decide_scoring(make(tgt="target"), text)

    assert [part for part in parts if part not in str(caught.value)] == []
    assert caught.value.suggestion == suggestion


@pytest.mark.parametrize(
    ("settings", "text", "tokenizer"),
    [
        ({"tgt": "target", "tgt_language": "Chinese"}, CHINESE, "zh"),
        ({"tgt": "target", "score_tokenizer": "zh"}, CHINESE, "zh"),
        ({"tgt": "zh", "score_tokenizer": "char"}, CHINESE, "char"),
        ({"tgt": "target", "tokenizer": "none"}, CHINESE, "none"),
        ({"tgt": "ja", "score_tokenizer": "char"}, JAPANESE, "char"),
        ({"tgt": "zh"}, ["1", "2"], "zh"),
        ({"tgt": "th"}, THAI, "char"),
        ({"tgt": "sr"}, ["Поезд снова опаздывает."], "13a"),
    ],
)
def test_what_is_set_is_not_asked(settings, text, tokenizer):
    """A language, a tokenizer, and text that is tokenised already answer the question."""
    assert decide_scoring(make(**settings), text).tokenizer == tokenizer


@pytest.mark.parametrize(
    ("name", "text", "looks"),
    [
        ("zh", ENGLISH, "is written in Latin letters"),
        ("en", CHINESE, "looks Chinese"),
        ("de", KOREAN, "looks Korean"),
        ("zh", JAPANESE, "looks Japanese"),
        ("ko", CHINESE, "looks Chinese"),
        ("en", THAI, "is written in Thai letters"),
    ],
)
def test_text_in_another_language_is_not_scored(name, text, looks):
    """Sides that were exchanged are found before anything is trained."""
    for settings in ({"tgt": name}, {"tgt": "target", "tgt_language": name}):
        with pytest.raises(LanguageError, match=f"but its text {looks}: exchange the names"):
            decide_scoring(make(**settings), text)


def test_a_dictionary_of_kanji_may_be_japanese():
    """Words without kana do not contradict the name."""
    found = decide_scoring(make(tgt="ja"), ["犬猫水火山川犬猫水火山川"])

    assert found.because == "the target is Japanese"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (CHINESE, "zh"),
        (JAPANESE, "ja"),
        (THAI, "th"),
        (ENGLISH, "auto:13a"),
        (["1", "2"], None),
    ],
)
def test_where_nobody_named_the_target_its_text_does(text, language):
    """A run without `tgt` is settled by the script; its settings say how, and serve again."""
    config = make()
    settled = settle_language(config, text)

    assert config.tgt_language == "auto"
    assert (settled.tgt_language, settled.score_tokenizer) == (language, None)
    assert settle_language(settled, text) == settled
    assert decide_scoring(config, text) == decide_scoring(settled, text)


def test_what_a_text_asked_for_is_not_held_against_other_text():
    """A tokenizer that was found for Latin text is found anew for other text, where that shows its own."""
    settled = settle_language(make(), ENGLISH)

    assert decide_scoring(settled, CHINESE).tokenizer == "zh"
    assert decide_scoring(settled, ["1", "2"]).tokenizer == "13a"
    with pytest.raises(
        DataError, match="'auto:14a', expected a language, auto, or auto: with one of 13a"
    ):
        make(tgt_language="auto:14a")


@pytest.mark.parametrize(
    ("tokenizer", "text", "use"),
    [
        ("13a", CHINESE, "zh"),
        ("intl", JAPANESE, "ja-mecab"),
        ("zh", THAI, "char"),
        ("char", CHINESE, None),
        ("ja-mecab", CHINESE, None),
        ("13a", ENGLISH, None),
        ("13a", KOREAN, None),
        ("13a", ["1", "2"], None),
    ],
)
def test_a_tokenizer_that_finds_no_words_in_the_text_is_told(tokenizer, text, use):
    """BLEU of sentences that count as a word each says nothing."""
    notes = notes_of_tokenizer(make(score_tokenizer=tokenizer), text)

    assert [note.rpartition("=")[2] for note in notes] == ([] if use is None else [f"{use}`"])


def test_a_part_of_the_target_without_spaces_is_told():
    """BLEU counts each of its sentences as a word or two; a few names and quotations are no matter."""
    german = [f"Satz Nummer {number} ist da ." for number in range(40)]
    config = make(tgt="de")

    (note,) = notes_of_tokenizer(config, german + CHINESE[:1] * 10)

    assert note.startswith("20% of the target sentences have no spaces between words")
    assert notes_of_tokenizer(config, german + CHINESE[:1]) == ()
    assert notes_of_tokenizer(make(tgt="zh"), CHINESE) == ()


def test_a_named_language_drops_a_tokenizer_that_was_not_named_with_it(tmp_path):
    """So does a target that is named, but for one of a resumed run that is called as before."""
    file = tmp_path / "config.yaml"
    file.write_text("data: x\ntgt: de\ntgt_language: German\nscore_tokenizer: char\n")

    def kept(settings):
        return settings.get("tgt_language"), settings.get("score_tokenizer")

    assert kept(settings_of_new_run({"tgt_language": "zh"}, file=file)) == ("zh", None)
    assert kept(settings_of_new_run({"tgt": "de"}, file=file)) == (None, None)
    assert kept(settings_of_new_run({"tgt": "de", "score_tokenizer": "zh"}, file=file)) == (
        None,
        "zh",
    )
    assert kept(settings_given({"tgt_language": "zh"}, file=file)) == ("zh", None)
    assert kept(settings_given({"tgt": "German"}, file=file)) == ("German", None)
    assert kept(settings_given({"tgt": "de"}, file=file)) == ("German", "char")
    assert kept(settings_given({"lr": 1.0}, file=file)) == ("German", "char")


def test_who_names_the_target_is_taken_at_his_word():
    """The embedded corpus, and a target that is named, leave nothing open."""
    assert make_config({}).tgt_language is None
    assert make(tgt="zh").tgt_language is None
    assert make(tgt="zh", tgt_language="auto").tgt_language == "auto"


@pytest.mark.skipif(find_spec("MeCab") is not None, reason="mecab-python3 is installed")
def test_a_tokenizer_without_its_package_is_refused():
    """What was asked for by name is not replaced."""
    with pytest.raises(UserError, match=r'needs pip install "sacrebleu\[ja\]", or take'):
        decide_scoring(make(tgt="ja", score_tokenizer="ja-mecab"), JAPANESE)


@pytest.mark.parametrize("tokenizer", ["zh", "char", "13a", "intl"])
def test_the_signature_says_the_tokenizer(tokenizer):
    """Chinese is scored by characters under zh, and not at all by words."""
    found = score(
        CHINESE, [*CHINESE[:1], "别的。"], scoring=Scoring(tokenizer=tokenizer, because="set")
    )

    assert f"tok:{tokenizer}" in found.bleu_signature


ARABIC = ["القطار متأخر مرة أخرى.", "أين وضعت مفاتيحي؟"]


@pytest.mark.parametrize("declared", [None, "ar"])
def test_text_of_the_other_direction_is_refused(declared):
    """Where scripts tell it: both languages may have the same tokenizer."""
    exchanged = Pairs(src=ARABIC, tgt=ENGLISH)

    with pytest.raises(
        DataError, match=r"source side 'en' is written in Arabic letters, .* exchange"
    ):
        check_direction(make(src="en", tgt="ar", tgt_language=declared), exchanged)


@pytest.mark.parametrize(
    ("src", "tgt", "options"),
    [
        ("ar", "en", {}),  # it is the right direction
        ("en", "de", {}),  # their script is the same
        ("a", "ar", {}),  # nobody knows the language
        ("en", "ar", {"check_columns": False}),
        ("en", "ar", {"tgt_language": "auto"}),  # nobody named the sides
        ("en", "ar", {"tgt_language": "en"}),  # the language of the text was named
    ],
)
def test_text_that_may_be_of_this_direction(src, tgt, options):
    """It is not refused."""
    config = make(src=src, tgt=tgt, **{"tgt_language": None, **options})

    check_direction(config, Pairs(src=ARABIC, tgt=ENGLISH))


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("english", ["en", "English", "eng", "英语"])
@pytest.mark.parametrize("chinese", ["zh", "Chinese", "zh-CN", "中文"])
def test_the_embedded_corpus_is_that_of_two_languages_by_any_names(english, chinese):
    """In either direction, and BLEU cuts the target as its language needs."""
    for src, tgt, tokenizer in ((english, chinese, "zh"), (chinese, english, "13a")):
        config = make_config({"src": src, "tgt": tgt})
        corpus = read_corpus(config)

        assert (corpus.src_lang, corpus.tgt_lang) == (src, tgt)
        assert written_in(corpus.test.tgt) == ("Chinese" if tokenizer == "zh" else "Latin")
        assert decide_scoring(config, corpus.train.tgt).tokenizer == tokenizer


@pytest.mark.parametrize(("src", "tgt"), [("en", "de"), ("zh", "Chinese"), ("a", "zh")])
def test_the_embedded_corpus_has_no_other_languages(src, tgt):
    """They are named, and what names other text."""
    with pytest.raises(
        DataError, match=rf"`src` is '{src}' and `tgt` '{tgt}'; name your own text"
    ):
        read_corpus(make_config({"src": src, "tgt": tgt}))


GERMAN = ["Der Zug hat schon wieder Verspätung.", "Wo hast du meine Schlüssel hingelegt?"]
RUSSIAN = ["Поезд снова опаздывает.", "Куда ты положил мои ключи?"]
BURMESE = ["ရထားနောက်ကျနေပြန်ပြီ", "ငါ့သော့တွေဘယ်မှာထားလဲ"]


@pytest.mark.parametrize(
    ("settings", "tgt", "told"),
    [
        ({"tgt": "ru"}, GERMAN, "'ru' would be Russian, but its text is written in Latin letters"),
        (
            {"tgt": "de"},
            RUSSIAN,
            "'de' would be German, but its text is written in Cyrillic letters",
        ),
        ({"tgt": "x", "tgt_language": "ru"}, GERMAN, "'ru' would be Russian"),
        ({"tgt": "sr-Latn"}, RUSSIAN, "'sr-Latn' would be Serbian"),
        ({"tgt": "sr-Latn"}, GERMAN, None),
        ({"tgt": "ta"}, ARABIC, "'ta' would be Tamil, but its text is written in Arabic letters"),
        ({"tgt": "lo"}, THAI, "'lo' would be Lao, but its text is written in Thai letters"),
        ({"tgt": "my"}, THAI, "'my' would be Burmese"),
        ({"tgt": "my"}, BURMESE, None),
        ({"tgt": "ru"}, RUSSIAN, None),
        # Of two scripts, or of nobody knows which.
        *(({"tgt": name}, side, None) for name in ("sr", "uz", "b") for side in (GERMAN, RUSSIAN)),
        ({"tgt": "ru", "check_columns": False}, GERMAN, None),
    ],
)
def test_a_target_in_another_script_is_told(settings, tgt, told):
    """Its tokenizer is the same, so nothing else would say that it is another language."""
    pairs = Pairs(src=ENGLISH, tgt=tgt * (len(ENGLISH) // len(tgt)))

    found = check_direction(make(src="en", **settings), pairs)

    expected = [] if told is None else [f"the target side {told}"]
    assert [line[: len(expected[0])] for line in found if told] == expected
    assert len(found) == len(expected)


def test_a_header_names_the_script_of_its_target():
    """As `tgt` does."""
    pairs = Pairs(src=ENGLISH, tgt=GERMAN, are_named=True)

    (told,) = check_direction(make(src="en", tgt="ru", tgt_language="auto"), pairs)

    assert told.startswith("the target side 'ru' would be Russian, but")


@pytest.mark.parametrize(
    ("src", "tgt", "told"),
    [
        (ENGLISH, CHINESE, []),
        (ENGLISH, GERMAN, ["the text of 'zh' is written in Latin letters;"]),
        (RUSSIAN, CHINESE, ["the text of 'en' is written in Cyrillic letters;"]),
        (
            CHINESE,
            ENGLISH,
            [
                "the text of 'en' looks Chinese and the text of 'zh' is written in Latin letters;",
            ],
        ),
    ],
)
def test_sides_that_nobody_named_are_told_where_their_text_is_another(src, tgt, told):
    """Once, and only where neither a user nor the text names them."""
    pairs = Pairs(src=src, tgt=tgt)
    unnamed = make()

    found = check_direction(unnamed, pairs)

    begin = "nobody named the languages of the sides, which are called 'en' and 'zh', but "
    end = " name both with `src` and `tgt`, in the order of the columns"
    assert list(found) == [f"{begin}{part}{end}" for part in told]
    named = [
        check_direction(replace(unnamed, check_columns=False), pairs),
        check_direction(make(src="a", tgt="b"), pairs),
        check_direction(make(columns="a,b", src="a", tgt="b"), pairs),
    ]
    assert [line for lines in named for line in lines if "nobody named" in line] == []
    headed = replace(unnamed, src="de", tgt="fr")
    assert check_direction(headed, Pairs(src=GERMAN, tgt=ENGLISH, are_named=True)) == ()


@pytest.mark.parametrize(
    ("settings", "src", "tgt", "told"),
    [
        (
            {"src": "de"},
            ENGLISH,
            GERMAN,
            "target side, which is called 'zh', but the text of 'zh' is",
        ),
        ({"src": "de"}, ENGLISH, CHINESE, None),
        (
            {"tgt": "de"},
            CHINESE,
            GERMAN,
            "source side, which is called 'en', but the text of 'en' looks",
        ),
        ({"tgt": "de"}, ENGLISH, GERMAN, None),
        ({"src": "de", "tgt": "en"}, GERMAN, ENGLISH, None),
    ],
)
def test_a_side_that_nobody_named_is_told_beside_one_that_is_named(settings, src, tgt, told):
    """Who names one side may mean the other column: the order of both is to be named."""
    config, pairs = make(**settings), Pairs(src=src, tgt=tgt)
    is_src_named = "src" in settings

    found = check_direction(config, pairs, is_src_named=is_src_named)

    begin = f"nobody named the language of the {told}"
    end = "; name both with `src` and `tgt`, in the order of the columns"
    assert [(line.startswith(begin), line.endswith(end)) for line in found] == [(True, True)] * (
        told is not None
    )
    headed = replace(pairs, are_named=True)
    assert not any(
        "nobody" in line for line in check_direction(config, headed, is_src_named=is_src_named)
    )


KANJI = [f"第{n}百货公司今天全部商品降价。" for n in "一二三四五六七八九十百千万"]
KANA = [f"{line}は" for line in KANJI]


@pytest.mark.parametrize(
    ("src", "tgt", "told"),
    [
        (KANJI, ENGLISH * 7, True),
        (KANA, ENGLISH * 7, False),
        (KANJI[:4], ENGLISH * 2, False),
        # A list of words.
        (["政治", "経済", "文化", "歴史"] * 20, ENGLISH * 40, False),
    ],
)
def test_text_without_kana_is_told_where_it_would_be_japanese(src, tgt, told):
    """On either side; a few words may be without."""
    size = min(len(src), len(tgt))
    there = check_direction(
        make(src="ja", tgt="en"), Pairs(src=src[:size], tgt=tgt[:size]), is_src_named=True
    )
    back = check_direction(make(src="en", tgt="ja"), Pairs(src=tgt[:size], tgt=src[:size]))

    expected = "the {} side 'ja' would be Japanese, but its text has no kana, and looks Chinese"
    assert [line.startswith(expected.format("source")) for line in there] == [True] * told
    assert [line.startswith(expected.format("target")) for line in back] == [True] * told
