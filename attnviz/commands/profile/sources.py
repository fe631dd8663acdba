"""What a figure of a profile rests on, in words, and the families that colour its heads."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnviz.commands.profile.measure import Profile
from attnviz.commands.profile.roles import Role
from attnviz.figures.families import FAMILIES, NO_ROLE, Family, family_of_label
from attnviz.model.tokens import visible

__all__ = ["Heading", "counted_families", "family_of", "signed", "source_line", "trees"]


@dataclass(frozen=True)
class Heading:
    """What every plan begins with: its file's stem and caption, title and notes above the picture."""

    stem: str
    caption: str
    title: str
    notes: tuple[str, ...]


_ON_REPEATS = ("induction", "duplicate-token")


def source_line(profile: Profile, role: str | None = None, *more: str) -> str:
    """The model, what was read, and further parts, on one line.

    Args:
        profile: what was measured.
        role: name only what this role, or ``statistics``, was measured on; default everything.
        more: added at the end.
    """
    kinds = {"conllu", "txt"}
    if role is None:
        kinds |= {"gap"}
    elif role == "coreference":
        kinds = {"gap"}
    elif role in _ON_REPEATS:
        kinds = set()
    elif role.startswith("syntactic"):
        kinds = {"conllu" if profile.gold else "txt"}
    corpora = [
        f"{visible(count.corpus.path.name)} ({count.texts:,} texts, {count.tokens:,} tokens)"
        for count in profile.corpora
        if count.corpus.kind in kinds
    ]
    if profile.repeats is not None and (role is None or role in _ON_REPEATS):
        corpora.append(f"{len(profile.repeats.scores['previous'])} × {profile.repeats.length} random tokens, repeated")
    return " · ".join([visible(profile.checkpoint.short_name), *corpora, *more])


def trees(profile: Profile) -> str:
    """Whose trees they are."""
    return "gold trees" if profile.gold else "a parser's trees, not gold"


def family_of(roles: Sequence[Role]) -> Family:
    """The family of a head by its clearest role, the first."""
    return family_of_label(roles[0].role) if roles else NO_ROLE


def counted_families(families: Sequence[Family]) -> list[tuple[Family, str]]:
    """Every family that occurs, in the order of legends, and its label: ``sink (11)``."""
    return [(family, f"{family.name} ({families.count(family)})") for family in FAMILIES if family in families]


def signed(offset: int) -> str:
    """An offset with its sign, as it is printed: ``+1``, ``−3``."""
    return f"{offset:+d}".replace("-", "−")
