"""Make the demo corpus that the package embeds: English and Chinese sentences from grammars of our own.

`python -m benchmarks.demo_corpus` writes its file anew. The corpus can be judged by exact match, because
the grammars are a bijection: an English sentence has exactly one Chinese translation here, and the reverse.
The task is a real one all the same: word order differs, classifiers depend on the noun,
tense sits in the verb in one language and in particles in the other, and held-out
sentences hold numbers and combinations that no training sentence does.
"""

from __future__ import annotations

import gzip
from datetime import date, timedelta
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from benchmarks import demo_phrases as words
from benchmarks.demo_phrases import Noun, Pair, Person, Verb, join, maybe, pairs, sentence


if TYPE_CHECKING:
    from collections.abc import Callable


# How many pairs each split holds.
SIZES = {"train": 20_000, "val": 500, "test": 500}

FILE = Path(__file__).parents[1] / "src" / "gapless" / "nmt" / "data" / "demo.tsv.gz"


def _number(rng: Random) -> Pair:
    """Make "Three hundred and twenty-one."."""
    digits = rng.choices((2, 3, 4, 5), weights=(1, 5, 6, 6))[0]
    number = rng.randrange(10 ** (digits - 1), 10**digits)
    if number >= 1000 and rng.random() < 0.3:
        # Round numbers are rare by chance, and they are where 零 goes wrong.
        number -= number % rng.choice((10, 100, 1000))
    return sentence(words.english_number(number), words.chinese_number(number))


_FIRST_DAY = date(1900, 1, 1)
_DAYS = (date(2025, 1, 1) - _FIRST_DAY).days


def _date(rng: Random) -> Pair:
    """Make "She was born on March 5, 1998."."""
    day = _FIRST_DAY + timedelta(days=rng.randrange(_DAYS))
    month, chinese_month = words.MONTHS[day.month - 1]
    english = f"{month} {day.day}, {day.year}"
    chinese = f"{day.year}年{chinese_month}{day.day}日"
    form = rng.randrange(4)
    if form == 0:
        return sentence(f"today is {english}", f"今天是{chinese}")
    if form == 1:
        event, chinese_event = rng.choice(words.DATED_EVENTS)
        return sentence(f"{event} on {english}", f"{chinese_event}于{chinese}")
    who = words.person(rng)
    was = "were" if who.be == "are" else "was"
    chinese = f"{who.zh}出生于{chinese}"
    if form == 2:
        return sentence(f"{who.subject} {was} born on {english}", chinese)
    return sentence(f"{was} {who.subject} born on {english}", chinese + "吗", question=True)


def _time(rng: Random) -> Pair:
    """Make "It is half past three in the afternoon."."""
    first, last, part, chinese_part = rng.choice(words.DAY_PARTS)
    # After the half hour people round to five minutes, "twenty to four".
    minute = rng.randrange(31) if rng.random() < 0.6 else rng.randrange(35, 60, 5)
    clock, chinese_clock = words.clock((rng.randint(first, last) - 1) % 12 + 1, minute)
    english, chinese = f"{clock} {part}", chinese_part + chinese_clock
    form = rng.randrange(4)
    if form == 0:
        return sentence(f"it is {english}", f"现在是{chinese}")
    if form == 1:
        subject, chinese_subject = rng.choice(words.STARTS)
        verb, chinese_verb = "start", "开始"
    else:
        vehicle, chinese_vehicle = rng.choice(words.VEHICLES)
        (origin, chinese_origin), (goal, chinese_goal) = rng.sample(words.CITIES, 2)
        subject = f"the {vehicle} from {origin} to {goal}"
        chinese_subject = f"从{chinese_origin}到{chinese_goal}的{chinese_vehicle}"
        verb, chinese_verb = "leave", "出发"
    chinese = f"{chinese_subject}{chinese}{chinese_verb}"
    if rng.random() < 0.3:
        return sentence(f"does {subject} {verb} at {english}", chinese + "吗", question=True)
    return sentence(f"{subject} {verb}s at {english}", chinese)


def _price(rng: Random) -> Pair:
    """Make "This hat costs twelve dollars and fifty cents."."""
    amount, chinese_amount = words.amount(rng)
    thing, chinese_thing = words.pointed(rng, words.noun_of(rng, words.GOODS))
    many = thing.startswith(("these", "those"))
    form = rng.randrange(4)
    if form == 0:
        who = words.person(rng)
        paid = f"{who.subject} paid {amount} for {thing}"
        return sentence(paid, f"{who.zh}买{chinese_thing}花了{chinese_amount}")
    chinese = f"{chinese_thing}要{chinese_amount}"
    if form == 1:
        asked = f"{'do' if many else 'does'} {thing} cost {amount}"
        return sentence(asked, chinese + "吗", question=True)
    return sentence(f"{thing} {'cost' if many else 'costs'} {amount}", chinese)


