"""The summary of ``attnviz heads``: counts of kinds, by layer, and the best head of each kind."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings, clearest_first, rank_value
from attnviz.figures.families import family_of_label
from attnviz.judge.roles import Role
from attnviz.judge.verdicts import Verdict
from attnviz.measures.patterns import describes
from attnviz.present.documents import layer_entry
from attnviz.present.fields import Field, entry
from attnviz.wording import visible

LABEL_KINDS = ("local", "syntactic", "long-range", "sink", "repeats", "broad", "other", "unnamed")  # in this order
MISSION = ("local", "syntactic", "long-range")  # of these up to three heads are among those to look at, of others one
MOST_LISTED = 6  # heads to look at
MOST_DRAWN = 144  # heads that have a heatmap each by default: those of BERT-base, GPT-2; of more those to look at


def corpora_of(analysis: Analysis, heads: Sequence[HeadFindings]) -> str:
    """The corpora that measured the first roles of these heads; of the whole profile where none has a role."""
    assert analysis.profile is not None
    roles = [head.role for head in heads if head.role is not None]
    return visible(analysis.profile.measured_by(roles) or analysis.profile.measured_on)


def summary_entry(analysis: Analysis, heads: Sequence[HeadFindings]) -> dict[str, Any]:
    """``summary`` of heads.json: heads, labels and the best head by kind, and kinds by layer."""
    by_kind: dict[str, list[HeadFindings]] = {kind: [] for kind in LABEL_KINDS}
    layers: dict[int, dict[str, int]] = {}
    for head in heads:
        counts = layers.setdefault(head.id.layer, dict.fromkeys(LABEL_KINDS, 0))
        for kind in {kind if kind in LABEL_KINDS else "other" for kind in head.kinds}:
            counts[kind] += 1
            by_kind[kind].append(head)
    kinds = {}
    for kind, of_kind in by_kind.items():
        best = next((head for head in clearest_first(of_kind, kind) if head.labelled.verdicts), None)
        kinds[kind] = {
            "heads": len(of_kind),
            "labels": dict(Counter(head.label for head in of_kind).most_common()),
            "best": best and {"id": str(best.id), "see": f"--select {best.id}", **entry(LABEL, best)},
        }
    return {
        "heads": len(heads),
        "n": analysis.context.n_non_sink,
        "kinds": kinds,
        "layers": [{**layer_entry(layer), **counts} for layer, counts in layers.items()],
    }


def heads_to_look_at(heads: Sequence[HeadFindings], most: int = MOST_LISTED) -> list[HeadFindings]:
    """The clearest heads of each kind, each head once, up to ``most``: first by roles that are evidence, over a corpus.

    Then by roles that only describe, then by the labels of heads without a role.
    """
    ranked = list[tuple[bool, bool, int, int, HeadFindings]]()
    left = list(heads)
    for kind_at, kind in enumerate(LABEL_KINDS):
        of_kind = []
        for head in left:
            judged: Sequence[Role | Verdict] = [head.role] if head.role else head.labelled.verdicts
            clearest = [rank_value(part) for part in judged if _kind_of(part.role) == kind]
            if clearest:
                without = not head.role
                of_kind.append((without, not without and describes(judged[0].role), -max(clearest), head.id, head))
        of_kind.sort(key=lambda item: item[:4])
        new = of_kind[: 3 if kind in MISSION else 1]
        ranked += [(without, only, place, kind_at, head) for place, (without, only, *_, head) in enumerate(new)]
        left = [head for head in left if head not in [item[-1] for item in new]]
    kept = sorted(ranked, key=lambda item: item[:4])[:most]
    return [item[-1] for item in sorted(kept, key=lambda item: (item[3], item[2]))]


def _kind_of(name: str) -> str:
    kind = family_of_label(name).name
    return kind if kind in LABEL_KINDS else "other"


def listed_heads(analysis: Analysis) -> list[HeadFindings]:
    """The heads to look at, of every kind of attention equally many; the first one where no head stands out."""
    parts = analysis.parts
    listed = [head for part in parts for head in heads_to_look_at(part.heads, MOST_LISTED // len(parts))]
    return listed or list(analysis.heads[:1])


# The label of a head and the verdict behind it; None for what is unknown.
LABEL: tuple[Field[HeadFindings], ...] = (
    Field(name="label", meaning="what the head does on this text"),
    Field(
        "Score",
        lambda head: head.labelled.judged[0],
        name="label_score",
        meaning="share of attention, or of right guesses",
    ),
    Field(
        "Baseline", lambda head: head.labelled.judged[1], name="label_baseline", meaning="the same of the best guess"
    ),
    Field(value=lambda head: head.labelled.error_reduction, name="label_error_reduction"),
    Field("n", lambda head: head.labelled.n, name="label_n", meaning="pairs of tokens or words, or positions"),
    Field(value=lambda head: head.labelled.certain, name="label_certain"),
)
