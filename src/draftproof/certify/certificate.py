"""What a certificate holds, and its verdict: nothing counts that was not exercised.

Knows what was found, not how.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from draftproof.certify import law
from draftproof.certify.identity import Finding, Outcome
from draftproof.certify.plain import Bound
from draftproof.rules import named
from draftproof.sampling import SamplingParams

AUTO = "auto"  # the method that drafts only where that pays
IDENTICAL, DEFECT, NEAR_TIES, NOT_EXERCISED = 0, 1, 3, 4  # exit codes
INCOMPLETE = 130  # as a shell tells of an interrupt
ENDED = "greedy, a stop token"
SETTINGS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(),
    ENDED: SamplingParams(ignore_eos=True),  # the token is chosen from what plain decoding wrote
    "temperature 0.7": SamplingParams(temperature=0.7),
    "top_k, top_p, min_p": SamplingParams(temperature=1.0, top_k=20, top_p=0.9, min_p=0.02),
    "penalties": SamplingParams(
        temperature=0.8, repetition_penalty=1.5, presence_penalty=1.0, frequency_penalty=0.5
    ),
}


def draws(params: SamplingParams) -> bool:
    """Whether tokens are drawn; else they are greedy's."""
    return params.temperature > 0


@dataclass(frozen=True)
class Case:
    """One method under one rule."""

    method: str
    rule: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by setting
    laws: list[law.Test] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.method} under {self.rule}"

    @property
    def whole(self) -> Outcome:
        """The outcomes of all settings together."""
        return _sum([*self.outcomes.values()])

    @property
    def positions(self) -> int:
        """Positions of the settings under which something was drafted."""
        return sum(one.positions for one in self.outcomes.values() if one.drafted)

    @property
    def idle(self) -> str | None:
        """Where nothing was drafted, so that plain decoding was compared with itself."""
        whole = self.whole
        if not whole.drafted:
            return "nothing was drafted"
        kinds = {
            "greedily": self._drafted(sampling=False),
            "where it samples": self._drafted(sampling=True),
            "for one prompt alone": whole.alone,
            "for several prompts in one step": whole.together,
        }
        empty = [kind for kind, drafted in kinds.items() if not drafted]
        return f"nothing was drafted {' or '.join(empty)}" if empty else None

    def _drafted(self, *, sampling: bool) -> int:
        kind = [one for name, one in self.outcomes.items() if draws(SETTINGS[name]) == sampling]
        return sum(one.drafted for one in kind)

    @property
    def unfinished(self) -> str | None:
        """What was not compared yet, if anything."""
        settings = len(self.outcomes), len(SETTINGS)
        laws = len({test.setting for test in self.laws}), len(law.SETTINGS) * self.drawn
        kinds = {"settings": settings, "laws": laws}
        left = [f"{done} of {all} {kind}" for kind, (done, all) in kinds.items() if done < all]
        return " and ".join(left) or None

    @property
    def drawn(self) -> bool:
        """Whether its sampling draws by itself, so that its law is tested."""
        return any(named(self.rule).wants_laws(params) for params in SETTINGS.values())

    @property
    def onesided(self) -> str | None:
        """What its drafts never showed, though there were some."""
        drafted = sum(test.drafted for test in self.laws)
        kinds = {
            "accepted": [self.whole.drafted and not self.whole.accepted],
            "accepted in its tests of law": [drafted and not sum(t.accepted for t in self.laws)],
            "rejected in its tests of law": [drafted and not sum(t.rejected for t in self.laws)],
        }
        never = [kind for kind, (so,) in kinds.items() if so]
        return f"no draft of {self} was {' or '.join(never)}" if never else None


