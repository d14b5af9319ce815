"""Names of languages, as people write them, and the scripts of text."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from gapless.nmt.data.languages import (
    COLUMN_WORDS,
    find_language,
    has_spaces,
    language_of_writing,
    matching_name,
    near_name,
    tokenizer_of_writing,
    written_in,
)


CASES = tomllib.loads(
    (Path(__file__).parents[2] / "cli" / "languages.toml").read_text(encoding="utf-8")
)
ENGLISH = ["The train is late again.", "Where did you put my keys?"]
CHINESE = ["火车又晚点了。", "你把我的钥匙放哪儿了？"]
JAPANESE = ["電車がまた遅れている。", "私の鍵をどこに置きましたか。"]
KOREAN = ["기차가 또 늦는다.", "내 열쇠를 어디에 두었습니까?"]


def tokenizer(name, **options):
    language = find_language(name, **options)
    return "ask" if language is None else language.tokenizer


@pytest.mark.parametrize(("name", "expected"), CASES["names"].items())
def test_forty_names_lead_to_their_tokenizer_or_to_a_question(name, expected):
    """Codes, names and scripts are understood; placeholders and ambiguous codes are not guessed."""
    spellings = [name, name.upper(), name.replace("-", "_"), f" {name} "]

    assert {expected} == {tokenizer(spelling) for spelling in spellings}


@pytest.mark.parametrize("name", CASES["no_spaces_between_words"]["names"])
def test_languages_without_spaces_are_not_scored_by_words(name):
    """13a would count a whole sentence as one word."""
    assert tokenizer(name) in CASES["no_spaces_between_words"]["right"]


@pytest.mark.parametrize("name", sorted(COLUMN_WORDS))
def test_words_for_columns_are_no_languages(name):
    """A column may be called `src`, which is also the code of a small language."""
    assert find_language(name) is None


@pytest.mark.parametrize("name", ["dev", "doc", "cap", "foreign", "hypothesis", "body"])
def test_a_short_name_is_no_language_that_few_speak(name):
    """Many short words are the code, or the name, of a language somewhere."""
    assert find_language(name) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tgt", None),
        ("quz", "quz"),
        ("kr", None),
        ("und", None),
        ("xx", None),
        ("source", None),
        ("Chinese (Simplified)", "zh-Hans"),
        ("中文（简体）", "zh-Hans"),
        ("zh-Latn-pinyin", "zh-Latn-pinyin"),
    ],
)
def test_what_is_declared_a_language_may_be_a_small_one(name, expected):
    """Every code is taken where nothing but a language can be meant, unless it is ambiguous."""
    language = find_language(name, is_declared=True)

    assert expected == (language and language.tag)


@pytest.mark.parametrize(
    ("name", "tag"),
    [("text_zh", "zh"), ("target-Chinese", "zh"), ("lc.norm.tok.de", "de"), ("en_text", "en")],
)
def test_words_beside_a_language_change_nothing(name, tag):
    """Endings of files and names of columns say more than the language."""
    assert find_language(name).tag == tag


def test_romanised_text_is_scored_by_words():
    """The script decides, not the language."""
    assert [tokenizer(name) for name in ("zh-Latn", "ja-Latn", "ko-Latn")] == ["13a"] * 3


@given(name=st.text(max_size=12), is_declared=st.booleans())
@settings(deadline=None, max_examples=100)
def test_any_text_is_a_language_or_none(name, is_declared):
    """No name raises; what is found without being declared is found when it is."""
    found = find_language(name, is_declared=is_declared)

    assert found is None or found.tokenizer in ("zh", "ja-mecab", "ko-mecab", "char", "13a")


# --- which name is meant ---


@pytest.mark.parametrize(
    ("wanted", "names", "expected"),
    [
        ("zh", ["en", "zh"], "zh"),
        ("zh", ["EN", " ZH"], " ZH"),
        ("zh", ["English", "中文"], "中文"),
        ("chinese", ["eng", "cmn"], "cmn"),
        ("zh-Hant", ["zh-CN", "zh-Hant"], "zh-Hant"),
        ("zh", ["zh-CN", "zh-TW"], None),
        ("zh", ["en", "fr"], None),
        ("target", ["source", "zh"], None),
        ("source", ["Source", "zh"], "Source"),
    ],
)
def test_a_side_is_found_by_its_name_or_its_language(wanted, names, expected):
    """Where two names are of one language, nobody chooses."""
    assert expected == matching_name(wanted, names)


@pytest.mark.parametrize("wanted", ["zh-Hant", "zh_TW", "zh-HK", "繁體中文", "cht"])
def test_traditional_characters_are_not_simplified_ones(wanted):
    """Of two kinds of Chinese the one in the same script is meant, and never the other alone."""
    for names in (["zh-CN", "zh-Hant"], ["zh", "繁體"], ["chs", "cht"], ["zh_simp", "zh_trad"]):
        assert matching_name(wanted, names) == names[1]
    for names in (["zh-Hans"], ["zh-CN", "en"], ["简体"], ["zh-Hans", "zh-SG"]):
        assert matching_name(wanted, names) is None
    assert matching_name(wanted, ["en", "zh"]) == "zh"
    assert matching_name("zh", ["en", "zh-Hant"]) == "zh-Hant"
    assert matching_name("en-GB", ["en-US", "zh"]) == "en-US"


def test_a_country_is_no_script():
    """Of two kinds of one language in one script nobody can say which is meant."""
    for wanted, names in (
        ("pt-BR", ["en", "pt", "pt-PT"]),
        ("en-US", ["en", "en-GB"]),
        ("es-MX", ["es", "es-ES"]),
    ):
        assert matching_name(wanted, names) is None
    assert matching_name("sr-Latn", ["sr-Cyrl", "en"]) is None
    assert matching_name("sr-Latn", ["sr-Cyrl", "sr-Latn"]) == "sr-Latn"


@pytest.mark.parametrize("name", ["sr", "Serbian", "uz", "ku", "bs", "az"])
def test_languages_of_two_scripts_are_written_in_either(name):
    """What text of theirs looks like says nothing; a tag may."""
    assert find_language(name).writing is None
    assert find_language("sr-Cyrl").writing == "Cyrillic"


@pytest.mark.parametrize(
    ("wanted", "names", "expected"),
    [
        ("Englsh", [], "English"),
        ("Deutch", [], "Deutsch"),
        ("中闻", ["en", "zh"], "中文"),
        ("英吾", [], "英语"),
        ("sentence_2", ["sentence2"], "sentence2"),
        ("English", ["Englisch"], None),
        ("zz", ["en", "zh"], None),
        ("x-y-z", [], None),
    ],
)
def test_a_misspelt_name_has_one_that_is_near(wanted, names, expected):
    """Of a language that many speak, or of the names that are there."""
    assert near_name(wanted, names) == expected


@pytest.mark.parametrize(
    ("name", "tag"),
    [("英文原文", "en"), ("中文译文", "zh"), ("英语（原文）", "en"), ("德语句子", "de")],
)
def test_a_chinese_word_beside_a_language_changes_nothing(name, tag):
    """No space stands between them."""
    assert find_language(name).tag == tag


# --- text ---


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        (ENGLISH, "Latin"),
        (CHINESE, "Chinese"),
        (JAPANESE, "Japanese"),
        (KOREAN, "Korean"),
        (["Поезд снова опаздывает."], "Cyrillic"),
        (["รถไฟมาสายอีกแล้ว"], "Thai"),
        (["如果 n < 0 则引发 ValueError。", "返回 None。"], "Chinese"),
        (["Ｆｕｌｌ ｗｉｄｔｈ ｌｅｔｔｅｒｓ"], "Latin"),
        (ENGLISH * 3 + CHINESE, None),
        (["1 2 3", "犬"], None),
        ([], None),
    ],
)
def test_text_shows_its_script(sentences, expected):
    """Chinese, Japanese and Korean are told apart; mixtures and too few letters say nothing."""
    assert expected == written_in(sentences)


def test_what_is_written_so_is_scored_so():
    """The tokenizer of a script is that of the language that it suggests."""
    for sentences in (CHINESE, JAPANESE, KOREAN, ["รถไฟมาสายอีกแล้ว"]):
        writing = written_in(sentences)
        assert tokenizer(language_of_writing(writing)) == tokenizer_of_writing(writing)
    assert (tokenizer_of_writing("Latin"), language_of_writing("Latin")) == ("13a", None)


@pytest.mark.parametrize(
    ("name", "writing"),
    [
        *(("sr-Latn", "Latin"), ("uz-Cyrl", "Cyrillic"), ("lo", "Lao"), ("my", "Myanmar")),
        *(
            ("th", "Thai"),
            ("bo", "Tibetan"),
            ("km", "Khmer"),
            ("hy", "Armenian"),
            ("ka", "Georgian"),
        ),
        *(("bn", "Bengali"), ("ta", "Tamil"), ("te", "Telugu"), ("am", "Ethiopic"), ("sr", None)),
    ],
)
def test_a_language_is_written_in_its_script(name, writing):
    """By the word that stands in Unicode's names of its letters; two scripts are none."""
    assert find_language(name).writing == writing


