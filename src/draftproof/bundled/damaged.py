"""Damaged Python and what became of it: the task of the bundled encoder-decoder.

Pieces of the corpus, slips of a typist in them, and how many of those a mended text mends. Does not
know models and tokenizers.
"""

from __future__ import annotations

import difflib
import itertools
import random
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftproof.bundled import corpus

Slip = tuple[int, int, str]  # begin and end in the clean text, and what stands there instead
WORD = re.compile(r"[A-Za-z]{4,}")
PLACE = re.compile(r"\w+|[^\w\s]")
SPACED = re.compile(r"(?<=\S) (?=\S)")
INDENTED = re.compile(r"^ +(?=\S)", re.MULTILINE)
SIGN = re.compile(r"[()\[\]{}:,.'\"=]")
ENDING = re.compile(r"[:(),]$", re.MULTILINE)
EDGE = "\0"  # a neighbour for what has none
CHARACTERS_A_SLIP = 60
SIZES = (60, 240)  # characters of a piece, least and most


@dataclass(frozen=True)
class Damaged:
    """A text with slips in it, and the one without."""

    clean: str
    text: str
    slips: tuple[Slip, ...]  # ascending, apart from one another


@dataclass
class Mended:
    """Of what was damaged and of what was not, how much is right afterwards."""

    slips: int = 0
    mended: int = 0
    places: int = 0  # words and signs that no slip touches
    kept: int = 0
    texts: int = 0
    whole: int = 0  # texts that came out as they were before the damage

    @property
    def mended_share(self) -> float:
        return self.mended / max(1, self.slips)

    @property
    def kept_share(self) -> float:
        return self.kept / max(1, self.places)

    @property
    def whole_share(self) -> float:
        return self.whole / max(1, self.texts)

    def add(self, damaged: Damaged, output: str) -> None:
        """Count one output. A slip is mended where it and both its neighbours came out right."""
        clean = EDGE + damaged.clean + EDGE
        block = [-1] * len(clean)  # of each character: which run of equal ones it lies in
        matcher = difflib.SequenceMatcher(None, clean, EDGE + output + EDGE, autojunk=False)
        for number, (at, _, length) in enumerate(matcher.get_matching_blocks()):
            block[at : at + length] = [number] * length

        def right(begin: int, end: int) -> bool:
            return block[begin] >= 0 and len(set(block[begin:end])) == 1

        touched = [_around(clean, begin + 1, end + 1) for begin, end, _ in damaged.slips]
        apart = [
            match.span()
            for match in PLACE.finditer(clean, 1, len(clean) - 1)
            if all(match.end() <= begin or end <= match.start() for begin, end in touched)
        ]
        self.slips += len(touched)
        self.mended += sum(right(*span) for span in touched)
        self.places += len(apart)
        self.kept += sum(right(*span) for span in apart)
        self.texts += 1
        self.whole += output == damaged.clean


def _around(text: str, begin: int, end: int) -> tuple[int, int]:
    """Wider by a neighbour on each side, and by all that equals the first and last character."""
    first, last = text[begin], text[end - 1]
    while text[begin - 1] == first:
        begin -= 1
    while text[end] == last:
        end += 1
    return begin - 1, end + 1


def piece(sources: Sequence[str], ends: Sequence[int], size: int, draw: random.Random) -> str:
    """Some whole lines out of one of `sources`, about `size` characters, moved to the left margin.

    ends: running sums of the sources' lengths, by which one is drawn.
    """
    while True:
        source = draw.choices(sources, cum_weights=ends)[0]
        begin = source.find("\n", draw.randrange(len(source))) + 1
        end = source.rfind("\n", begin, begin + size)
        text = textwrap.dedent(source[begin:end]).strip("\n").expandtabs(4)
        if end > begin and len(text) > size // 2 and len(WORD.findall(text)) > 1:
            return text