def _size(rng: Random) -> Pair:
    """Make "That road is three hundred kilometres long."."""
    template, chinese_template, (one, many, unit) = rng.choice(words.DIMENSIONS)
    number = rng.randint(10, 999) if rng.random() < 0.6 else rng.randint(1000, 9999)
    word, chinese_word = rng.choice((("this", "这"), ("that", "那")))
    size = template.format(words.unit_count(number, one, many))
    chinese_size = chinese_template.format(words.chinese_count(number) + unit)
    return sentence(f"{word} {size}", chinese_word + chinese_size)


def _portion(rng: Random) -> Pair:
    """Make "She bought two kilograms of apples yesterday." or "He slept for an hour."."""
    who, number = words.person(rng), words.small_number(rng)
    when, chinese_when = maybe(rng, words.PAST_TIMES)
    form = rng.randrange(4)
    if form == 0:
        one, many, unit, most = rng.choice(words.SPANS)
        number = rng.randint(1, most)
        effort, chinese_effort = rng.choice(words.EFFORTS)
        done = effort.format(words.quantity(number, one, many))
        chinese = chinese_effort.format(words.chinese_count(number) + unit)
        return sentence(join(who.subject, done, when), who.zh + chinese_when + chinese)
    one, many, unit, contents = rng.choice(words.PORTIONS)
    content, chinese_content = rng.choice(contents)
    portion = f"{words.quantity(number, one, many)} of {content}"
    chinese = words.chinese_count(number) + unit + chinese_content
    if form == 1:
        needs = "needs" if who.third else "need"
        return sentence(f"{who.subject} {needs} {portion}", f"{who.zh}需要{chinese}")
    past, chinese_past = rng.choice((("bought", "买了"), ("sold", "卖了")))
    chinese = f"{who.zh}{chinese_when}{chinese_past}{chinese}"
    return sentence(join(who.subject, past, portion, when), chinese)


def _action(rng: Random) -> tuple[Person, Verb, Noun]:
    """Choose somebody, what he does, and what he does it to."""
    verb = rng.choice(words.VERBS)
    return words.person(rng), verb, words.noun_of(rng, verb.kinds)


def _object(rng: Random, noun: Noun) -> Pair:
    """Make "two red books" or "that red book"."""
    return (words.counted if rng.random() < 0.7 else words.pointed)(rng, noun)


def _statement(rng: Random) -> Pair:
    """Make "She bought two red books in the shop yesterday.", past or future."""
    who, verb, noun = _action(rng)
    place, chinese_place = maybe(rng, verb.places)
    past, denied = rng.random() < 0.5, rng.random() < 0.25
    when, chinese_when = maybe(rng, words.PAST_TIMES if past else words.FUTURE_TIMES, 0.7)
    # "Did not buy two books" says little, so a denial points at its object.
    thing, chinese_thing = (words.pointed if denied else _object)(rng, noun)
    if past:
        done = f"did not {verb.base}" if denied else verb.past
        before, after = ("没有", "") if denied else ("", "了")
    else:
        done = f"will not {verb.base}" if denied else f"will {verb.base}"
        before, after = ("不会", "") if denied else ("会", "")
    acted = f"{before}{chinese_place}{verb.zh}{after}{chinese_thing}"
    return sentence(join(who.subject, done, thing, place, when), who.zh + chinese_when + acted)


def _question(rng: Random) -> Pair:
    """Make "Will she buy this book in London tomorrow?", past or future."""
    who, verb, noun = _action(rng)
    place, chinese_place = maybe(rng, verb.places)
    past = rng.random() < 0.5
    when, chinese_when = maybe(rng, words.PAST_TIMES if past else words.FUTURE_TIMES, 0.7)
    thing, chinese_thing = _object(rng, noun)
    acted = chinese_place + verb.zh + "了" if past else "会" + chinese_place + verb.zh
    asked = join("did" if past else "will", who.subject, verb.base, thing, place, when)
    return sentence(asked, f"{who.zh}{chinese_when}{acted}{chinese_thing}吗", question=True)


