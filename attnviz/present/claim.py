"""What a head does as a sentence that can stand in a paper, with its interval, best guess and control."""

from attnviz.judge.roles import Role
from attnviz.judge.rules import REPEATED
from attnviz.language.universal import PLURALS, relation_words
from attnviz.measures.guesses import GUESSES
from attnviz.measures.intervals import ERROR_RATE
from attnviz.measures.patterns import COPY_SUPPRESSION, COPYING, INACTIVE, RARE_WORD, RETRIEVAL, ROLES_ON_REPEATS
from attnviz.measures.writing import QUIET
from attnviz.present.published import shown_baseline
from attnviz.present.role_words import role_words
from attnviz.wording import counted, percents, rounded, visible

_PERCENT = " %"
_IN_CASES = "{does} in {share} of {n} cases"

# What is claimed of roles that are no share of attention on content; {does}: the words of the role.
_CLAIMS = {
    "coreference": "finds the right one of two names for {share} of {n} pronouns",
    "semantic": "{does}: the mean cosine is {share}",
    "broad": "{does}: its entropy is {share} of that of uniform attention",
    "sink": "{does} with {share} of its attention",
    RETRIEVAL: "{does} in {share} of the cases",
    COPYING: _IN_CASES,
    COPY_SUPPRESSION: _IN_CASES,
    RARE_WORD: "{does} from {share} of {n} tokens",
    INACTIVE: f"writes less than {QUIET} of its layer’s mean at {{share}} of {{n}} tokens",
}

# Baselines that have other words than their name.
_GUESSES = {
    "chance": "a random word",
    "other words": "the head from other words",
    "subject, else nearer name": "the subject, else the nearer name",
    "keys shuffled": "its keys shuffled",
    "equal heads": "heads that write alike",
    **{name: f"the {name}" for name in (*GUESSES, "nearer name", "longer name")},
}

_NUMBERS = "no one two three four five six seven eight".split()


def sentence(role: Role, model: str) -> str:
    """What a head of a model does, with the evidence; '' where there were too few cases for a verdict.

    ``L2H0 of all-MiniLM-L6-v2 finds the verb of 73 % of 163 objects (simultaneous 95 % interval 59–84 %; two words
    back 37 %; best untrained head 10 %)``
    """
    if role.too_few:
        return ""
    evidence = []
    if "{n}" not in _claim_of(role):
        evidence.append(counted(role.n, "random sequence" if _on_repeats(role) else "token"))
    if role.interval is not None:
        evidence.append(f"simultaneous {100 * (1 - ERROR_RATE):.0f} % interval {score_and_interval(role)[1]}")
    evidence += [f"{name} {in_unit(role, score)[0]}" for name, score in held_against(role)]
    if role.describes:
        evidence.append("a description by a threshold alone: no interval, no control")
    elif role.untrained is None:
        evidence.append("no untrained copy measured")
    return f"{claim(role, model)} ({'; '.join(evidence)})"


def claim(role: Role, model: str) -> str:
    """The sentence without the evidence."""
    does = role_words(role.role, role.direction, verb="looks")
    said = _claim_of(role).format(does=does, share=score_and_interval(role)[0], n=f"{role.n:,}")
    return f"{role.id} of {model} {said}"


def held_against(role: Role) -> list[tuple[str, float]]:
    """What the score is held against, in words, with its score: the best guess, and the untrained copy's best head."""
    against = []
    if shown_baseline(role.baseline, role.role) is not None:
        name = max(role.baselines, key=role.baselines.__getitem__, default="baseline")
        against.append((_guess_words(role, name), role.baseline))
    if role.untrained is not None:
        against.append(("best untrained head", role.untrained))
    return against


def score_and_interval(role: Role) -> tuple[str, str]:
    """``73 %`` and ``59–84 %``; '' for no interval."""
    if role.interval is None:
        return in_unit(role, role.score)[0], ""
    score, low, high = in_unit(role, role.score, *role.interval)
    return score, f"{low.removesuffix(_PERCENT)}{' to ' if low.startswith('−') else '–'}{high}"


def in_unit(role: Role, *scores: float) -> list[str]:
    """Scores in the unit of the role: ``73 %``, of semantic, a cosine, ``0.12``."""
    if role.role == "semantic":
        return list(map(rounded, scores))
    return [number + _PERCENT for number in percents(scores)]


def _claim_of(role: Role) -> str:
    """What is claimed, with names in braces for its numbers."""
    if role.relation is not None:
        dependent, *heads = relation_words(role.relation, role.direction).split("→")
        if role.direction == "dependent_to_head" and dependent in PLURALS:
            return f"finds the {heads[0]} of {{share}} of {{n}} {PLURALS[dependent]}"
        return _IN_CASES
    content = "" if _on_repeats(role) else " on content"
    return _CLAIMS.get(role.role, f"{{does}} with {{share}} of its attention{content}")


def _guess_words(role: Role, name: str) -> str:
    """A baseline in words: ``two words back``; of an offset that is not known ``the best fixed offset``."""
    unit = "token" if role.role == RARE_WORD else "word"
    if name != "fixed offset":
        return f"a random {unit}" if unit == "token" else visible(_GUESSES.get(name, name))
    if role.offset is None:
        return "the best fixed offset"
    distance = abs(role.offset)
    if distance == 1:
        return f"the {'next' if role.offset > 0 else 'previous'} {unit}"
    number = _NUMBERS[distance] if distance < len(_NUMBERS) else str(distance)
    return f"{number} {unit}s {'ahead' if role.offset > 0 else 'back'}"


def _on_repeats(role: Role) -> bool:
    """Whether it was measured on random tokens, repeated."""
    return role.role in ROLES_ON_REPEATS or role.threshold.startswith(REPEATED.words)
