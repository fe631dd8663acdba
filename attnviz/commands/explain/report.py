"""The terminal side of ``attnviz explain``: the walk through a layer, the check, content and position."""

import textwrap

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnviz.commands.explain.measure import Explained
from attnviz.commands.explain.position_share import GROUPS, ScoreShares
from attnviz.commands.explain.numbers import shown_numbers
from attnviz.commands.explain.steps import not_compared, numbered_shape, order_of, stage_words
from attnviz.commands.explain.stages import Stage
from attnviz.model.tokens import visible
from attnviz.model.wording import counted, quoted
from attnviz.results.tables import add_row, error, number, plain_table

__all__ = ["explain_report", "layers_table", "positions_table", "walk_through"]

_INDENT = "    "
_GROUP_TITLES = {
    "content": "Content",
    "position": "Position",
    "both": "Both",
    "segment": "Segment",
    "constant": "Common",
}


def explain_report(explained: Explained, *, width: int) -> RenderableType:
    """Everything that ``attnviz explain`` prints.

    Args:
        explained: the layer.
        width: columns of the terminal.
    """
    parts: list[RenderableType] = [_heading(explained), Text(), walk_through(explained, width=width), Text()]
    if explained.layers is not None:
        parts += [layers_table(explained), Text()]
    if explained.positions is not None:
        parts += [positions_table(explained), Text(), _how_to_read(explained), Text()]
    else:
        parts += [
            Text("Content and position: for the first layer only (--layer 0), which the embeddings enter.", "dim"),
            Text(),
        ]
    return Group(*parts, _verified(explained))


def walk_through(explained: Explained, *, width: int) -> Text:
    """Every step: name and shape, formula, sentence, real numbers, check."""
    text = Text()
    for count, stage in enumerate(explained.stages.stages, start=1):
        words = stage_words(explained, stage.name)
        text.append(f"{count:2d}  ")
        text.append(words.title, style="bold")
        text.append(f"  {numbered_shape(stage.name, stage.shape)}\n", style="cyan")
        lines = [(words.formula, ""), (words.sentence, ""), (shown_numbers(explained, stage.name), "")]
        for content, style in (*lines, _check(stage)):
            text.append("".join(f"{line}\n" for line in _wrapped(content, width)), style=style)
    text.rstrip()
    return text


def layers_table(explained: Explained) -> Table:
    """How closely every layer was reproduced."""
    table = plain_table("Every layer, each from what the model's layer before it gave")
    for name in ("Layer", "Steps\ncompared"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Least close step", no_wrap=True)
    for name in ("its error\n(of largest)", "Output error\n(of largest)"):
        table.add_column(name, justify="right", no_wrap=True)
    for end in explained.layers or ():
        worst = end.worst.replace("_", " ")
        cells = [str(end.layer), str(end.compared), worst, error(end.worst_error), error(end.output_error)]
        add_row(table, cells)
    return table


def positions_table(explained: Explained) -> Table:
    """Content and position in the scores of the first layer, a row a head."""
    shares = explained.positions
    assert shares is not None
    table = plain_table("Scores of layer 0: shares of their variance")
    table.add_column("Head", no_wrap=True)
    shown = [name for name in GROUPS if name != "segment" or shares.segments]
    for name in shown:
        table.add_column(_GROUP_TITLES[name], justify="right", no_wrap=True)
    table.add_column("Spread\n(scores)", justify="right", no_wrap=True)
    for head, share in enumerate(shares.heads):
        add_row(table, [f"L0H{head}", *_cells(share, shown)])
    table.add_section()
    add_row(table, ["all heads", *_cells(shares.layer, shown)])
    return table


def _cells(share: ScoreShares, shown: list[str]) -> list[str]:
    groups = share.groups
    return [*(_signed(groups[name]) for name in shown), f"{share.spread:.2f}"]


def _signed(share: float | None) -> str:
    """Two decimals, with a true minus sign, and no minus before a zero."""
    return number(None if share is None else round(share, 2) + 0.0).replace("-", "−")


def _how_to_read(explained: Explained) -> Text:
    shares = explained.positions
    assert shares is not None
    segment = " Segment: through the token types." if shares.segments else ""
    return Text(
        "Content: which words query and key are; position: where they stand; both: a word with a place, or a place "
        f"with a word.{segment} Common: what all tokens share, of which the layer norm leaves some more than others. "
        "Only differences between the keys of a query count: the softmax ignores what they share. A part that "
        "works against the others has a negative share. Spread: how far scores lie from their query's mean. The "
        f"parts add up to the verified scores within {error(shares.error)} of the largest "
        f"(tolerance {shares.tolerance:.0e}).",
        style="dim",
    )


def _heading(explained: Explained) -> Text:
    model, tokens = explained.checkpoint, explained.tokens
    texts = " / ".join(quoted(text) for text in (explained.text, explained.pair) if text is not None)
    where = f"Layer {explained.layer} of {model.n_layers} in {visible(model.name)}, step by step, on {texts}"
    token = visible(tokens.labels[explained.token])
    sizes = (
        f"{counted(len(tokens), 'token')}, d_model {model.d_model}, {counted(model.n_heads, 'head')} of d_head "
        f"{model.d_head}, d_ff {explained.d_ff}. Followed: token #{explained.token} ‘{token}’, head {explained.head}."
    )
    lines = [sizes, order_of(explained)]
    if tokens.truncated:
        lines.append(f"The text was cut: its last {_were(tokens.truncated)} left out (--truncate).")
    return Text.assemble((where, "bold"), "\n" + "\n".join(lines))


def _were(number: int) -> str:
    return f"{counted(number, 'token')} {'was' if number == 1 else 'were'}"


def _check(stage: Stage) -> tuple[str, str]:
    check = stage.check
    if check is None:
        return f"– not compared: {not_compared(stage.name)}", "dim"
    of = "" if stage.name == "pattern" else f" of the largest, {check.scale:.3g}"
    how = f"within {error(check.error)}{of} (tolerance {check.tolerance:.0e})" if check.error else "bit for bit"
    return f"✓ the model's own, {how}", "green"


def _verified(explained: Explained) -> Text:
    stages, model = explained.stages, explained.checkpoint
    output = stages["output"].check
    assert output is not None
    dtype = str(model.dtype).removeprefix("torch.")
    start = "the embedding tables" if explained.layer == 0 else f"the output of layer {explained.layer - 1}"
    return Text.assemble(
        ("Verified", "bold green"),
        f" {len(stages.compared)} of {len(stages.stages)} steps against the running model ({dtype}, {model.device}), "
        f"each recomputed from the step before it, beginning with {start}; the output is the model's next hidden state "
        f"within {error(output.error)} of the largest (tolerance {output.tolerance:.0e}).",
    )


def _wrapped(content: str, width: int) -> list[str]:
    """Lines with an indent; text wraps at spaces, and longer words are left to the terminal."""
    return textwrap.wrap(
        content,
        width - 1,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
