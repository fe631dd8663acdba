"""Tables of what heads write, for the terminal: what was verified, the heads by share, the tokens they promote."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnviz.commands.outputs.contributions import HeadContribution
from attnviz.commands.outputs.figures import percent, signed
from attnviz.commands.outputs.measure import WrittenOutputs
from attnviz.commands.outputs.promoted_tokens import Attribution, HeadPromotion, PartEffect, TokenLogit
from attnviz.model.tokens import visible
from attnviz.results.tables import add_row, error, number, plain_table

__all__ = ["outputs_report", "promotion_table", "share_table"]

_PROMOTED, _SUPPRESSED = 5, 3
_OTHERS = 24
"""What the columns of heads and effects take in the table of promoted tokens."""

_LONGEST = 14


def outputs_report(found: WrittenOutputs, heads: Sequence[HeadContribution], *, top: int, width: int) -> RenderableType:
    """Everything that ``attnviz outputs`` prints: what was verified, the heads, promoted tokens, how to read them.

    Args:
        found: what the heads of the text write.
        heads: those to list, the largest share first.
        top: how many to list at most; 0 for all.
        width: columns of the terminal.
    """
    parts: list[RenderableType] = [_verified(found), share_table(heads, top=top)]
    if found.attribution is not None:
        chosen = {head.id for head in heads}
        promotions = [head for head in found.attribution.heads if head.id in chosen]
        parts.append(promotion_table(found.attribution, promotions, top=top, width=width))
        parts.append(_rest(found, found.attribution))
    return Group(*(part for each in parts for part in (each, Text())), _notes(found))


def share_table(heads: Sequence[HeadContribution], *, top: int) -> Table:
    """The heads by share of their layer's attention output, with their attention on sinks by weight and by norm."""
    shown = heads[: top or None]
    table = plain_table(f"Heads ({_count(len(shown), len(heads))}, the largest share of their layer’s output first)")
    table.add_column("Head", no_wrap=True)
    for name in (
        "Share\n(of ‖o‖)",
        "Share\n(of Σ‖o_h‖)",
        "‖o_h‖",
        "Sink\n(weight)",
        "Sink\n(norm)",
        "‖f(x)‖",
        "‖f(x)‖\nof sinks",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for head in shown:
        shares = [percent(head.projection_share), percent(head.norm_share), number(head.norm)]
        sinks = [number(head.sink), number(head.sink_by_norm)]
        add_row(table, [str(head.id), *shares, *sinks, number(head.value_norm), number(head.value_norm_of_sinks)])
    table.caption = _left_out(len(heads) - len(shown))
    return table


def promotion_table(found: Attribution, heads: Sequence[HeadPromotion], *, top: int, width: int) -> Table:
    """What heads add to the logits directly: to the predicted and the next token, and the tokens they move most."""
    shown = sorted(heads, key=lambda head: (-abs(head.predicted), head.id))[: top or None]
    table = plain_table(f"Tokens promoted ({_count(len(shown), len(heads))} heads, the largest direct effect first)")
    table.add_column("Head", no_wrap=True)
    table.add_column("Predicted", justify="right", no_wrap=True)
    if found.actual is not None:
        table.add_column("Next", justify="right", no_wrap=True)
    room = width - _OTHERS
    promoted = room * _PROMOTED // (_PROMOTED + _SUPPRESSED)
    table.add_column("Promotes (logits)", no_wrap=True, overflow="ellipsis", max_width=promoted)
    table.add_column("Suppresses", no_wrap=True, overflow="ellipsis", max_width=room - promoted)
    for head in shown:
        effects = [signed(head.predicted), *([signed(head.actual or 0.0)] if found.actual is not None else [])]
        tokens = [_tokens(head.promoted, promoted), _tokens(head.suppressed, room - promoted)]
        add_row(table, [str(head.id), *effects, *tokens])
    table.caption = _left_out(len(heads) - len(shown))
    return table


def _verified(found: WrittenOutputs) -> Text:
    checked, model = found.attention.verification, found.checkpoint
    dtype = str(model.dtype).removeprefix("torch.")
    worst = max(layer.sum_error for layer in found.layers)
    line = Text.assemble(
        ("Verified", "bold green"),
        f" {checked.heads_compared} heads in {model.n_layers} layers of {visible(model.name)} ({dtype}, "
        f"{model.device}): weights within {error(checked.pattern_error)} of the model's own (tolerance "
        f"{checked.tolerance.pattern:.0e}); in every layer the heads' outputs and b_O sum to the model's attention "
        f"output within {error(worst)} of its largest (tolerance {checked.tolerance.output:.0e}).",
    )
    if found.attribution is not None:
        logits = found.attribution
        line.append(
            f" All parts sum to the model's logits at #{logits.position} within {error(logits.error)} of the largest "
            f"(tolerance {logits.tolerance:.0e})."
        )
    return line


def _rest(found: WrittenOutputs, of: Attribution) -> Text:
    """The predicted and the next token, and what makes their logits besides heads, so that the reader can add up."""
    heads = sum(head.predicted for head in of.heads)
    actual = "" if of.actual is None else f"; next in the text: ‘{of.actual.text}’ {signed(of.actual.logit)}"
    which = "this" if of.actual is None else "the former"
    sums = ", ".join(f"{name} {signed(value)}" for name, value in _by_kind(of.parts).items())
    return Text(
        f"At #{of.position} (‘{found.tokens.labels[of.position]}’) the model predicts ‘{of.predicted.text}’ "
        f"{signed(of.predicted.logit)}{actual}. Of {which}, heads add {signed(heads)}, {sums}."
    )


def _by_kind(parts: Sequence[PartEffect]) -> dict[str, float]:
    kinds = {"attention bias": "b_O of all layers", "feed-forward": "feed-forward networks"}
    sums: dict[str, float] = {}
    for part in parts:
        name = kinds.get(part.name, part.name)
        sums[name] = sums.get(name, 0.0) + part.predicted
    return sums


def _notes(found: WrittenOutputs) -> Text:
    over = f"all queries but {found.sinks}" if found.sinks else "all queries"
    lines = [
        f"Over {over}. Share of ‖o‖: the length of a head’s output along o, the sum of all heads and b_O, over ‖o‖; "
        "below 0 it works against the others. Share of Σ‖o_h‖: of the norms of the layer’s heads.",
        "Sink: attention on "
        f"{found.sinks or 'sinks (this text has none)'}, by weight A and by norm ‖A f(x)‖ (Kobayashi et al. 2020); "
        "f(x) = (x W_V + b_V) W_O is what a head writes of a token.",
    ]
    if found.attribution is not None:
        lines.append(
            "Promoted tokens: direct effect alone, through the final layer norm with the standard deviation of the "
            "last residual stream held fixed; mean over the vocabulary removed. ## continues a word."
        )
    if found.no_attribution:
        lines.append(found.no_attribution)
    if found.tokens.truncated:
        lines.append(f"The text was cut: its last {found.tokens.truncated} tokens were left out (--truncate).")
    return Text("\n".join(lines), style="dim")


def _tokens(tokens: Sequence[TokenLogit], room: int) -> str:
    """As many tokens with their logits as there is room for, at least one; a dash for none."""
    texts = [f"{_short(token.text)} {signed(token.logit)}" for token in tokens[:_PROMOTED]]
    lines = ["  ".join(texts[:count]) for count in range(len(texts), 0, -1)]
    return next((line for line in lines if len(line) <= room), lines[-1] if lines else "–")


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"


def _count(shown: int, of: int) -> str:
    return str(of) if shown == of else f"{shown} of {of}"


def _left_out(count: int) -> str | None:
    more = "1 more head is" if count == 1 else f"{count} more heads are"
    return f"{more} left out: --top 0 lists all; outputs.csv has them." if count else None
