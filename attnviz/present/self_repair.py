"""Self-repair of removed heads, in files and as a table (:mod:`attnviz.measures.self_repair`)."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attnviz.present.fields import HEAD, Field, Table, pick
from attnviz.present.tables import notes
from attnviz.wording import bracketed, rounded

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnviz.present.view import ViewOptions

_three = partial(rounded, digits=3)

# of a row with a ``repair``
SELF_REPAIR = Field[Any](
    value="repair",
    name="self_repair",
    csv={name: (name,) for name in ("direct_effect", "total_effect", "repaired")}
    | {"repaired_low": ("interval", 0), "repaired_high": ("interval", 1)}
    | {"repaired_share": ("share",), "repaired_by_norm": ("norm",)},
    if_known=True,
    meaning="logits lost with all after the head as it was (total effect: when that runs)",
)
_COLUMNS: tuple[Field[Any], ...] = (
    *pick(HEAD, "id"),
    Field("Direct", "repair.direct_effect", "logits", write=_three),
    Field("Total", "repair.total_effect", "logits", write=_three),
    Field("Repaired", "repair.repaired", "logits", write=_three),
    Field("Interval", "repair.interval", "logits", write=partial(bracketed, write=_three), detail=True),
    Field("Share", "repair.share"),
    Field("By norm", "repair.norm", "logits", write=_three, detail=True),
    Field("Most changed", "repair.most_changed", "logits"),
)


def repair_tables(heads: Sequence[Any], choices: "ViewOptions") -> "Iterator[RenderableType]":
    """The table of heads, the largest direct effect first, and what its columns are."""
    left_out = set() if choices.verbose else {"By norm"}
    if not any(head.repair.interval for head in heads):
        left_out.add("Interval")
    columns = [field for field in _COLUMNS if field.title not in left_out]
    ranked = sorted(heads, key=lambda head: -abs(head.repair.direct_effect))
    table, order = Table("Self-repair of removed heads", columns, ranked), "the largest direct effect first"
    yield table.first(choices.rows(6), "patch.csv", order=order)
    yield notes(
        "Direct: lost by its corrupt output alone; total: when all after it runs; repaired: direct − total, by later "
        "parts and the final norm."
    )
