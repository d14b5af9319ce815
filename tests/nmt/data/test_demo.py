"""Tests of the embedded demo corpus."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from gapless.errors import DataError
from gapless.nmt.data import demo_corpus as demo, demo_phrases
from gapless.nmt.data.demo_corpus import GRAMMARS, SPLITS, DemoSizes, generate
from gapless.nmt.data.demo_phrases import (
    MAX_NUMBER,
    NOUNS,
    Pair,
    chinese_count,
    chinese_number,
    clock,
    english_number,
    quantity,
)


if TYPE_CHECKING:
    from collections.abc import Callable


SMALL = DemoSizes(train=2_000, val=100, test=100)
DRAWS_PER_GRAMMAR = 5_000
DIGITS = "零一二三四五六七八九"


def parse_english(text: str) -> int:
    """Read an English number back."""
    names = {english_number(n): n for n in (*range(20), *range(20, 100, 10))}
    total = section = 0
    for word in text.replace("-", " ").replace(" and ", " ").split():
        if word == "thousand":
            total, section = section * 1000, 0
        elif word == "hundred":
            section *= 100
        else:
            section += names[word]
    return total + section


def parse_chinese(text: str) -> int:
    """Read a Chinese number back."""
    units = {"十": 10, "百": 100, "千": 1000}
    total = section = digit = 0
    for sign in text.replace("两", "二"):
        if sign == "万":
            total, section, digit = (section + digit) * 10_000, 0, 0
        elif sign in units:
            # Only a 十 at the front may stand without a digit.
            section, digit = section + (digit or 1) * units[sign], 0
        else:
            digit = DIGITS.index(sign)
    return total + section + digit


def draw(grammar: Callable[[Random], Pair], count: int) -> list[Pair]:
    """Draw pairs from one grammar."""
    rng = Random(7)
    return [grammar(rng) for _ in range(count)]


@pytest.fixture(scope="module")
def large_sample() -> list[Pair]:
    """Draw many pairs from every grammar."""
    return [pair for grammar in GRAMMARS for pair in draw(grammar, DRAWS_PER_GRAMMAR)]


@pytest.mark.parametrize(
    ("number", "english", "chinese"),
    [
        (0, "zero", "零"),
        (2, "two", "二"),
        (10, "ten", "十"),
        (11, "eleven", "十一"),
        (20, "twenty", "二十"),
        (22, "twenty-two", "二十二"),
        (100, "one hundred", "一百"),
        (101, "one hundred and one", "一百零一"),
        (110, "one hundred and ten", "一百一十"),
        (112, "one hundred and twelve", "一百一十二"),
        (200, "two hundred", "二百"),
        (321, "three hundred and twenty-one", "三百二十一"),
        (1000, "one thousand", "一千"),
        (1005, "one thousand and five", "一千零五"),
        (1010, "one thousand and ten", "一千零一十"),
        (1050, "one thousand and fifty", "一千零五十"),
        (1500, "one thousand five hundred", "一千五百"),
        (2222, "two thousand two hundred and twenty-two", "两千二百二十二"),
        (10_000, "ten thousand", "一万"),
        (10_005, "ten thousand and five", "一万零五"),
        (12_000, "twelve thousand", "一万二千"),
        (20_500, "twenty thousand five hundred", "两万零五百"),
        (30_303, "thirty thousand three hundred and three", "三万零三百零三"),
        (100_001, "one hundred thousand and one", "十万零一"),
        (120_000, "one hundred and twenty thousand", "十二万"),
    ],
)
def test_numbers_are_spelled_as_people_write_them(number: int, english: str, chinese: str) -> None:
    """The edge cases of both spellings have their one canonical form."""
    assert (english, chinese) == (english_number(number), chinese_number(number))


@given(st.integers(0, MAX_NUMBER))
def test_english_numbers_read_back(number: int) -> None:
    """An English number can be read back."""
    assert number == parse_english(english_number(number))


@given(st.integers(0, MAX_NUMBER))
def test_chinese_numbers_read_back(number: int) -> None:
    """A Chinese number can be read back."""
    assert number == parse_chinese(chinese_number(number))


@given(st.integers(0, MAX_NUMBER))
def test_chinese_numbers_mark_a_gap_once(number: int) -> None:
    """No Chinese number doubles 零 or ends with one that says nothing."""
    text = chinese_number(number)
    assert number == 0 or ("零零" not in text and not text.endswith("零"))


@pytest.mark.parametrize(("number", "chinese"), [(2, "两"), (12, "十二"), (20, "二十")])
def test_only_a_lone_two_changes_before_a_classifier(number: int, chinese: str) -> None:
    """Before a classifier 2 is 两, and larger numbers keep their 二."""
    assert chinese == chinese_count(number)


@pytest.mark.parametrize(
    ("hour", "minute", "english", "chinese"),
    [
        (2, 0, "two o'clock", "两点"),
        (3, 5, "five past three", "三点零五分"),
        (3, 1, "one minute past three", "三点零一分"),
        (3, 15, "a quarter past three", "三点一刻"),
        (3, 17, "seventeen minutes past three", "三点十七分"),
        (3, 30, "half past three", "三点半"),
        (11, 40, "twenty to twelve", "十一点四十分"),
        (12, 45, "a quarter to one", "十二点三刻"),
    ],
)
def test_clock_times_are_told_as_people_tell_them(
    hour: int, minute: int, english: str, chinese: str
) -> None:
    """Past the half hour English names the hour to come, and Chinese the one that runs."""
    assert (english, chinese) == clock(hour, minute)


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [
        (1, "apple", "an apple"),
        (1, "hour", "an hour"),
        (1, "hat", "a hat"),
        (3, "hat", "three hats"),
    ],
)
def test_english_quantities_agree(number: int, noun: str, expected: str) -> None:
    """One thing takes the article that its sound asks for, several the plural."""
    assert expected == quantity(number, noun, f"{noun}s")


GOLDEN = {
    "_number": [
        ("Two hundred and fifty-four.", "二百五十四。"),
        ("One thousand.", "一千。"),
    ],
    "_date": [
        ("That museum was founded on February 8, 1958.", "那座博物馆成立于1958年2月8日。"),
        ("Today is October 18, 2016.", "今天是2016年10月18日。"),
    ],
    "_time": [
        ("It is ten to two in the afternoon.", "现在是下午一点五十分。"),
        (
            "Does the meeting start at one minute past seven in the early morning?",
            "会议清晨七点零一分开始吗？",
        ),
    ],
    "_price": [
        (
            "Does this red lamp cost five hundred and four euros and ten cents?",
            "这盏红色的灯要五百零四欧元十欧分吗？",
        ),
        (
            "His father paid one dollar and eight cents for this bicycle.",
            "他爸爸买这辆自行车花了一美元八美分。",
        ),
    ],
    "_size": [
        (
            "This bridge is seven thousand four hundred and sixty-eight metres long.",
            "这座桥长七千四百六十八米。",
        ),
        (
            "That river is two thousand five hundred and forty-two kilometres long.",
            "那条河长两千五百四十二公里。",
        ),
    ],
    "_portion": [
        ("You need a kilogram of apples.", "你需要一公斤苹果。"),
        ("I worked for ten hours last Monday.", "我上星期一工作了十个小时。"),
    ],
    "_statement": [
        ("His father repaired a cheap car at the hotel.", "他爸爸在旅馆修了一辆便宜的汽车。"),
        ("We will draw five small dogs next Monday.", "我们下星期一会画五只小狗。"),
    ],
    "_question": [
        (
            "Did his father repair a cheap car at the hotel last Monday?",
            "他爸爸上星期一在旅馆修了一辆便宜的汽车吗？",
        ),
        ("Will we draw a dog tomorrow?", "我们明天会画一只狗吗？"),
    ],
    "_habit": [
        ("His father often repairs cars at the hotel.", "他爸爸常常在旅馆修汽车。"),
        ("She eats a banana at home every day.", "她每天在家吃一根香蕉。"),
    ],
    "_progress": [
        ("Is his father repairing a car at the station now?", "他爸爸现在正在车站修一辆汽车吗？"),
        ("I am selling an egg in the shop now.", "我现在正在商店卖一个鸡蛋。"),
    ],
    "_inquiry": [
        ("When did his father repair this car?", "他爸爸是什么时候修这辆汽车的？"),
        ("Where did she buy this magazine?", "她是在哪儿买这本杂志的？"),
    ],
    "_presence": [
        ("This doctor is in front of the school.", "这位医生在学校前面。"),
        ("That cheap banana is in the box.", "那根便宜的香蕉在箱子里。"),
    ],
    "_comparison": [
        ("Is my father taller than us?", "我爸爸比我们高吗？"),
        ("He is seven years older than your younger sister.", "他比你妹妹大七岁。"),
    ],
    "_relative": [
        (
            "The red car that his father repaired last Monday is very beautiful.",
            "他爸爸上星期一修的那辆红色的汽车很漂亮。",
        ),
        ("The big egg that I sold last week is really fresh.", "我上星期卖的那个大鸡蛋真新鲜。"),
    ],
    "_journey": [
        ("You went to Paris by bus yesterday.", "你昨天坐公共汽车去了巴黎。"),
        ("I went to Berlin by train yesterday.", "我昨天坐火车去了柏林。"),
    ],
}


def test_every_grammar_has_golden_pairs() -> None:
    """No grammar goes without an example that a person has checked."""
    assert {grammar.__name__ for grammar in GRAMMARS} == set(GOLDEN)


@pytest.mark.parametrize(
    ("name", "english", "chinese"),
    [(name, english, chinese) for name, rows in GOLDEN.items() for english, chinese in rows],
)
def test_golden_pairs_are_made(name: str, english: str, chinese: str) -> None:
    """Every grammar makes the sentences that a person has checked."""
    grammar = getattr(demo, name)
    assert chinese == dict(draw(grammar, 50))[english]


def test_no_english_sentence_has_two_translations(large_sample: list[Pair]) -> None:
    """English determines Chinese, over all grammars together."""
    assert len(set(large_sample)) == len({english for english, _ in large_sample})


def test_no_chinese_sentence_has_two_translations(large_sample: list[Pair]) -> None:
    """Chinese determines English, over all grammars together."""
    assert len(set(large_sample)) == len({chinese for _, chinese in large_sample})


def test_sentences_are_well_formed(large_sample: list[Pair]) -> None:
    """English starts with a capital and Chinese has no Latin letter; marks agree."""
    english_form = re.compile(r"[A-Z][A-Za-z0-9,' -]*[a-z0-9]([.?])")
    chinese_form = re.compile(r"[\u4e00-\u9fff0-9]+([。？])")
    marks = {".": "。", "?": "？"}
    for english, chinese in set(large_sample):
        left, right = english_form.fullmatch(english), chinese_form.fullmatch(chinese)
        assert left is not None, english
        assert right is not None, chinese
        assert marks[left[1]] == right[1]


def test_nouns_are_a_bijection() -> None:
    """No two nouns share an English or a Chinese form."""
    assert len(NOUNS) == len({noun.zh for noun in NOUNS}) == len({noun.one for noun in NOUNS})


@pytest.mark.parametrize("split", SPLITS)
def test_splits_have_the_sizes_asked_for(split: str) -> None:
    """Every split holds exactly as many pairs as asked for."""
    assert getattr(SMALL, split) == len(generate(sizes=SMALL)[split])


def test_default_sizes_are_what_generate_makes() -> None:
    """Without sizes the corpus has the default ones."""
    sizes = DemoSizes()
    expected = {"train": sizes.train, "val": sizes.val, "test": sizes.test}
    assert expected == {split: len(found) for split, found in generate().items()}


@pytest.mark.parametrize("side", [0, 1], ids=["english", "chinese"])
def test_no_sentence_occurs_twice(side: int) -> None:
    """No sentence is repeated within a split or held out and trained on."""
    sentences = [pair[side] for found in generate(3, sizes=SMALL).values() for pair in found]
    assert len(sentences) == len(set(sentences))


def test_every_grammar_has_its_share_of_every_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """A split holds each grammar in the proportion of its weight."""
    names = {grammar: grammar.__name__ for grammar in GRAMMARS}
    origin: dict[str, str] = {}

    def traced(grammar: Callable[[Random], Pair]) -> Callable[[Random], Pair]:
        def make(rng: Random) -> Pair:
            pair = grammar(rng)
            origin[pair[0]] = names[grammar]
            return pair

        return make

    monkeypatch.setattr(demo, "GRAMMARS", {traced(g): weight for g, weight in GRAMMARS.items()})
    corpus = generate(sizes=SMALL)
    expected = {names[grammar]: weight for grammar, weight in GRAMMARS.items()}
    found = [origin[english] for english, _ in corpus["test"]]
    assert expected == {name: found.count(name) for name in names.values()}


def test_splits_are_shuffled() -> None:
    """The grammars of a split are mixed, so that any prefix is a fair sample."""
    prefix = generate(sizes=SMALL)["train"][:200]
    assert sum(english.startswith("It is") for english, _ in prefix) < 100


def test_seeds_give_different_corpora() -> None:
    """Another seed gives another corpus, the same seed the same one."""
    assert generate(1, sizes=SMALL) == generate(1, sizes=SMALL)
    assert generate(1, sizes=SMALL) != generate(2, sizes=SMALL)


def test_the_corpus_does_not_depend_on_the_hash_seed() -> None:
    """Processes with different PYTHONHASHSEED make the same corpus."""
    code = (
        "import zlib; from gapless.nmt.data.demo_corpus import DemoSizes, generate;"
        "print(zlib.crc32(repr(generate(5, sizes=DemoSizes(train=900))).encode()))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1", "4242")
    }
    assert len(outputs) == 1


def test_a_corpus_larger_than_a_grammar_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for more sentences than a grammar has names that grammar."""
    monkeypatch.setattr(demo, "GRAMMARS", {_only_two: 1})
    with pytest.raises(DataError, match="only_two"):
        generate(sizes=DemoSizes(train=3, val=0, test=0))


def _only_two(rng: Random) -> Pair:
    """Make one of two sentences."""
    return demo_phrases.sentence(*rng.choice((("yes", "对"), ("no", "不对"))))
