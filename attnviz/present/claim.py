"""What a head does as a sentence that can stand in a paper, with its interval, best guess and control."""

from collections.abc import Sequence

from attnviz.judge.roles import Role
from attnviz.judge.rules import REPEATED
from attnviz.language.universal import PLURALS, relation_words
from attnviz.measures.intervals import ERROR_RATE
from attnviz.measures.patterns import COPY_SUPPRESSION, COPYING, INACTIVE, RARE_WORD, RETRIEVAL, ROLES_ON_REPEATS
from attnviz.measures.writing import QUIET
from attnviz.present.published import shown_baseline
from attnviz.present.role_words import role_words
from attnviz.wording import counted, percents, rounded, visible

_SEMANTIC = "semantic"  # the role whose score is a cosine, no share

# What is claimed of roles that are no share of attention; {does}: the words of the role.
_CLAIMS = {
    "coreference": "finds the right one of two names for {share} of {n} pronouns",
    _SEMANTIC: "{does}: the mean cosine is {score}",
    "broad": "{does}: its entropy is {share} of that of uniform attention",
    "sink": "{does} with {share} of its attention",
    RETRIEVAL: "{does} in {share} of the cases",
    COPYING: "{does} in {share} of {n} cases",
    COPY_SUPPRESSION: "{does} in {share} of {n} cases",
    RARE_WORD: "{does} from {share} of {n} tokens",
    INACTIVE: f"writes less than {QUIET} of its layer’s mean at {{share}} of {{n}} tokens",
}

_GUESSES = {
    "chance": "a random word",
    "first word": "the first word",
    "last word": "the last word",
    "longest word": "the longest word",
    "nearer name": "the nearer name",
    "longer name": "the longer name",
    "subject, else nearer name": "the subject, else the nearer name",
    "keys shuffled": "its keys shuffled",
}

_NUMBERS = "two three four five six seven eight".split()


def sentence(role: Role, model: str) -> str:
    """What a head of a model does, with the evidence; '' where there were too few cases for a verdict.

    ``L2H0 of all-MiniLM-L6-v2 finds the verb of 73 % of 163 objects (simultaneous 95 % interval 59–84 %; two words
    back 37 %; best untrained head 10 %)``
    """
    return "" if role.too_few else f"{claim(role, model)} ({'; '.join(_evidence(role))})"


def claim(role: Role, model: str) -> str:
    """The sentence without the evidence."""
    return f"{role.id} of {model} {_does(role)}"


def score_in_words(role: Role) -> tuple[str, str]:
    """The score and its interval in the unit of the role: ``73 %`` and ``59–84 %``; '' for none."""
    score, *ends = _numbers(role, (role.score, *(role.interval or ())))
    joint = " to " if ends and ends[0].startswith("−") else "–"
    unit = "" if is_cosine(role) else " %"
    return f"{score}{unit}", f"{joint.join(ends)}{unit}" if ends else ""


def in_words(role: Role, score: float) -> str:
    """Another score of the role in its unit."""
    return _numbers(role, (score,))[0] + ("" if is_cosine(role) else " %")


def _numbers(role: Role, scores: Sequence[float]) -> list[str]:
    return [rounded(score) for score in scores] if is_cosine(role) else percents(scores)


def is_cosine(role: Role) -> bool:
    """Whether its score is no share."""
    return role.role == _SEMANTIC


def guess_words(role: Role, name: str) -> str:
    """A baseline by name in words: ``two words back``; of an offset that is not known ``the best fixed offset``."""
    if name == "uniform attention" and role.role == RARE_WORD:
        return "a random token"
    if name == "other words":
        return f"{role.id} from other words"
    if name != "fixed offset":
        return visible(_GUESSES.get(name, name))
    if role.offset is None:
        return "the best fixed offset"
    unit = "token" if role.role == RARE_WORD else "word"
    distance = abs(role.offset)
    if distance == 1:
        return f"the {'next' if role.offset > 0 else 'previous'} {unit}"
    number = _NUMBERS[distance - 2] if distance - 2 < len(_NUMBERS) else str(distance)
    return f"{number} {unit}s {'ahead' if role.offset > 0 else 'back'}"


def guesses(role: Role) -> list[tuple[str, float]]:
    """The baselines in words with their scores, the largest first, which the score is held against."""
    if shown_baseline(role.baseline) is None:
        return []
    ranked = sorted(role.baselines.items(), key=lambda item: -item[1]) or [("baseline", role.baseline)]
    return [(guess_words(role, name), score) for name, score in ranked]


def _does(role: Role) -> str:
    """``finds the verb of 73 % of 163 objects``."""
    does, share, n = role_words(role.role, role.direction, verb="looks"), score_in_words(role)[0], f"{role.n:,}"
    if role.relation is not None:
        dependent, *heads = relation_words(role.relation, role.direction).split("→")
        if role.direction == "dependent_to_head" and dependent in PLURALS:
            return f"finds the {heads[0]} of {share} of {n} {PLURALS[dependent]}"
        return f"{does} in {share} of {n} cases"
    of_attention = "{does} with {share} of its attention" + ("" if _on_repeats(role) else " on content")
    return _CLAIMS.get(role.role, of_attention).format(does=does, share=share, score=share, n=n)


def _evidence(role: Role) -> list[str]:
    """What stands in brackets: n, unless it is said before, interval, the best guess and the control."""
    parts = []
    if role.relation is None and "{n}" not in _CLAIMS.get(role.role, ""):
        parts.append(counted(role.n, "random sequence" if _on_repeats(role) else "token"))
    if role.interval is not None:
        parts.append(f"simultaneous {100 * (1 - ERROR_RATE):.0f} % interval {score_in_words(role)[1]}")
    parts += [f"{name} {in_words(role, score)}" for name, score in guesses(role)[:1]]
    if role.describes:
        parts.append("a description by a threshold alone: no interval, no control")
    elif role.untrained is None:
        parts.append("no untrained copy measured")
    else:
        parts.append(f"best untrained head {in_words(role, role.untrained)}")
    return parts


def _on_repeats(role: Role) -> bool:
    """Whether it was measured on random tokens, repeated."""
    return role.role in ROLES_ON_REPEATS or role.threshold.startswith(REPEATED.words)
