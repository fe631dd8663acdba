"""Families of roles, with their colour and marker in all figures."""

from dataclasses import dataclass

from attnviz.judge.verdicts import BOTH
from attnviz.measures.patterns import COPY_SUPPRESSION, PATTERNS, REGISTRY, RETRIEVAL, WRITTEN
from attnviz.plugins import live


@dataclass(frozen=True)
class Family:
    """Roles that share a colour and a marker; colour never stands alone."""

    name: str
    colour: str
    marker: str


FAMILIES = (
    Family("positional", "#77AADD", "o"),
    Family("local", "#99DDFF", "h"),
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
"""Every family, in the order of legends; the last two are of roles not listed here and of heads without any.

The colours are Paul Tol's light scheme, made for cells that hold dark text and told apart with any colour vision, a
lilac, and a brown.
"""

OTHER, UNNAMED = FAMILIES[-2:]

_NAMED = {family.name: family for family in FAMILIES}


_FAMILY_OF = live(REGISTRY, lambda: (
    _NAMED
    | {spec.name: _NAMED[spec.family] for spec in PATTERNS}
    | {RETRIEVAL: _NAMED["repeats"]}
    | dict.fromkeys(WRITTEN, _NAMED["output"])
    | {"offset": _NAMED["positional"], "diagonal": _NAMED["positional"]}
    | dict.fromkeys(("too short", "too few rows"), _NAMED["unnamed"])
))  # fmt: skip


def family_of_label(label: str) -> Family:
    """The family of a label or a role: ``local``, ``syntactic:nsubj``, ``offset:-3``; of two parts that of the last."""
    name = label.rpartition(BOTH)[2]
    return _FAMILY_OF.get(name.partition(":")[0], OTHER)


ABBREVIATIONS = {
    "previous-token": "prev", "current-token": "curr", "next-token": "next", "duplicate-token": "dupl",
    "long-range": "long", "semantic": "sem", "coreference": "coref", "parataxis": "parat", "induction": "induc",
    "retrieval": "retr", "copying": "copy", COPY_SUPPRESSION: "supp", "inactive": "inact", "rare-word": "rare",
}  # fmt: skip
"""Names of labels and roles where a picture has no room for the whole name."""


def brief_name(name: str) -> str:
    """A label or role below a thumbnail, beside its family's mark: ``prev``; – for none."""
    return "–" if name == UNNAMED.name else ABBREVIATIONS.get(name, name)
