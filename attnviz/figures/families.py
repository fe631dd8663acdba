"""Families of labels and roles: what they are counted as everywhere, their colour and marker, and short names."""

from typing import NamedTuple

from attnviz.judge.verdicts import BOTH
from attnviz.measures.patterns import COPY_SUPPRESSION, PATTERNS, RETRIEVAL, WRITTEN


class Family(NamedTuple):
    """Roles that share a colour and a marker; colour never stands alone."""

    name: str
    colour: str
    marker: str


# every family, in the order of legends; the last two are of roles not listed here and of heads without any. The
# colours are Paul Tol's light scheme, made for cells that hold dark text and told apart with any colour vision, a
# lilac, and a brown.
FAMILIES = (
    Family("local", "#77AADD", "o"),
    Family("long-range", "#44BB99", "^"),
    Family("syntactic", "#BBCC33", "s"),
    Family("coreference", "#FFAABB", "D"),
    Family("semantic", "#AAAA00", "P"),
    Family("repeats", "#C3A5DB", "v"),
    Family("sink", "#EE8866", "X"),
    Family("broad", "#EEDD88", "p"),
    Family("output", "#B3967F", ">"),
    Family("other", "#DDDDDD", "d"),
    Family("unnamed", "#FFFFFF", "."),
)

OTHER, UNNAMED = FAMILIES[-2:]
_NAMED = {family.name: family for family in FAMILIES}


_FAMILY_OF = (
    _NAMED
    | {RETRIEVAL: _NAMED["repeats"]}
    | dict.fromkeys(WRITTEN, _NAMED["output"])
    | {"offset": _NAMED["local"], "diagonal": _NAMED["local"]}
    | dict.fromkeys(("too short", "too few rows"), _NAMED["unnamed"])
)


def family_of_label(label: str) -> Family:
    """The family of a label or a role: ``local``, ``syntactic:nsubj``, ``offset:-3``; of two parts that of the last."""
    return families_of_label(label)[-1]


def families_of_label(label: str) -> list[Family]:
    """The families that a head with this label is counted under, each once."""
    names = (name.partition(":")[0] for name in label.split(BOTH))
    return list(
        dict.fromkeys(
            _NAMED[PATTERNS[name].family] if name in PATTERNS else _FAMILY_OF.get(name, OTHER) for name in names
        )
    )


# names of labels and roles where a picture has no room for the whole name
ABBREVIATIONS = {
    "previous-token": "prev",
    "current-token": "curr",
    "next-token": "next",
    "duplicate-token": "dupl",
    "long-range": "long",
    "semantic": "sem",
    "coreference": "coref",
    "parataxis": "parat",
    "induction": "induc",
    "retrieval": "retr",
    "copying": "copy",
    COPY_SUPPRESSION: "supp",
    "inactive": "inact",
    "rare-word": "rare",
}


def brief_name(label: str) -> str:
    """A label or role below a thumbnail, beside its family's mark: ``prev``, ``sink; prev``; – for none."""
    if label == UNNAMED.name:
        return "–"
    first, both, last = label.rpartition(BOTH)
    name = last.removeprefix("syntactic:")
    return f"{first}{both}{ABBREVIATIONS.get(name, name)}"
