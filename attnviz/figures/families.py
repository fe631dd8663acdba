"""Families of roles: what shares a colour and a mark in every figure that shows what heads do."""

from dataclasses import dataclass

__all__ = ["FAMILIES", "NO_ROLE", "OTHER", "Family", "family_of_label"]


@dataclass(frozen=True)
class Family:
    """Roles that share a colour and a marker.

    The colours are Paul Tol's light scheme, made for filling cells that hold dark text and told apart with any
    colour vision, and a lilac; the marker, and in maps the text in each cell, say the same again.
    """

    name: str
    colour: str
    marker: str
    roles: tuple[str, ...] = ()


FAMILIES = (
    Family("positional", "#77AADD", "o", ("previous-token", "current-token", "next-token", "offset")),
    Family("local", "#99DDFF", "h", ("local",)),
    Family("long-range", "#44BB99", "^", ("long-range",)),
    Family("syntactic", "#BBCC33", "s", ("syntactic",)),
    Family("coreference", "#FFAABB", "D", ("coreference",)),
    Family("semantic", "#AAAA00", "P", ("semantic",)),
    Family("repeats", "#C3A5DB", "v", ("induction", "duplicate-token")),
    Family("sink", "#EE8866", "X", ("sink",)),
    Family("broad", "#EEDD88", "p", ("broad",)),
    Family("other", "#DDDDDD", "d"),
    Family("no role", "#FFFFFF", "."),
)
"""Every family, in the order of legends; the last two are of roles not listed here and of heads without any."""

OTHER, NO_ROLE = FAMILIES[-2:]

_FAMILY_OF = {role: family for family in FAMILIES for role in family.roles}
_WITHOUT = ("heterogeneous", "not measurable")


def family_of_label(label: str) -> Family:
    """The family of a head's label, or of a role: ``local``, ``syntactic:nsubj``, ``offset:-3``."""
    return NO_ROLE if label in _WITHOUT else _FAMILY_OF.get(label.partition(":")[0], OTHER)
