"""Tables of a comparison for the terminal: what was compared and verified, the heads ranked, the layers."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnviz.commands.compare.differences import Differences, HeadDifference
from attnviz.commands.compare.words import side_lines, signed
from attnviz.commands.heads.tables import verification_line
from attnviz.results.tables import add_row, plain_table

__all__ = ["compare_report", "difference_table", "layer_table"]

_NARROWEST_LABELS, _WIDEST_LABELS = 16, 48
_OTHERS, _VARIATION = 27, 11
"""What the columns of ranks, ids and distances take, and that of variations."""

_WIDE = 100


def compare_report(found: Differences, heads: Sequence[HeadDifference], *, top: int, width: int) -> RenderableType:
    """Everything that ``attnviz compare`` prints: the sides, what was verified, heads, layers, how to read them.

    Args:
        found: the comparison.
        heads: those to list, the most different first.
        top: how many to list at most; 0 for all.
        width: columns of the terminal.
    """
    return Group(
        Text("\n".join(side_lines(found)), style="bold"),
        Text(),
        verification_line(found.first),
        verification_line(found.second),
        Text(),
        difference_table(found, heads, top=top, width=width),
        Text(),
        layer_table(found),
        Text(),
        _notes(found),
    )


def difference_table(found: Differences, heads: Sequence[HeadDifference], *, top: int, width: int) -> Table:
    """The heads ranked by Jensen-Shannon distance, with labels on both sides and the largest difference."""
    shown = heads[: top or None]
    left_out = len(heads) - len(shown)
    count = f"{len(shown)} of {len(heads)}" if left_out else str(len(heads))
    table = plain_table(f"Heads ({count}, the most different first)")
    table.add_column("Rank", justify="right", no_wrap=True)
    table.add_column("Head", no_wrap=True)
    table.add_column("Distance\n(√nats)", justify="right", no_wrap=True)
    wide = width >= _WIDE
    if wide:
        table.add_column("Variation\n(0–1)", justify="right", no_wrap=True)
    room = max(width - _OTHERS - _VARIATION * wide, 2 * _NARROWEST_LABELS)
    widest = max((len(head.labels) for head in shown), default=0)
    of_labels = max(_NARROWEST_LABELS, min(widest, _WIDEST_LABELS, room - _NARROWEST_LABELS))
    table.add_column("Label (A → B)", no_wrap=True, overflow="ellipsis", max_width=of_labels)
    table.add_column("Largest difference (B − A)", no_wrap=True, overflow="ellipsis", max_width=room - of_labels)
    for head in shown:
        largest = _largest(found, head, room - of_labels)
        numbers = [f"{head.distance:.3f}", *([f"{head.total_variation:.3f}"] if wide else [])]
        add_row(table, [str(head.rank), str(head.id), *numbers, head.labels, largest])
    if left_out:
        more = "1 more head is" if left_out == 1 else f"{left_out} more heads are"
        table.caption = f"{more} left out: --top 0 lists all; compare.csv has them."
    return table


def layer_table(found: Differences) -> Table:
    """Means over the heads of every layer."""
    table = plain_table("Layers (means over their heads)")
    for name in ("Layer", "Distance\n(√nats)", "Divergence\n(nats)", "Variation\n(0–1)"):
        table.add_column(name, justify="right", no_wrap=True)
    for layer in found.layers:
        numbers = (layer.distance, layer.divergence, layer.total_variation)
        add_row(table, [str(layer.layer), *(f"{number:.3f}" for number in numbers)])
    return table


def _largest(found: Differences, head: HeadDifference, room: int) -> str:
    """The number first, so that a long label cannot push it out; a token that differs in full where there is room."""
    if head.rounding:
        return "none beyond rounding"
    places = head.largest.query, head.largest.key
    full = [found.labels[place] for place in places]
    brief = [f"{found.first.units.labels[place]}{'*' * found.differing[place]}" for place in places]
    texts = [f"{signed(head.largest.difference)}  ‘{query}’ to ‘{key}’" for query, key in (full, brief)]
    return texts[0] if len(texts[0]) <= room else texts[1]


def _notes(found: Differences) -> Text:
    changed = sum(head.label_changed for head in found.heads)
    lines = [
        "Distance: square root of the Jensen-Shannon divergence, averaged over queries: 0 for equal patterns, 0.833 "
        "for no key in common. Variation: share of the attention that went to other keys, averaged over queries.",
        f"Rounding alone may move a weight by {found.floor:.1e}. Labels, of the text alone, differ for {changed} of "
        f"{len(found.heads)} heads. One text shows what changed here, not what changes in general.",
    ]
    if any(found.differing):
        lines.append(f"A {found.unit} with * differs between the sides; shown is A's.")
    if not found.any_beyond_rounding:
        lines.insert(0, "No weight of any head differs by more than rounding may: the two sides attend alike.")
    return Text("\n".join(lines), style="dim")
