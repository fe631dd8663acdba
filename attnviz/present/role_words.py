"""What heads do, in plain verbs, and the short names that ``--select`` takes."""

from attnviz.figures.families import family_of_label
from attnviz.judge.verdicts import BOTH
from attnviz.language.universal import relation_words
from attnviz.measures.patterns import COPY_SUPPRESSION, COPYING, INACTIVE, PATTERNS, RARE_WORD, RETRIEVAL, SINK
from attnviz.present.statistics import filled
from attnviz.profiles.parts import SYNTACTIC
from attnviz.wording import visible

# What a head with a role does: roles that are no pattern, relation or offset, and patterns that have shorter words.
_DOES = {
    "long-range": "looks far away",
    "induction": "looks at what followed a copy",
    "duplicate-token": "looks at an earlier copy",
    "coreference": "looks from a pronoun to its name",
    "semantic": "looks at similar words",
    "broad": "spreads over all {unit}s",
    "diagonal": "moves through the source",
    SINK: "rests on sinks",
    RETRIEVAL: "looks at the {unit} to copy next",
    COPYING: "raises the logit of what it looks at",
    COPY_SUPPRESSION: "lowers the logit of what it looks at",
    RARE_WORD: "looks at the rarest {unit}",
    INACTIVE: "writes next to nothing",
}

# What a head of a family does.
_FAMILY_DOES = {
    "sink": "rests on {sinks}",
    "local": "looks at a near {unit}",
    "syntactic": "follows a relation of words",
    "coreference": _DOES["coreference"],
    "semantic": "looks at words of similar meaning",
    "repeats": "looks back at a repeated {unit}",
    "long-range": "looks far",
    "broad": _DOES["broad"],
    "output": "changes the logit of attended {unit}s",
    "other": "shows another pattern",
    "unnamed": "shows no pattern",
}


def role_words(role: str, direction: str | None = None, unit: str = "token", verb: str = "") -> str:
    """What a head with a role or a label does: ``looks at the previous token``, ``from object to verb``.

    ``verb`` stands before both ends of a relation.
    """
    relation, offset = role.removeprefix(SYNTACTIC), role.removeprefix("offset:")
    if offset != role:
        return f"looks {abs(int(offset))} {unit}s {'ahead' if offset.startswith('+') else 'back'}"
    if relation != role:
        ends = relation_words(relation, direction).split("→")
        between = f"{verb} from {ends[0]} to {ends[-1]}".strip()
        return between if len(ends) == 2 else f"finds {visible(relation)}"
    spec = PATTERNS.get(role)
    where = visible(role) if spec is None else spec.target
    return filled(_DOES.get(role, f"looks at {where}"), unit=unit, window=1, far=4)


def family_words(family: str, n: int, unit: str, sinks: str) -> str:
    """What ``n`` heads of a family do: ``look at a near token``."""
    verb, _, what = _FAMILY_DOES[family].partition(" ")
    return filled(f"{verb if n == 1 else verb.removesuffix('s')} {what}", unit=unit, sinks=sinks)


def short_name(role: str) -> str:
    """The shortest name by which ``--select`` finds a role: ``obj``, ``previous``."""
    last = role.rpartition(BOTH)[2].removeprefix(SYNTACTIC)
    return "" if family_of_label(role).name == "unnamed" else visible(last.removesuffix("-token"))
