"""How a head's label, on this text, and its role, over a corpus, are written: two things that never stand as one."""

from attnviz.commands.heads.measure import Analysis, HeadFindings
from attnviz.model.wording import rounded, visible
from attnviz.patterns.profile_store import SYNTACTIC
from attnviz.patterns.verdicts import HETEROGENEOUS
from attnviz.results.published import role_name

__all__ = ["label_and_role", "role_text", "shorter"]

_SHORTER = {HETEROGENEOUS: "heterog.", "coreference": "coref.", "parataxis": "parat."}


def role_text(analysis: Analysis, head: HeadFindings, room: int = 999) -> str:
    """``det dep→head``; ``obj dep→head (corpus)`` where the text has no obj, or cannot tell; a dash for none.

    Where there is not so much room, it goes without direction.
    """
    if head.role is None:
        return "–"
    name, where = head.role.role, "" if analysis.has_role(head) else " (corpus)"
    forms = (f"{role_name(name, head.role.direction)}{where}", f"{role_name(name, None)}{where}")
    return next((form for form in forms if len(form) <= room), forms[-1])


def shorter(name: str) -> str:
    """A label or a role for where there is little room: ``det``, ``previous``, ``heterog.``."""
    name = name.removeprefix(SYNTACTIC).removesuffix("-token")
    return _SHORTER.get(name, name)


def label_and_role(analysis: Analysis, head: HeadFindings) -> str:
    """The label, and over the corpus the role with its numbers where there is one, for captions."""
    label, role = visible(head.labelled.shown), head.role
    if role is None:
        return label
    numbers = f"{rounded(role.score)}, baseline {rounded(role.baseline)}"
    return f"{label}; over the corpus {role_text(analysis, head)} {numbers}"