def _habit(rng: Random) -> Pair:
    """Make "She often reads old books at home." or "... two books every week."."""
    who, verb, noun = _action(rng)
    place, chinese_place = maybe(rng, verb.places)
    reads = verb.third if who.third else verb.base
    if rng.random() < 0.5:
        often, chinese_often = rng.choice(words.FREQUENCIES)
        things, chinese_things = words.bare(rng, noun)
        english = join(who.subject, often, reads, things, place)
    else:
        often, chinese_often = rng.choice(words.HABITS)
        things, chinese_things = words.counted(rng, noun)
        english = join(who.subject, reads, things, place, often)
    return sentence(english, f"{who.zh}{chinese_often}{chinese_place}{verb.zh}{chinese_things}")


def _progress(rng: Random) -> Pair:
    """Make "She is reading an old book at home now.", or ask it."""
    who, verb, noun = _action(rng)
    place, chinese_place = rng.choice(verb.places)
    thing, chinese_thing = _object(rng, noun)
    rest = join(verb.progressive, thing, place, "now")
    chinese = f"{who.zh}现在正{chinese_place}{verb.zh}{chinese_thing}"
    if rng.random() < 0.3:
        return sentence(f"{who.be} {who.subject} {rest}", chinese + "吗", question=True)
    return sentence(f"{who.subject} {who.be} {rest}", chinese)


def _inquiry(rng: Random) -> Pair:
    """Make "Where did she buy this book?", "Who ...?", "How many ...?"."""
    who, verb, noun = _action(rng)
    place, chinese_place = maybe(rng, verb.places)
    when, chinese_when = maybe(rng, words.PAST_TIMES)
    did = f"did {who.subject} {verb.base}"
    acted = f"{chinese_when}{chinese_place}{verb.zh}"
    thing, chinese_thing = words.pointed(rng, noun)
    form = rng.randrange(4)
    if form == 0:
        english, chinese = f"where {did} {thing}", f"{who.zh}是在哪儿{verb.zh}{chinese_thing}的"
    elif form == 1:
        english = f"when {did} {thing}"
        chinese = f"{who.zh}是什么时候{verb.zh}{chinese_thing}的"
    elif form == 2:
        english = join("who", verb.past, thing, place, when)
        chinese = f"谁{acted}了{chinese_thing}"
    else:
        english = join("how many", noun.many, did, place, when)
        chinese = f"{who.zh}{acted}了多少{noun.classifier}{noun.zh}"
    return sentence(english, chinese, question=True)


def _presence(rng: Random) -> Pair:
    """Make "There are three books on the table.", or ask it, or how many."""
    spots, kinds = rng.choice(words.SPOTS)
    (place, chinese_place), noun = rng.choice(spots), words.noun_of(rng, kinds)
    form = rng.randrange(5)
    if form == 0:
        thing, chinese_thing = words.pointed(rng, noun)
        be = "are" if thing.startswith(("these", "those")) else "is"
        return sentence(f"{thing} {be} {place}", f"{chinese_thing}在{chinese_place}")
    if form == 1:
        asked, chinese = words.adjective(rng, noun)
        chinese = f"{chinese_place}有多少{noun.classifier}{chinese}{noun.zh}"
        asked = f"{join('how many', asked, noun.many)} are there {place}"
        return sentence(asked, chinese, question=True)
    thing, chinese_thing = words.counted(rng, noun)
    be = "is" if thing.startswith(("a ", "an ")) else "are"
    chinese = f"{chinese_place}有{chinese_thing}"
    if form == 2:
        return sentence(f"{be} there {thing} {place}", chinese + "吗", question=True)
    return sentence(f"there {be} {thing} {place}", chinese)


def _comparison(rng: Random) -> Pair:
    """Make "Tom is two years older than my father."."""
    one, other = rng.sample(words.PRONOUNS + words.NAMED, 2)
    form = rng.randrange(4)
    if form == 0:
        number = words.small_number(rng)
        comparative, chinese, one_unit, many, unit = rng.choice(words.DIFFERENCES)
        by = f"{words.unit_count(number, one_unit, many)} {comparative}"
        chinese += words.chinese_count(number) + unit
    else:
        comparative, chinese = rng.choice(words.DEGREES)
        by = f"much {comparative}" if form == 1 else comparative
        chinese += "得多" if form == 1 else ""
    chinese = f"{one.zh}比{other.zh}{chinese}"
    if form == 3:
        asked = f"{one.be} {one.subject} {by} than {other.object}"
        return sentence(asked, chinese + "吗", question=True)
    return sentence(f"{one.subject} {one.be} {by} than {other.object}", chinese)


