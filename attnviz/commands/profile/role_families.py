"""Families of roles: what shares a colour in the figures of a profile, and a head's roles in order of clarity."""

from attnviz.commands.profile.profiling import Profile
from attnviz.commands.profile.roles import Role
from attnviz.figures.families import FAMILIES, NO_ROLE, Family, family_of_label
from attnviz.model.head_ids import HeadId, all_heads
from attnviz.model.tokens import visible

__all__ = ["FAMILIES", "NO_ROLE", "Family", "clearest_roles", "family_of", "margin", "short_name", "signed"]


_SHORT = {
    "previous-token": "prev", "current-token": "curr", "next-token": "next", "long-range": "long",
    "duplicate-token": "duplicate", "coreference": "coref",
}  # fmt: skip


def family_of(role: Role | None) -> Family:
    """The family of a role; of None, the family of heads without a role."""
    return NO_ROLE if role is None else family_of_label(role.role)


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
