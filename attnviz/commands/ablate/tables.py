"""Tables of an ablation for the terminal: what was verified, the heads ranked, layers, the curve, and what it says."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnviz.commands.ablate.compensation import (
    amount,
    compensation_text,
    method_words,
    ratio_of,
    source_line,
    span,
    verdict_of,
    what_is_measured,
)
from attnviz.commands.ablate.inputs import STATES
from attnviz.commands.ablate.results import Ablated, SetDamage
from attnviz.model.tokens import visible
from attnviz.results.tables import add_row, error, plain_table

__all__ = ["ablation_report", "curve_table", "head_table", "set_table"]

_WIDE = 100


def ablation_report(found: Ablated, *, top: int, width: int) -> RenderableType:
    """Everything that ``attnviz ablate`` prints.

    Args:
        found: the ablation.
        top: heads to list at most, the ones that matter most first; 0 for all.
        width: columns of the terminal.
    """
    parts: list[RenderableType] = [
        Text(f"{visible(found.checkpoint.short_name)} on {source_line(found)}", style="bold"),
        Text(f"{_sentence(what_is_measured(found))} {_sentence(method_words(found))}"),
        _verified(found),
        head_table(found, top=top, width=width),
    ]
    sets = [found.together] if found.together is not None else list(found.layers)
    if sets:
        parts.append(set_table(found, sets))
    if found.curve is not None:
        parts.append(curve_table(found))
    parts.append(Text(compensation_text(found)))
    return Group(*(part for each in parts for part in (each, Text())), _notes(found))


def head_table(found: Ablated, *, top: int, width: int) -> Table:
    """The heads ranked by what removing them does, with intervals and the importance by gradients."""
    shown = found.heads[: top or None]
    left_out = len(found.heads) - len(shown)
    count = f"{len(shown)} of {len(found.heads)}" if left_out else str(len(found.heads))
    table = plain_table(f"Heads removed one at a time ({count}, the one that matters most first)")
    table.add_column("Rank", justify="right", no_wrap=True)
    table.add_column("Head", no_wrap=True)
    first, second = found.measures
    table.add_column(f"{_heading(first.title)}\n({first.unit})", justify="right", no_wrap=True)
    known = shown[0].damage[first.name].low is not None
    if known:
        table.add_column("95 % interval", no_wrap=True)
    table.add_column(f"{_heading(second.title)}\n({second.unit})", justify="right", no_wrap=True)
    wide = known and width >= _WIDE
    if wide:
        table.add_column("95 % interval", no_wrap=True)
    with_gradient = found.options.gradient
    if with_gradient:
        table.add_column("Gradient", justify="right", no_wrap=True)
        table.add_column("in its\nlayer", justify="right", no_wrap=True)
    for head in shown:
        values = head.damage[first.name], head.damage[second.name]
        cells = [str(head.rank), str(head.id), amount(values[0].value), *([span(values[0])] if known else [])]
        cells += [amount(values[1].value), *([span(values[1])] if wide else [])]
        if with_gradient:
            cells += [amount(head.gradient or 0.0), f"{head.gradient_normalised or 0.0:.2f}"]
        add_row(table, cells)
    if left_out:
        more = "1 more head is" if left_out == 1 else f"{left_out} more heads are"
        table.caption = f"{more} left out: --top 0 lists all; ablate.csv has them."
    return table


def set_table(found: Ablated, sets: list[SetDamage]) -> Table:
    """Heads removed together, beside the sum of one at a time."""
    measure = found.measure
    table = plain_table(f"Heads removed together ({measure.title}, {measure.unit})")
    table.add_column("Set", no_wrap=True)
    for name in ("Heads", "Together", "One at\na time", "Ratio", "Difference"):
        table.add_column(name, justify="right", no_wrap=True)
    known = sets[0].excess[measure.name].low is not None
    for name in ("95 % interval", "Verdict") if known else ():
        table.add_column(name, no_wrap=True)
    for each in sets:
        excess, ratio = each.excess[measure.name], ratio_of(each, measure)
        cells = [
            f"L{each.layer}" if each.layer is not None else "selected",
            str(len(each.heads)),
            amount(each.damage[measure.name].value),
            amount(each.singles[measure.name].value),
            "–" if ratio is None else f"{ratio:.2f}",
            amount(excess.value),
            *([span(excess), verdict_of(each, measure) or "–"] if known else []),
        ]
        add_row(table, cells)
    return table


def curve_table(found: Ablated) -> Table:
    """More and more heads removed."""
    assert found.curve is not None
    measure = found.measure
    table = plain_table(f"More and more heads removed ({measure.title}, {measure.unit})")
    table.add_column("Heads", justify="right", no_wrap=True)
    table.add_column("Least\nimportant", justify="right", no_wrap=True)
    known = found.curve.points[0].least.damage[measure.name].low is not None
    if known:
        table.add_column("95 % interval", no_wrap=True)
    table.add_column("Sum of\none at a time", justify="right", no_wrap=True)
    table.add_column("Random\norder", justify="right", no_wrap=True)
    for point in found.curve.points:
        damage = point.least.damage[measure.name]
        numbers = [point.least.singles[measure.name].value, point.random.damage[measure.name].value]
        cells = [str(point.removed), amount(damage.value), *([span(damage)] if known else []), *map(amount, numbers)]
        add_row(table, cells)
    return table


def _verified(found: Ablated) -> Text:
    checked, model = found.checked, found.checkpoint
    dtype = str(model.dtype).removeprefix("torch.")
    rows = f"{checked.rows} input{'s' * (checked.rows != 1)}"
    return Text.assemble(
        ("Verified", "bold green"),
        f" {checked.heads.heads_compared} heads in {model.n_layers} layers of {visible(model.name)} on {rows} "
        f"({dtype}, {model.device}): weights within {error(checked.heads.pattern_error)} of the model's own (tolerance "
        f"{checked.heads.tolerance.pattern:.0e}), outputs within {error(checked.heads.output_error)} of the largest, "
        f"what is replaced of each head within {error(checked.values_error)}; resumed passes reproduce the model's "
        f"final hidden states to {error(checked.resumed_error)} (tolerance {checked.tolerance:.0e}).",
    )


def _notes(found: Ablated) -> Text:
    lines = []
    if found.options.gradient:
        lines.append(
            "Gradient: mean over texts of |Att·dL/dAtt| (Michel et al. 2019), beside it divided by the l2 norm over "
            f"its layer{_projected(found)}. Spearman's rank correlation with it: {_correlations(found)}."
        )
    if found.curve is not None:
        lines.append(
            "The order of the curve was found on the texts that it is measured on, so the sum of the least important "
            "heads is smaller than it would be on others."
        )
    if found.heads[0].damage[found.measure.name].low is not None:
        lines.append("Intervals: bootstrap over texts, 95 % each; they speak of texts like these, not of all.")
    return Text("\n".join(lines), style="dim")


def _projected(found: Ablated) -> str:
    return "; without a loss L is a random projection of the final states" if found.kind == STATES else ""


def _correlations(found: Ablated) -> str:
    parts = [
        f"{measure.title} {'–' if (value := found.rank_correlations[measure.name]) is None else f'{value:.2f}'}"
        for measure in found.measures
    ]
    return ", ".join(parts)


def _heading(title: str) -> str:
    return title[0].upper() + title[1:]


def _sentence(words: str) -> str:
    return f"{_heading(words)}."