def _relative(rng: Random) -> Pair:
    """Make "The red hat that she bought yesterday is very expensive."."""
    who, verb, noun = _action(rng)
    when, chinese_when = maybe(rng, words.PAST_TIMES)
    colour, chinese_colour = words.adjective(rng, noun)
    many = rng.random() < 0.5
    thing = join("the", colour, noun.many if many else noun.one)
    be, measure = ("are", "些") if many else ("is", noun.classifier)
    degree, chinese_degree = rng.choice(pairs("very=很, not=不, really=真"))
    # "The big egg is not big" would be odd.
    qualities = [pair for pair in words.QUALITIES[noun.kind] if pair[0] != colour]
    quality, chinese_quality = rng.choice(qualities)
    clause = join(thing, "that", who.subject, verb.past, when)
    chinese = f"{who.zh}{chinese_when}{verb.zh}的那{measure}{chinese_colour}{noun.zh}"
    return sentence(
        f"{clause} {be} {degree} {quality}", chinese + chinese_degree + chinese_quality
    )


def _journey(rng: Random) -> Pair:
    """Make "He went to London by plane last week."."""
    who, (goal, chinese_goal) = words.person(rng), rng.choice(words.CITIES)
    vehicle, chinese_vehicle = rng.choice(words.VEHICLES)
    past, asked = rng.random() < 0.5, rng.random() < 0.3
    when, chinese_when = rng.choice(words.PAST_TIMES if past else words.FUTURE_TIMES)
    trip = join("go" if asked or not past else "went", "to", goal, "by", vehicle, when)
    ride = f"{'' if past else '会'}坐{chinese_vehicle}去{'了' if past else ''}{chinese_goal}"
    chinese = who.zh + chinese_when + ride
    if asked:
        will = "did" if past else "will"
        return sentence(f"{will} {who.subject} {trip}", chinese + "吗", question=True)
    return sentence(f"{who.subject} {trip}" if past else f"{who.subject} will {trip}", chinese)


# Each grammar and how many of a hundred pairs it makes.
GRAMMARS: dict[Callable[[Random], Pair], int] = {
    _number: 12,
    _date: 13,
    _time: 11,
    _price: 10,
    _size: 6,
    _portion: 7,
    _statement: 11,
    _question: 6,
    _habit: 6,
    _progress: 4,
    _inquiry: 4,
    _presence: 4,
    _comparison: 3,
    _relative: 2,
    _journey: 1,
}
_MAX_ATTEMPTS_PER_PAIR = 30


def generate() -> dict[str, list[Pair]]:
    """Make the corpus.

    Every grammar has the same share of each split, and no sentence occurs twice in the
    corpus, in either language.

    Returns:
        For each split its pairs of an English and a Chinese sentence, shuffled.
    """
    rng = Random(0)
    corpus: dict[str, list[Pair]] = {split: [] for split in SIZES}
    seen: set[str] = set()
    shares = [_apportion(size) for size in SIZES.values()]
    for grammar, *quotas in zip(GRAMMARS, *shares, strict=True):
        made = _distinct(rng, grammar, sum(quotas), seen)
        for split, quota in zip(SIZES, quotas, strict=True):
            corpus[split] += [made.pop() for _ in range(quota)]
    for split_pairs in corpus.values():
        rng.shuffle(split_pairs)
    return corpus


def table() -> str:
    """Return the corpus as the package reads it: a line `split<tab>English<tab>Chinese` for each pair."""
    return "".join(
        f"{split}\t{english}\t{chinese}\n"
        for split, pairs in generate().items()
        for english, chinese in pairs
    )


def _apportion(size: int) -> list[int]:
    """Divide a split among the grammars; rounding never adds up to another size."""
    total = sum(GRAMMARS.values())
    reached = accumulate(GRAMMARS.values(), initial=0)
    bounds = [size * weight // total for weight in reached]
    return [high - low for low, high in pairwise(bounds)]


def _distinct(
    rng: Random, grammar: Callable[[Random], Pair], count: int, seen: set[str]
) -> list[Pair]:
    """Draw pairs from one grammar whose English is new, and note it in seen."""
    made: list[Pair] = []
    for _ in range(count * _MAX_ATTEMPTS_PER_PAIR):
        if len(made) == count:
            return made
        pair = grammar(rng)
        if pair[0] not in seen:
            seen.add(pair[0])
            made.append(pair)
    raise RuntimeError(f"{grammar.__name__} made {len(made)} of {count} different sentences")


if __name__ == "__main__":
    # Without a time, so that the same corpus is the same file.
    FILE.write_bytes(gzip.compress(table().encode(), compresslevel=9, mtime=0))
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")