def damage(clean: str, draw: random.Random, slips: int | None = None) -> Damaged:
    """`clean` with that many slips, or fewer where there is no room; None: one in 60 characters."""
    if slips is None:
        most = max(1, round(2 * len(clean) / CHARACTERS_A_SLIP))
        slips = 0 if draw.random() < 0.1 else draw.randint(1, most)
    found: list[Slip] = []
    for _ in range(4 * slips):
        if len(found) == slips:
            break
        kind = draw.choices(KINDS, WEIGHTS)[0]
        slip = kind(clean, draw)
        if slip and all(slip[1] + 1 < begin or end + 1 < slip[0] for begin, end, _ in found):
            found.append(slip)
    found.sort()
    text = clean
    for begin, end, instead in reversed(found):
        text = text[:begin] + instead + text[end:]
    return Damaged(clean, text, tuple(found))


def held_out(
    count: int, seed: int = 1, fits: Callable[[Damaged], bool] = lambda pair: True
) -> list[Damaged]:
    """Damaged pieces of modules that no bundled model has learnt, of those that `fits` takes."""
    sources = [text for name, text in corpus.modules(only_held_out=True)]
    ends, draw = list(itertools.accumulate(map(len, sources))), random.Random(seed)
    pairs: list[Damaged] = []
    while len(pairs) < count:
        pair = damage(piece(sources, ends, draw.randint(*SIZES), draw), draw)
        pairs += [pair] if fits(pair) else []
    return pairs


def _one_of(pattern: re.Pattern[str], clean: str, draw: random.Random) -> re.Match[str] | None:
    matches = list(pattern.finditer(clean))
    return draw.choice(matches) if matches else None


def _swapped(clean: str, draw: random.Random) -> Slip | None:
    """Two letters of a word in each other's place."""
    if (word := _one_of(WORD, clean, draw)) is None:
        return None
    at = draw.randrange(word.start(), word.end() - 1)
    one, other = clean[at], clean[at + 1]
    return (at, at + 2, other + one) if one != other else None


def _dropped(clean: str, draw: random.Random) -> Slip | None:
    """A letter of a word left out."""
    if (word := _one_of(WORD, clean, draw)) is None:
        return None
    at = draw.randrange(word.start(), word.end())
    return (at, at + 1, "")


def _doubled(clean: str, draw: random.Random) -> Slip | None:
    """A letter of a word written twice."""
    if (word := _one_of(WORD, clean, draw)) is None:
        return None
    at = draw.randrange(word.start(), word.end())
    return (at, at + 1, clean[at] * 2)


def _other_letter(clean: str, draw: random.Random) -> Slip | None:
    """Another letter in the place of one."""
    if (word := _one_of(WORD, clean, draw)) is None:
        return None
    at = draw.randrange(word.start(), word.end())
    other = draw.choice("abcdefghijklmnopqrstuvwxyz")
    return (at, at + 1, other) if other != clean[at].lower() else None


def _other_case(clean: str, draw: random.Random) -> Slip | None:
    """The first letter of a word large for small, or small for large."""
    if (word := _one_of(WORD, clean, draw)) is None:
        return None
    return (word.start(), word.start() + 1, clean[word.start()].swapcase())


def _sign(clean: str, draw: random.Random) -> Slip | None:
    """A bracket, quote, comma or other sign left out, or written twice."""
    if (sign := _one_of(SIGN, clean, draw)) is None:
        return None
    return (sign.start(), sign.end(), draw.choice(("", "", sign.group() * 2)))


def _ending(clean: str, draw: random.Random) -> Slip | None:
    """The sign at the end of a line left out."""
    if (sign := _one_of(ENDING, clean, draw)) is None:
        return None
    return (sign.start(), sign.end(), "")


def _space(clean: str, draw: random.Random) -> Slip | None:
    """A space between words left out."""
    return None if (space := _one_of(SPACED, clean, draw)) is None else (*space.span(), "")


def _indentation(clean: str, draw: random.Random) -> Slip | None:
    """A line indented by one space too few or too many."""
    if (space := _one_of(INDENTED, clean, draw)) is None:
        return None
    return (space.start(), space.start() + 1, draw.choice(("", "  ")))


KINDS: tuple[Callable[[str, random.Random], Slip | None], ...] = (
    _swapped,
    _dropped,
    _doubled,
    _other_letter,
    _other_case,
    _sign,
    _ending,
    _space,
    _indentation,
)
WEIGHTS = (4, 3, 3, 3, 2, 3, 3, 2, 2)
