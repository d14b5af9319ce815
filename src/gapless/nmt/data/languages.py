"""What language a name means, and in which script some text is written."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import langcodes


# What people write for a language though it is neither its code nor its name.
_INFORMAL = {
    **dict.fromkeys(("cn", "chs", "汉语", "华语", "国语", "中国语"), "zh"),
    **dict.fromkeys(("zhs", "zhcn"), "zh-Hans"),
    **dict.fromkeys(("cht", "zht", "zhtw"), "zh-Hant"),
    **dict.fromkeys(("粤语", "广东话"), "yue"),
    "jp": "ja",
    "한국말": "ko",
    "义大利语": "it",
    "中文 简体": "zh-Hans",
    **dict.fromkeys(("中文 繁體", "中文 繁体"), "zh-Hant"),
    **dict.fromkeys(("简体", "簡體", "zh simp", "zh simplified"), "zh-Hans"),
    **dict.fromkeys(("繁體", "繁体", "zh trad", "zh traditional"), "zh-Hant"),
    **dict.fromkeys(("us", "gb"), "en"),
    "cz": "cs",
    "dk": "da",
    "gr": "el",
    "ua": "uk",
    "vn": "vi",
    # Scripts in which one language alone is written.
    "hans": "zh-Hans",
    "hant": "zh-Hant",
    "hani": "zh",
    "hira": "ja",
    "kana": "ja",
    "jpan": "ja",
    "kore": "ko",
    "hang": "ko",
}

# Codes of small languages that are mostly meant as a country, whose text is scored otherwise.
AMBIGUOUS = {
    "ch": "the code of Chamorro, of Switzerland, and short for Chinese",
    "kr": "the code of Kanuri and of Korea",
    "tw": "the code of Twi and of Taiwan",
    "src": "the code of Logudorese Sardinian, and short for source",
    "tgt": "the code of Central Tagbanwa, and short for target",
    "trg": "the code of Lishán Didán, and short for target",
    "txt": "the code of Citak, and short for text",
}

# Names of columns. Some of them are codes of small languages as well.
_SOURCE_WORDS_UNSPACED = (
    *("原文", "源文", "源语言", "源语", "源句", "原句", "源文本", "起点言語", "ソース"),
    *("원문", "출발어"),
)
_TARGET_WORDS_UNSPACED = (
    *("译文", "目标", "目标语言", "目标语", "译句", "目标文本", "翻译", "訳文", "翻訳", "翻訳文"),
    *("目標言語", "ターゲット", "번역문", "번역", "도착어"),
)
_COLUMN_WORDS_UNSPACED = ("句子", "文本", "内容", "备注")
SOURCE_WORDS = frozenset(
    (
        *("source", "src", "original", "quelle", "quelltext", "quellsprache"),
        *(
            "ausgangstext",
            "origine",
            "langue source",
            "texte source",
            "origen",
            "fuente",
            "texto original",
        ),
        *("texto fuente", "originale", "testo originale", "origem", "fonte", "texto fonte"),
        *("bron", "brontekst", "origineel", "źródło", "oryginał", "tekst źródłowy"),
        *("источник", "оригинал", "исходный текст", "джерело", "оригінал"),
        *("kaynak", "kaynak metin", "orijinal", "المصدر", "مصدر", "الأصل", "النص الأصلي"),
        *_SOURCE_WORDS_UNSPACED,
    )
)
TARGET_WORDS = frozenset(
    (
        *("target", "tgt", "trg", "translated", "translation"),
        *("ziel", "zieltext", "zielsprache", "übersetzung"),
        *("cible", "langue cible", "texte cible", "traduction", "destino", "objetivo"),
        *("texto destino", "traducción", "destinazione", "traduzione", "alvo", "tradução"),
        *("doel", "doeltekst", "vertaling", "cel", "tłumaczenie", "цель", "перевод"),
        *("ціль", "переклад", "hedef", "hedef metin", "çeviri"),
        *("الهدف", "هدف", "الترجمة", "ترجمة"),
        *_TARGET_WORDS_UNSPACED,
    )
)
COLUMN_WORDS = frozenset(
    {
        *SOURCE_WORDS,
        *TARGET_WORDS,
        *_COLUMN_WORDS_UNSPACED,
        *("a", "answer", "author", "b", "col", "column", "content", "date", "domain", "first"),
        *("hyp", "in", "index", "inp", "input", "key", "label", "lang", "language", "left"),
        *("licence", "license", "line", "name", "new", "nr", "num", "number", "old", "orig"),
        *("out", "output", "par", "pre", "question", "raw", "ref", "reference"),
        *("right", "row", "score", "second", "sent", "sentence", "side", "split", "sub", "text"),
        *("time", "to", "txt", "url", "value", "x", "y"),
    }
)

# They stand beside a name without a space, as in 英文原文.
_BESIDE_A_NAME = re.compile(
    "|".join(
        sorted(
            (*_SOURCE_WORDS_UNSPACED, *_TARGET_WORDS_UNSPACED, *_COLUMN_WORDS_UNSPACED),
            key=len,
            reverse=True,
        )
    )
)

# Languages whose names are proposed for one that is misspelt.
_OFTEN_MEANT = (
    *("ar", "bn", "cs", "da", "de", "el", "en", "es", "fa", "fi", "fr", "he", "hi", "hu", "id"),
    *("it", "ja", "ko", "ms", "nl", "no", "pl", "pt", "ro", "ru", "sv", "th", "tr", "uk", "ur"),
    *("vi", "zh"),
)

# Written in Latin and in Cyrillic or Arabic letters, or in two scripts of India.
_OF_TWO_SCRIPTS = frozenset(
    (
        *("sr", "bs", "sh", "cnr", "uz", "kk", "az", "ku", "kmr", "ckb", "tg", "tt", "tk", "mn"),
        *("pa", "sd", "ks", "ms", "ha"),
    )
)

# A language with fewer speakers is not what a short name of a column means.
_MANY_SPEAKERS = 1_000_000

_NO_LANGUAGE = frozenset(("mis", "mul", "und", "zxx", "art"))
# Codes that everybody may use for anything.
_PRIVATE = ("qaa", "qtz")

# Of letters in names of languages.
_SIMPLIFIED = str.maketrans(
    "語韓蘭話國羅亞維烏東馬來緬賓爾倫臘當廣漢華薩喬達義粵興圖魯紹臺灣",
    "语韩兰话国罗亚维乌东马来缅宾尔伦腊当广汉华萨乔达义粤兴图鲁绍台湾",
)
# Ends of Chinese names of languages, which are no reason to mean one by another.
_WORDS_FOR_LANGUAGE = "语文话"

# Scripts, by their ISO codes and by Unicode's words, whose text has no spaces between words.
_UNSPACED = {
    "Thai": "Thai",
    "Laoo": "Lao",
    "Khmr": "Khmer",
    "Mymr": "Myanmar",
    "Tibt": "Tibetan",
    "Lana": "Tai",
    "Tale": "Tai",
    "Talu": "New",
    "Yiii": "Yi",
}

_TOKENIZER_OF_SCRIPT = {
    **dict.fromkeys(("Hans", "Hant", "Hani", "Hanb", "Bopo"), "zh"),
    **dict.fromkeys(("Jpan", "Hira", "Kana", "Hrkt"), "ja-mecab"),
    **dict.fromkeys(("Kore", "Hang", "Jamo"), "ko-mecab"),
    **dict.fromkeys(_UNSPACED, "char"),
}

_TOKENIZER_OF_WRITING = {
    "Chinese": "zh",
    "Japanese": "ja-mecab",
    "Korean": "ko-mecab",
    **dict.fromkeys(_UNSPACED.values(), "char"),
}

# Writings of one well-known language each.
_LANGUAGE_OF_WRITING = {
    "Chinese": "zh",
    "Japanese": "ja",
    "Korean": "ko",
    "Thai": "th",
    "Lao": "lo",
    "Khmer": "km",
    "Myanmar": "my",
    "Tibetan": "bo",
    "Greek": "el",
    "Hebrew": "he",
    "Armenian": "hy",
    "Georgian": "ka",
}

# Of scripts that are named alike by ISO and by Unicode, and those of one language.
_WRITING_OF_SCRIPT = {
    **dict.fromkeys(("Hans", "Hant", "Hani"), "Chinese"),
    "Jpan": "Japanese",
    "Kore": "Korean",
    "Latn": "Latin",
    "Cyrl": "Cyrillic",
    "Arab": "Arabic",
    "Grek": "Greek",
    "Hebr": "Hebrew",
    "Deva": "Devanagari",
    "Armn": "Armenian",
    "Beng": "Bengali",
    "Ethi": "Ethiopic",
    "Geor": "Georgian",
    "Gujr": "Gujarati",
    "Guru": "Gurmukhi",
    "Knda": "Kannada",
    "Mlym": "Malayalam",
    "Sinh": "Sinhala",
    "Taml": "Tamil",
    "Telu": "Telugu",
    **_UNSPACED,
}

_FEWEST_LETTERS = 10
# Latin words stand in Chinese text, as names of functions do; a character is worth several letters.
_CJK_SHARE = 0.3
_MIXED_SHARE = 0.05
_KANA_SHARE = 0.1
_WITHOUT_SPACES = frozenset(["Han", "Kana", "Thai", "Lao", "Khmer", "Myanmar"])
_HANGUL_SHARE = 0.3


@dataclass(frozen=True, kw_only=True)
class Language:
    """A language in its script.

    Attributes:
        tag: its BCP 47 tag, such as zh-Hant.
        name: its English name.
        tokenizer: of sacrebleu for its text: zh, ja-mecab, ko-mecab, char where words are not set
            apart, or 13a.
    """

    tag: str
    name: str
    tokenizer: str

    @property
    def family(self) -> str:
        """Its code without script and country; all kinds of Chinese share theirs."""
        return _parsed(self.tag).prefer_macrolanguage().language or self.tag

    @property
    def script(self) -> str | None:
        """Its ISO script, if its tag says that, or of Chinese a country; None: it may be in any."""
        is_told = self.family == "zh" and "-" in self.tag
        parsed = _parsed(self.tag)
        return parsed.maximize().script if is_told else parsed.script

    @property
    def has_two_scripts(self) -> bool:
        """Whether people write it in either of two scripts every day, and its tag does not say which."""
        return self.family in _OF_TWO_SCRIPTS and self.script is None

    @property
    def writing(self) -> str | None:
        """In what it is mostly written, as `written_in` says it; None: nothing is known of that."""
        if self.has_two_scripts:
            return None
        return _WRITING_OF_SCRIPT.get(_parsed(self.tag).maximize().script or "")


@cache
def find_language(name: str, *, is_declared: bool = False) -> Language | None:
    """Return the language that a name means, None if that cannot be known.

    Names are tags of BCP 47, codes of ISO 639, names in any language, scripts of one language, and
    a few that people use, such as `cn`. Letter case, `_` for `-`, and words such as "text" beside
    the name change nothing; of a name with dots the last part counts.

    Args:
        name: such as zh_TW, zho_Hans, Chinese, 中文, text_zh or lc.tok.de.
        is_declared: whether it can be nothing but a language. Otherwise it may be the name of a
            column, and codes that few people mean are not taken.
    """
    if is_declared:
        name = _ENDING.sub("", name)
    words = _words(name.rpartition(".")[2])
    found = _of_words(words, is_declared=is_declared)
    if found is not None or is_declared:
        return found
    rest = [word for word in words if word not in COLUMN_WORDS and not word.isdigit()]
    if rest and rest != words:
        return _of_words(rest, is_declared=False)
    # Named twice in other words, as in 英文(en); `no no` is text.
    named = [_of_words([word], is_declared=False) for word in rest]
    return named[0] if len(set(rest)) == len(rest) > 1 and len(set(named)) == 1 else None


# Of a file, or the character set behind a locale's language, as in zh_CN.UTF-8.
_ENDING = re.compile(r"(?<=\w)\.(?:txt|utf-?8|gbk|gb18030|big5|iso[\w-]+)$", re.IGNORECASE)


def _words(name: str) -> list[str]:
    text = unicodedata.normalize("NFKC", name).casefold()
    text = _BESIDE_A_NAME.sub(r" \g<0> ", text)
    return [word for word in re.split(r"[\s_\-()\[\]{}<>,:/|]+", text) if word]


def _of_words(words: list[str], *, is_declared: bool) -> Language | None:
    text = " ".join(words)
    is_column = text in COLUMN_WORDS and not is_declared
    if is_column or text in AMBIGUOUS or not text or not text.isprintable():
        return None
    simplified = text.translate(_SIMPLIFIED)
    informal = _INFORMAL.get(text) or _INFORMAL.get(simplified)
    if informal is not None:
        return _language(_parsed(informal))

    def by_code() -> langcodes.Language | None:
        return _of_code("-".join(words))

    def by_name() -> langcodes.Language | None:
        return _of_name(text) or _of_name(simplified)

    # Names of several words, such as Min Nan, may be made of codes.
    found = by_name() or by_code() if len(words) > 1 else by_code() or by_name()
    if found is None or not _is_language(found):
        return None
    return _language(found) if is_declared or _is_well_known(found) else None


def _of_code(tag: str) -> langcodes.Language | None:
    import langcodes

    return _parsed(tag) if langcodes.tag_is_valid(tag) else None


def _of_name(text: str) -> langcodes.Language | None:
    import langcodes

    language, _, kind = text.rpartition(" ")
    is_turned = kind in ("simplified", "traditional")
    for order in [f"{kind} {language}"] * is_turned + [text]:
        try:
            return langcodes.find(order)
        except LookupError:
            continue
    return None


def _is_language(found: langcodes.Language) -> bool:
    """Return whether a tag names one language that others know."""
    code = found.language or "und"
    is_private = found.to_tag().startswith("x-") or (
        len(code) == len(_PRIVATE[0]) and _PRIVATE[0] <= code <= _PRIVATE[1]
    )
    return code not in _NO_LANGUAGE and not is_private


def _parsed(tag: str) -> langcodes.Language:
    import langcodes

    return langcodes.get(tag)


def _is_well_known(language: langcodes.Language) -> bool:
    code = language.prefer_macrolanguage().language or ""
    return len(code) == 2 or language.speaking_population() >= _MANY_SPEAKERS


def _language(found: langcodes.Language) -> Language:
    script = found.maximize().script or ""
    return Language(
        tag=found.to_tag(),
        name=found.display_name(),
        tokenizer=_TOKENIZER_OF_SCRIPT.get(script, "13a"),
    )


def matching_name(wanted: str, names: Sequence[str]) -> str | None:
    """Return which of some names is the one wanted, None if none is or several are.

    The same name comes first, then one that differs in letter case, then the one name of the same
    language, but for one of another script, such as traditional characters for simplified ones.

    Args:
        wanted: a name of a side, such as zh.
        names: of columns, keys or files.
    """
    if wanted in names:
        return wanted
    folded = [name for name in names if name.strip().casefold() == wanted.strip().casefold()]
    if folded:
        return folded[0] if len(folded) == 1 else None
    language = find_language(wanted)
    if language is None:
        return None
    spoken = {name: found for name in names if (found := find_language(name)) is not None}
    same = [name for name, found in spoken.items() if found.tag == language.tag]
    kin = {name: found for name, found in spoken.items() if found.family == language.family}
    if not same and language.script is not None:
        same = [name for name, found in kin.items() if found.script == language.script]
        kin = {name: found for name, found in kin.items() if found.script is None}
    same = same or list(kin)
    return same[0] if len(same) == 1 else None


# Between words of a name that are written as one, as in textDe, ENText and caption中文.
_WITHIN_A_NAME = re.compile(
    r"(?<=[^\W\d_A-Z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    r"|(?<=[A-Za-z])(?=[\u3040-\u9fff])|(?<=[\u3040-\u9fff])(?=[A-Za-z])"
)


def without_invisible(text: str) -> str:
    """Return a text without spaces and characters that nobody sees, such as byte order marks, around it."""
    seen = [n for n, sign in enumerate(text) if not (sign.isspace() or is_invisible(sign))]
    return text[seen[0] : seen[-1] + 1] if seen else ""


def is_invisible(sign: str) -> bool:
    """Return whether nobody sees a character, such as a byte order mark or a soft hyphen."""
    return unicodedata.category(sign) == "Cf"


def words_of_name(name: str) -> list[str]:
    """Return the words of a name, as they are written; of textDe_2 they are text and De.

    Args:
        name: of a column, a key or a file.
    """
    text = "".join(sign for sign in name if not is_invisible(sign))
    text = _BESIDE_A_NAME.sub(r" \g<0> ", unicodedata.normalize("NFKC", text))
    return re.findall(r"[^\W\d_]+", _WITHIN_A_NAME.sub(" ", text))


def words_for(wanted: str, name: str) -> list[str]:
    """Return the words of a name that name a side, or its language; none if the name is of another script.

    Args:
        wanted: a name of the side, such as zh.
        name: of a column, a key or a file, such as caption_zh.
    """
    words = words_of_name(name)
    if names_in_other_scripts(wanted, [name, *words]):
        return []
    return [word for word in words if matching_name(wanted, [word]) is not None]


def names_in_other_scripts(wanted: str, names: Sequence[str]) -> list[str]:
    """Return the names of the wanted language in scripts that it was not wanted in.

    Args:
        wanted: a name of a side, such as zh-CN.
        names: of columns, keys or files.
    """
    language = find_language(wanted)
    if language is None:
        return []
    spoken = {name: found for name in names if (found := find_language(name)) is not None}
    return [
        name
        for name, found in spoken.items()
        if found.family == language.family
        and None not in (found.script, language.script)
        and found.script != language.script
    ]


def near_name(wanted: str, names: Sequence[str] = ()) -> str | None:
    """Return what a name was probably meant to be, None if it is a language or near to none.

    Args:
        wanted: a name of a side, such as Englsh.
        names: of columns, keys or files, which are looked at beside names of languages.
    """
    if find_language(wanted) is not None:
        return None
    known = {name.casefold(): name for code in _OFTEN_MEANT for name in _names_of(code)}
    known |= {name.casefold(): name for name in names}
    text = wanted.strip().casefold()
    if not text.isascii():
        # One of two Chinese characters is half of a name.
        stem = text.translate(_SIMPLIFIED).rstrip(_WORDS_FOR_LANGUAGE)
        known = {
            name: meant
            for name, meant in known.items()
            if set(stem) & set(name.translate(_SIMPLIFIED).rstrip(_WORDS_FOR_LANGUAGE))
        }
    near = get_close_matches(text, list(known), n=1, cutoff=0.6 if text.isascii() else 0.5)
    if not near:
        return None
    meant = known[near[0]]
    # Endings such as -ian are no reason either to mean another language.
    return meant if meant in names or meant[:1].casefold() == text[:1] else None


def _names_of(code: str) -> tuple[str, ...]:
    """Return the English, the Chinese and the own name of a language, and what else it is called."""
    language = _parsed(code)
    informal = [name for name, meant in _INFORMAL.items() if meant == code and len(name) > 1]
    names = language.display_name(), language.display_name("zh"), language.autonym()
    return (*names, *(name for name in informal if not name.isascii()))


# --- text ---


def written_in(sentences: Iterable[str], *, fewest: int = _FEWEST_LETTERS) -> str | None:
    """Return in what some text is written: Chinese, Japanese, Korean, or a script such as Latin.

    None where that cannot be said: there are few letters, or no script has most of them. Chinese
    stands for all that is written in Han characters without kana or hangul.

    Args:
        sentences: the text.
        fewest: letters of which that can be said.
    """
    letters: Counter[str] = Counter()
    for sign, count in Counter("".join(sentences)).items():
        if sign.isalpha():
            letters[_script(sign)] += count
    total = letters.total()
    if total < fewest:
        return None
    kana, hangul = letters["Kana"], letters["Hangul"]
    cjk = letters["Han"] + kana + hangul
    if cjk < _CJK_SHARE * total:
        script, most = letters.most_common(1)[0]
        return script if cjk < _MIXED_SHARE * total and most > total / 2 else None
    if hangul >= _HANGUL_SHARE * cjk:
        return "Korean"
    return "Japanese" if kana >= _KANA_SHARE * cjk else "Chinese"


def share_without_spaces(sentences: Iterable[str]) -> float:
    """Return the share of sentences whose letters are mostly those of languages without spaces between words.

    Args:
        sentences: the text; those without letters do not count.
    """
    scripts = [[_script(sign) for sign in one if sign.isalpha()] for one in sentences]
    written = [letters for letters in scripts if letters]
    found = sum(2 * sum(map(_WITHOUT_SPACES.__contains__, one)) > len(one) for one in written)
    return found / max(1, len(written))


def has_kana(sentences: Iterable[str]) -> bool:
    """Return whether some text has letters that are Japanese and nothing else."""
    return any(sign.isalpha() and _script(sign) == "Kana" for sign in set("".join(sentences)))


@cache
def _script(letter: str) -> str:
    """Return the script of a letter, as the first word of its Unicode name says it."""
    words = unicodedata.name(letter, "UNKNOWN").split()
    first = words[1] if words[0] in ("FULLWIDTH", "HALFWIDTH") else words[0]
    if first.startswith(("HIRAGANA", "KATAKANA")):
        return "Kana"
    return "Han" if first in ("CJK", "IDEOGRAPHIC") else first.capitalize()


def looks(writing: str) -> str:
    """Return a verb and how text looks that is written so, as `written_in` says it."""
    is_language = writing in ("Chinese", "Japanese", "Korean")
    return f"looks {writing}" if is_language else f"is written in {writing} letters"


def tokenizer_of_writing(writing: str) -> str:
    """Return sacrebleu's tokenizer for text that is written so, as `written_in` says it."""
    return _TOKENIZER_OF_WRITING.get(writing, "13a")


def has_spaces(writing: str | None) -> bool:
    """Return whether text that is written so, as `written_in` says it, has spaces between words."""
    return tokenizer_of_writing(writing or "") not in ("zh", "ja-mecab", "char")


def language_of_writing(writing: str | None) -> str | None:
    """Return the code of the one well-known language that is written so, None if many are."""
    return _LANGUAGE_OF_WRITING.get(writing or "")