@dataclass
class Certificate:
    """What was compared, and what was found."""

    runner: str
    precision: str
    seed: int
    prompts: list[list[int]]
    settings: dict[str, list[SamplingParams]] = field(default_factory=dict)  # one per prompt
    bound: Bound = Bound(0.0, 0.0, None, 0.0)  # until it is measured: before anything is compared
    cases: list[Case] = field(default_factory=list)
    interrupted: str | None = None  # the part that an interrupt ended; what was finished counts

    @property
    def laws(self) -> list[tuple[Case, law.Test]]:
        return [(case, test) for case in self.cases for test in case.laws]

    @property
    def tests(self) -> int:
        """Tests of law that were exercised, among which the false alarms are shared."""
        return sum(test.idle is None for _, test in self.laws)

    def idle(self, test: law.Test) -> str | None:
        """Why a test of law does not count, if so."""
        if (
            test.cause is None
            and not test.impossible
            and test.idle is None
            and self.sees(test) >= 1
        ):
            return f"{test.runs} runs are too few to find any false law for certain"
        return test.idle

    def sees(self, test: law.Test) -> float:
        """The total variation from which on it surely finds a false law."""
        return test.sees(self.tests)

    @property
    def counted(self) -> list[law.Test]:
        """The tests of law that count."""
        return [test for _, test in self.laws if self.idle(test) is None]

    @property
    def finished(self) -> list[Case]:
        """Those that an interrupt left whole."""
        whole = self.interrupted is None
        return [case for case in self.cases if whole or case.unfinished is None]

    @property
    def not_exercised(self) -> list[str]:
        """Methods that passed by silence, and where; "auto" may be silent where nothing pays."""
        silent = []
        for case in self.finished:
            if case.method == AUTO:
                continue
            causes = [] if case.idle is None else [case.idle]
            if case.laws and all(self.idle(test) is not None for test in case.laws):
                causes.append(f"none of {len(case.laws)} tests of law")
            if causes:
                silent.append(f"{case} ({'; '.join(causes)})")
        return silent

    @property
    def failed_laws(self) -> list[tuple[Case, law.Test]]:
        """Laws that are not the target's, and drafters that failed under such a test."""
        return [(case, test) for case, test in self.laws if test.fails(self.tests)]

    @property
    def defects(self) -> list[tuple[Case, str, Finding]]:
        return [
            (case, setting, finding)
            for case in self.cases
            for setting, outcome in case.outcomes.items()
            for finding in outcome.defects
        ]

    @property
    def near_ties(self) -> int:
        return sum(len(case.whole.near_ties) for case in self.cases)

    @property
    def code(self) -> int:
        """0: identical; 1: a defect; 4: not exercised; 3: near-ties only; 130: incomplete."""
        if self.interrupted is not None:
            return INCOMPLETE
        if self.defects or self.failed_laws:
            return DEFECT
        if self.not_exercised:
            return NOT_EXERCISED
        return NEAR_TIES if self.near_ties else IDENTICAL

    @property
    def verdict(self) -> str:
        """One line: what was found over what was exercised, and what was not."""
        positions = sum(case.positions for case in self.cases)
        over = f"over {_of(positions, sum(case.whole.positions for case in self.cases))} positions"
        if self.laws:
            over += f" and {_of(len(self.counted), len(self.laws))} tests of law"
        idle = ", ".join(self.not_exercised)
        finding = f"nothing differs {over}"
        if self.near_ties:
            finding = f"{self.near_ties} tokens differ by rounding alone {over}"
        if self.defects or self.failed_laws:
            finding = f"{len(self.defects)} differences"
            if self.failed_laws:
                finding += f" and {len(self.failed_laws)} failed tests of law"
            parts = [f"{finding} {over}", *([f"not exercised: {idle}"] if idle else [])]
        else:
            parts = [*([idle] if idle else []), finding]
            parts += filter(None, (case.onesided for case in self.finished))
        if self.interrupted is not None:
            parts.insert(0, f"interrupted in {self.interrupted}")
        return f"{VERDICTS[self.code]}: {'; '.join(parts)}"


VERDICTS = {
    IDENTICAL: "IDENTICAL",
    DEFECT: "DEFECT",
    NEAR_TIES: "NEAR-TIES",
    NOT_EXERCISED: "NOT EXERCISED",
    INCOMPLETE: "INCOMPLETE",
}


def _of(count: int, whole: int) -> str:
    return f"{count:,}" if count == whole else f"{count:,} of {whole:,}"


def _sum(outcomes: list[Outcome]) -> Outcome:
    total = Outcome()
    for outcome in outcomes:
        total.add(outcome)
    return total