def test_what_is_scored_by_words_has_spaces():
    """Korean has them, though its tokenizer cuts words further; of a mixture nothing is known."""
    writings = ["Latin", "Korean", None, "Chinese", "Japanese", "Thai", "Lao"]

    assert [has_spaces(writing) for writing in writings] == [True] * 3 + [False] * 4


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        *zip(
            ["韓語", "德語", "法語", "俄語", "日語", "泰語"],
            ["ko", "de", "fr", "ru", "ja", "th"],
            strict=True,
        ),
        *zip(
            ["越南語", "阿拉伯語", "西班牙語", "葡萄牙語"], ["vi", "ar", "es", "pt"], strict=True
        ),
        *zip(
            ["荷蘭語", "義大利語", "普通話", "中國語", "漢語"],
            ["nl", "it", "zh", "zh", "zh"],
            strict=True,
        ),
        *zip(
            ["國語", "華語", "粵語", "廣東話", "繁體"],
            ["zh", "zh", "yue", "yue", "zh-Hant"],
            strict=True,
        ),
        ("Min Nan", "nan"),
    ],
)
def test_names_in_traditional_characters_and_of_two_words(name, tag):
    """As people in Taipei and Hong Kong write them; two words are no two codes."""
    assert find_language(name, is_declared=True).tag == tag


@pytest.mark.parametrize("name", ["qaa", "qtz", "x-klingon", "art-x-foo", "und"])
def test_codes_that_mean_no_language(name):
    assert find_language(name, is_declared=True) is None


@pytest.mark.parametrize("name", ["克林貢語", "火星語", "Mandrin", "Brazilian", "Austrian"])
def test_an_ending_is_no_reason_to_propose_a_language(name):
    """Names of many languages end so."""
    assert near_name(name) is None


@pytest.mark.parametrize(
    ("name", "tokenizer_name"),
    [
        ("de.txt", "13a"),
        ("zh.txt", "zh"),
        ("zh_CN.UTF-8", "zh"),
        ("ja_JP.utf8", "ja-mecab"),
        *[(word, "ask") for word in ("txt", "src", "tgt", "trg")],
    ],
)
def test_endings_of_files_and_words_for_sides_are_no_small_languages(name, tokenizer_name):
    """Though they are codes of some, also where nothing but a language is expected."""
    assert tokenizer(name, is_declared=True) == tokenizer_name
