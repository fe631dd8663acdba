"""Heads that are selected by what they do: by their label on the text, or by their role over a corpus."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from attnviz.errors import UsageError
from attnviz.model.head_ids import FORMS, HeadId, selection_texts
from attnviz.model.wording import visible
from attnviz.patterns.profile_store import SYNTACTIC
from attnviz.patterns.registry import PATTERNS
from attnviz.patterns.verdicts import HETEROGENEOUS, TOO_SHORT

if TYPE_CHECKING:
    from attnviz.commands.heads.analysis import HeadFindings

__all__ = ["heads_named", "labels_in"]

_IDS = re.compile(r".*[\d*].*|[A-Za-z]?")
"""What is meant as the id of heads, or of a kind of attention: no label and no role has a digit."""

_KINDS = {spec.name: "local" if spec.family == "positional" else spec.family for spec in PATTERNS}
_KINDS |= {HETEROGENEOUS: "none", TOO_SHORT: "none"}
"""The kinds of the summary, by label."""


def heads_named(
    selections: str | HeadId | Iterable[str | HeadId], heads: Sequence["HeadFindings"]
) -> tuple[list[str], set[HeadId]]:
    """The selections that are ids, and the heads that the others name.

    Args:
        selections: as for ``--select``.
        heads: of the model, with their labels and roles.

    Raises:
        UsageError: no head has such a label or role.
    """
    parts = [part.strip() for text in selection_texts(selections) for part in text.split(",")]
    ids, chosen = [part for part in parts if _IDS.fullmatch(part)], set[HeadId]()
    for name in [part.casefold() for part in parts if part not in ids]:
        found = {head.id for head in heads if name in _names(head)}
        if not found:
            raise UsageError(_nobody(name, heads))
        chosen |= found
    return ids, chosen


def labels_in(selections: str | HeadId | Iterable[str | HeadId]) -> list[str]:
    """The selections that are no ids, but labels or roles."""
    parts = [part.strip() for text in selection_texts(selections) for part in text.split(",")]
    return [part for part in parts if not _IDS.fullmatch(part)]


def _names(head: "HeadFindings") -> set[str]:
    """All that a head may be called by: ``syntactic:obj``, ``obj``, ``syntactic``."""
    called = [head.label] if head.role is None else [head.label, head.role.role]
    return {name.casefold() for label in called for name in _names_of(label)}


def _names_of(label: str) -> Iterator[str]:
    """The whole name, a shorter one, the relation and its base, the kind."""
    relation = label.removeprefix(SYNTACTIC)
    yield from (label, label.removesuffix("-token"), relation, relation.partition(":")[0])
    yield _KINDS.get(label, "syntactic" if relation != label else label)


def _nobody(name: str, heads: Sequence["HeadFindings"]) -> str:
    """What there is instead, with counts."""
    labels = Counter(head.label.removeprefix(SYNTACTIC) for head in heads)
    roles = Counter(head.role.role.removeprefix(SYNTACTIC) for head in heads if head.role is not None)
    listed = "; ".join([f"labels {_counts(labels)}", *([f"roles {_counts(roles)}"] * bool(roles))])
    return f"cannot read the selection {visible(name)!r}: expected one of {FORMS}, or what a head is here: {listed}."


def _counts(names: Counter[str]) -> str:
    return ", ".join(f"{visible(name)} ({count})" for name, count in names.most_common())
