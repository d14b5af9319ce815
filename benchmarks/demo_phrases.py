"""Words and phrases of the demo corpus: numbers, a lexicon, noun phrases.

Every phrase says the same in both languages (number, nearness, colour, ...), and no entry is
there twice in either, so that each can be recovered from the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple


if TYPE_CHECKING:
    from random import Random


Pair = tuple[str, str]  # an English text and its Chinese translation


def pairs(table: str) -> tuple[Pair, ...]:
    """Read a table of the form "red=红色的, blue=蓝色的"."""
    rows = (entry.strip().partition("=") for entry in table.split(","))
    return tuple((english, chinese) for english, _, chinese in rows)


_ENGLISH_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)  # fmt: skip
_ENGLISH_TENS = ("", "", *(
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"
))  # fmt: skip
_CHINESE_DIGITS = "零一二三四五六七八九"
MAX_NUMBER = 999_999


def english_number(number: int) -> str:
    """Spell a number in British English, "three hundred and twenty-one"."""
    if number < 20:
        return _ENGLISH_ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _ENGLISH_TENS[tens] + (f"-{_ENGLISH_ONES[ones]}" if ones else "")
    size, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    high, rest = divmod(number, size)
    head = f"{english_number(high)} {name}"
    if not rest:
        return head
    return f"{head} {'and ' if rest < 100 else ''}{english_number(rest)}"


def chinese_number(number: int) -> str:
    """Spell a number in Chinese characters, 三百二十一.

    Where usage varies one form is canonical: 两 stands before a leading 千 or 万 and 二
    everywhere else; 10 to 19 are 十 to 十九 at the front and 一十 to 一十九 inside.
    """
    if number == 0:
        return "零"
    high, low = divmod(number, 10_000)
    if not high:
        return _chinese_section(low, leading=True)
    head = ("两" if high == 2 else _chinese_section(high, leading=True)) + "万"
    if not low:
        return head
    return head + ("零" if low < 1000 else "") + _chinese_section(low, leading=False)


def _chinese_section(number: int, *, leading: bool) -> str:
    """Spell 1 to 9999; leading tells that nothing stands before it."""
    text = ""
    gap = False
    for size, unit in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit = number // size % 10
        if not digit:
            gap = bool(text)
            continue
        text += ("零" if gap else "") + _CHINESE_DIGITS[digit] + unit
        gap = False
    if leading and text.startswith("一十"):
        return text[1:]
    if leading and text.startswith("二千"):
        return "两" + text[1:]
    return text


def chinese_count(number: int) -> str:
    """Spell a number that stands before a classifier or a unit: 2 is 两."""
    return "两" if number == 2 else chinese_number(number)


class Noun(NamedTuple):
    """A thing that can be counted; kind is a key of ADJECTIVES."""

    one: str
    many: str
    classifier: str
    zh: str
    kind: str


_NOUN_TABLE = {
    "text": "book books 本 书, novel novels 本 小说, magazine magazines 本 杂志, "
    "newspaper newspapers 份 报纸, dictionary dictionaries 本 词典, map maps 张 地图",
    "food": "apple apples 个 苹果, egg eggs 个 鸡蛋, cake cakes 块 蛋糕, banana bananas 根 香蕉",
    "clothes": "shirt shirts 件 衬衫, coat coats 件 大衣, skirt skirts 条 裙子, hat hats 顶 帽子",
    "thing": "table tables 张 桌子, chair chairs 把 椅子, umbrella umbrellas 把 雨伞, "
    "lamp lamps 盏 灯",
    "vehicle": "bicycle bicycles 辆 自行车, car cars 辆 汽车",
    "animal": "dog dogs 只 狗, cat cats 只 猫, bird birds 只 鸟, horse horses 匹 马",
    "person": "teacher teachers 位 老师, doctor doctors 位 医生, worker workers 名 工人, "
    "child children 个 孩子",
}
NOUNS = tuple(
    Noun._make([*row.split(), kind])
    for kind, rows in _NOUN_TABLE.items()
    for row in rows.split(", ")
)

_COLOURS = pairs("red=红色的, blue=蓝色的, green=绿色的, white=白色的, black=黑色的")
_LOOKS = pairs("new=新, old=旧, beautiful=漂亮的, cheap=便宜的")
_SIZES = pairs("big=大, small=小")

ADJECTIVES = {
    "text": pairs("interesting=有趣的, important=重要的, English=英文, old=旧"),
    "food": _SIZES + pairs("fresh=新鲜的, cheap=便宜的"),
    "clothes": _COLOURS + _LOOKS,
    "thing": _COLOURS + _SIZES + _LOOKS[:2],
    "vehicle": _COLOURS + _LOOKS,
    "animal": _SIZES + pairs("white=白色的, black=黑色的, old=老"),
    "person": pairs("young=年轻的, old=年老的, famous=著名的, kind=善良的"),
}
# No child is old, and the other adjectives of persons hardly suit one.
_PLAIN_NOUNS = frozenset({"child"})


class Person(NamedTuple):
    """Somebody who acts: the English subject and object forms, "be", the Chinese form."""

    subject: str
    object: str
    be: str
    zh: str

    @property
    def third(self) -> bool:
        """Tell whether present verbs take -s."""
        return self.be == "is"


_OWNERS = pairs("my=我, your=你, his=他, her=她")
_RELATIVES = pairs("father=爸爸, mother=妈妈, elder brother=哥哥, younger sister=妹妹")
_NAMES = pairs("Tom=汤姆, Mary=玛丽, Anna=安娜, David=大卫")
PRONOUNS = (
    Person("I", "me", "am", "我"),
    Person("you", "you", "are", "你"),
    Person("he", "him", "is", "他"),
    Person("she", "her", "is", "她"),
    Person("we", "us", "are", "我们"),
    Person("they", "them", "are", "他们"),
)
NAMED = tuple(
    [Person(name, name, "is", zh) for name, zh in _NAMES]
    + [
        Person(f"{owner} {relative}", f"{owner} {relative}", "is", owner_zh + relative_zh)
        for owner, owner_zh in _OWNERS
        for relative, relative_zh in _RELATIVES
    ]
)


class Verb(NamedTuple):
    """Something done to a noun of the given kinds, in one of the given places."""

    base: str
    third: str
    past: str
    progressive: str
    zh: str
    kinds: tuple[str, ...]
    places: tuple[Pair, ...]


_SHOPS = pairs("in the shop=在商店, at the market=在市场, in Beijing=在北京, in London=在伦敦")
_QUIET = pairs("at home=在家, in the library=在图书馆, in the park=在公园, at school=在学校")
_STREETS = pairs("at the station=在车站, in the street=在街上, at the hotel=在旅馆")
GOODS = ("text", "food", "clothes", "thing", "vehicle")

VERBS = (
    Verb("buy", "buys", "bought", "buying", "买", GOODS, _SHOPS),
    Verb("sell", "sells", "sold", "selling", "卖", GOODS, _SHOPS),
    Verb("read", "reads", "read", "reading", "读", ("text",), _QUIET),
    Verb("eat", "eats", "ate", "eating", "吃", ("food",), _QUIET[:1] + _STREETS),
    Verb("wash", "washes", "washed", "washing", "洗", ("clothes",), _QUIET[:1]),
    Verb("repair", "repairs", "repaired", "repairing", "修", ("thing", "vehicle"), _STREETS),
    Verb("draw", "draws", "drew", "drawing", "画", ("animal",), _QUIET),
    Verb("photograph", "photographs", "photographed", "photographing", "拍摄",
         ("animal", "vehicle"), _QUIET[2:] + _STREETS),
    Verb("help", "helps", "helped", "helping", "帮助", ("person",), _QUIET[1:] + _STREETS),
    Verb("interview", "interviews", "interviewed", "interviewing", "采访", ("person",),
         _QUIET[1:] + _STREETS),
    Verb("borrow", "borrows", "borrowed", "borrowing", "借", ("text",),
         _QUIET[1:2] + _QUIET[3:]),
)  # fmt: skip

PAST_TIMES = pairs(
    "yesterday=昨天, yesterday morning=昨天上午, the day before yesterday=前天, "
    "last week=上星期, last Monday=上星期一, last year=去年"
)
FUTURE_TIMES = pairs(
    "tomorrow=明天, tomorrow morning=明天上午, the day after tomorrow=后天, "
    "next week=下星期, next Monday=下星期一, next year=明年"
)
HABITS = pairs("every day=每天, every morning=每天早上, every week=每星期, every year=每年")
FREQUENCIES = pairs("often=常常, sometimes=有时候, always=总是, never=从不")
CITIES = pairs("Beijing=北京, Shanghai=上海, London=伦敦, Paris=巴黎, Berlin=柏林")
DATED_EVENTS = pairs(
    "this letter was written=这封信写, that bridge was completed=那座桥建成, "
    "this novel was published=这本小说出版, that museum was founded=那座博物馆成立"
)
MONTHS = pairs(
    "January=1月, February=2月, March=3月, April=4月, May=5月, June=6月, July=7月, August=8月, "
    "September=9月, October=10月, November=11月, December=12月"
)
# First and last hour, English and Chinese name of each part of the day.
DAY_PARTS = (
    (5, 7, "in the early morning", "清晨"),
    (8, 11, "in the morning", "上午"),
    (13, 17, "in the afternoon", "下午"),
    (18, 22, "in the evening", "晚上"),
)
STARTS = pairs("the meeting=会议, the film=电影, the concert=音乐会")
VEHICLES = pairs("train=火车, plane=飞机, bus=公共汽车")
# The coin and the small coin in English and Chinese, and the most small coins of a price.
CURRENCIES = (
    ("dollar", "dollars", "美元", "cent", "cents", "美分", 99),
    ("pound", "pounds", "英镑", "penny", "pence", "便士", 99),
    ("euro", "euros", "欧元", "cent", "cents", "欧分", 99),
    ("yuan", "yuan", "元", "jiao", "jiao", "角", 9),
)
_LOADS = pairs("apples=苹果, bananas=香蕉, potatoes=土豆, rice=大米, sugar=糖")
_DRINKS = pairs("water=水, milk=牛奶, tea=茶, coffee=咖啡")
PORTIONS = (
    ("kilogram", "kilograms", "公斤", _LOADS),
    ("bag", "bags", "袋", _LOADS),
    ("litre", "litres", "升", _DRINKS[:2]),
    ("cup", "cups", "杯", _DRINKS),
    ("bottle", "bottles", "瓶", _DRINKS[:2]),
    ("pair", "pairs", "双", pairs("shoes=鞋, socks=袜子, gloves=手套")),
)
_METRES, _KILOMETRES = ("metre", "metres", "米"), ("kilometre", "kilometres", "公里")
_KILOGRAMS = ("kilogram", "kilograms", "公斤")
DIMENSIONS = (
    ("river is {} long", "条河长{}", _KILOMETRES),
    ("road is {} long", "条路长{}", _KILOMETRES),
    ("bridge is {} long", "座桥长{}", _METRES),
    ("mountain is {} high", "座山高{}", _METRES),
    ("box weighs {}", "个箱子重{}", _KILOGRAMS),
)
SPANS = (("hour", "hours", "个小时", 10), ("minute", "minutes", "分钟", 60))
EFFORTS = pairs("worked for {}=工作了{}, slept for {}=睡了{}, waited for {}=等了{}")
# Where things can be, and the kinds of things that can be there.
SPOTS = (
    (pairs("on the table=桌子上, in the box=箱子里"), ("text", "food", "clothes")),
    (pairs("under the tree=树下, beside the river=河边"), ("animal", "person", "vehicle")),
    (pairs("in front of the school=学校前面, behind the hotel=旅馆后面"), ("person", "vehicle")),
    (pairs("near the station=车站附近"), ("person", "vehicle", "animal")),
)
DIFFERENCES = (
    ("older", "大", "year", "years", "岁"),
    ("younger", "小", "year", "years", "岁"),
    ("taller", "高", "centimetre", "centimetres", "厘米"),
)
DEGREES = pairs("taller=高, younger=小, older=大, busier=忙, richer=有钱")
QUALITIES = {
    "text": pairs("interesting=有趣, expensive=贵, important=重要"),
    "food": pairs("fresh=新鲜, expensive=贵, big=大"),
    "clothes": pairs("beautiful=漂亮, expensive=贵, old=旧"),
    "thing": pairs("beautiful=漂亮, heavy=重, old=旧"),
    "vehicle": pairs("beautiful=漂亮, expensive=贵, old=旧"),
    "animal": pairs("beautiful=漂亮, big=大, small=小"),
    "person": pairs("famous=有名, young=年轻, busy=忙"),
}


def join(*words: str) -> str:
    """Join English words with spaces, leaving out the empty ones."""
    return " ".join(word for word in words if word)


def sentence(english: str, chinese: str, *, question: bool = False) -> Pair:
    """Capitalise the English side and close both sides with their marks."""
    capitalised = english[:1].upper() + english[1:]
    return (capitalised + "?", chinese + "？") if question else (capitalised + ".", chinese + "。")


def quantity(number: int, one: str, many: str) -> str:
    """Count in English with an article for one: "an apple", "twelve apples"."""
    if number > 1:
        return f"{english_number(number)} {many}"
    sounds_as_vowel = one[0] in "aeiouAEIO" or one.startswith("hour")
    return f"{'an' if sounds_as_vowel else 'a'} {one}"


def maybe(rng: Random, pairs: tuple[Pair, ...], chance: float = 0.5) -> Pair:
    """Choose one of the pairs or, otherwise, a pair of empty texts."""
    return rng.choice(pairs) if rng.random() < chance else ("", "")


def adjective(rng: Random, noun: Noun) -> Pair:
    """Choose an adjective that suits the noun, or none."""
    return ("", "") if noun.one in _PLAIN_NOUNS else maybe(rng, ADJECTIVES[noun.kind])


def small_number(rng: Random) -> int:
    """Draw how many things there are: often one, mostly a few, at times dozens."""
    return rng.choice((1, rng.randint(2, 10), rng.randint(2, 10), rng.randint(11, 99)))


def noun_of(rng: Random, kinds: tuple[str, ...]) -> Noun:
    """Choose a noun of one of the kinds."""
    return rng.choice([noun for noun in NOUNS if noun.kind in kinds])


def counted(rng: Random, noun: Noun) -> Pair:
    """Make "a red hat" or "twelve red hats"; "a" is 一."""
    number = small_number(rng)
    english, chinese = adjective(rng, noun)
    words = quantity(number, join(english, noun.one), join(english, noun.many))
    return words, chinese_count(number) + noun.classifier + chinese + noun.zh


def pointed(rng: Random, noun: Noun) -> Pair:
    """Make "this red hat" or "those red hats"; the plural shows in 些."""
    word, plural, chinese_word = rng.choice(
        (
            ("this", False, "这"),
            ("that", False, "那"),
            ("these", True, "这"),
            ("those", True, "那"),
        )
    )
    english, chinese = adjective(rng, noun)
    measure = "些" if plural else noun.classifier
    return (
        join(word, english, noun.many if plural else noun.one),
        chinese_word + measure + chinese + noun.zh,
    )


def bare(rng: Random, noun: Noun) -> Pair:
    """Make "red hats" in general, which has no classifier."""
    english, chinese = adjective(rng, noun)
    return join(english, noun.many), chinese + noun.zh


def person(rng: Random) -> Person:
    """Choose somebody, pronouns as often as all others."""
    return rng.choice(PRONOUNS if rng.random() < 0.5 else NAMED)


def clock(hour: int, minute: int) -> Pair:
    """Tell a time on the twelve-hour clock; 3 h 30 is "half past three", 三点半."""
    now, following = english_number(hour), english_number(hour % 12 + 1)
    fixed = {
        0: (f"{now} o'clock", ""),
        15: (f"a quarter past {now}", "一刻"),
        30: (f"half past {now}", "半"),
        45: (f"a quarter to {following}", "三刻"),
    }
    chinese_hour = chinese_count(hour) + "点"
    if minute in fixed:
        english, chinese = fixed[minute]
        return english, chinese_hour + chinese
    chinese = f"{chinese_hour}{'零' if minute < 10 else ''}{chinese_number(minute)}分"
    if minute < 30:
        return f"{_minutes(minute)} past {now}", chinese
    return f"{_minutes(60 - minute)} to {following}", chinese


def _minutes(number: int) -> str:
    """Count minutes; English names the unit unless it is a multiple of five."""
    return english_number(number) if number % 5 == 0 else unit_count(number, "minute", "minutes")


def unit_count(number: int, one: str, many: str) -> str:
    """Count units in English without an article: "one dollar", "two dollars"."""
    return f"{english_number(number)} {one if number == 1 else many}"


def amount(rng: Random) -> Pair:
    """Make "twelve dollars and fifty cents"."""
    one, many, chinese, small_one, small_many, chinese_small, most = rng.choice(CURRENCIES)
    high = small_number(rng) if rng.random() < 0.7 else rng.randint(100, 999)
    coins, chinese_coins = unit_count(high, one, many), chinese_count(high) + chinese
    if rng.random() < 0.4:
        return coins, chinese_coins
    low = rng.randint(1, most)
    small = unit_count(low, small_one, small_many)
    return f"{coins} and {small}", chinese_coins + chinese_count(low) + chinese_small
