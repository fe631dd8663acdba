"""Families of roles: what shares a colour in the figures of a profile, and a head's roles in order of clarity."""

from dataclasses import dataclass

from attnviz.heads import HeadId, all_heads
from attnviz.profile import Profile
from attnviz.roles import Role
from attnviz.tokens import visible

__all__ = ["FAMILIES", "NO_ROLE", "Family", "clearest_roles", "family_of", "margin", "short_name", "signed"]


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

_FAMILY_OF = {role: family for family in FAMILIES for role in family.roles}
_OTHER, NO_ROLE = FAMILIES[-2:]

_SHORT = {
    "previous-token": "prev", "current-token": "curr", "next-token": "next", "long-range": "long",
    "duplicate-token": "duplicate", "coreference": "coref",
}  # fmt: skip


def family_of(role: Role | None) -> Family:
    """The family of a role; of None, the family of heads without a role."""
    return NO_ROLE if role is None else _FAMILY_OF.get(role.role.partition(":")[0], _OTHER)


def clearest_roles(profile: Profile) -> dict[HeadId, list[Role]]:
    """The roles that each head passes, the largest margin above the baseline first; all heads are there."""
    found: dict[HeadId, list[Role]] = {
        head: [] for head in all_heads(profile.checkpoint.n_layers, profile.checkpoint.n_heads)
    }
    for role in sorted(profile.roles, key=lambda role: (-margin(role), role.role)):
        if role.passed:
            found[role.id].append(role)
    return found


def margin(role: Role) -> float:
    """How far the score is above its baseline."""
    return role.score - role.baseline


def short_name(role: str) -> str:
    """A role's name where room is scarce: ``prev``, ``nsubj``, ``offset -3``."""
    kind, _, rest = role.partition(":")
    return _SHORT.get(role) or visible(f"offset {signed(int(rest))}" if kind == "offset" else rest or role)


def signed(offset: int) -> str:
    """An offset with its sign, as it is printed: ``+1``, ``−3``."""
    return f"{offset:+d}".replace("-", "−")
