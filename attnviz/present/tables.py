"""Tables and sentences on the terminal."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from attnviz.arguments import as_found, is_whole
from attnviz.errors import UsageError
from attnviz.present.fields import Row, Table
from attnviz.present.table_layout import GLUE
from attnviz.printable import printable
from attnviz.wording import counted, error, quoted, visible

if TYPE_CHECKING:
    from attnviz.inputs.prompt import Prompt
    from attnviz.models.checkpoint import Checkpoint
    from attnviz.run.checks import Verification
    from attnviz.run.passes import SampleVerification


_NARROWEST = 20  # columns of a terminal


def page_table(table: Table[Row], note: str, head: int) -> dict[str, Any]:
    """``Table`` of the page, with the cells of the terminal, numbers as numbers; ``head``: the column of heads."""

    def page_cell(value: object) -> object:
        if value is None or isinstance(value, int):
            return value
        return round(value, 5) if isinstance(value, float) else visible(str(value))

    columns = [field.heading.lower() for field in table.columns]
    cells = [[page_cell(field.shown_for(row)) for field in table.columns] for row in table.rows]
    return {"title": table.title, "note": note, "columns": columns, "rows": cells, "head": head}


def verification_line(verification: "Verification", model: "Checkpoint", more: str = "", sample: str = "") -> Text:
    """How many heads were verified, and the largest differences from the model; of outputs as shares of the largest.

    ``more``: what else was compared, beginning with a comma; ``sample``: on which texts, beginning with a space.
    """
    if not verification.level:
        return checked_line(verification, model)
    how = "" if verification.attention == "eager" else ", seen on random values"
    errors = (
        f"weights within {error(verification.pattern_error)} ({verification.attention}{how}), outputs within "
        f"{error(verification.output_error)}"
    )
    if not verification.pattern_error and not verification.output_error:
        errors = f"weights and outputs bit for bit ({verification.attention})"
    return Text.assemble(
        ("Verified", "bold green"),
        f" {counted(verification.heads_compared, 'head')} of {visible(model.name)} ({model.runs_as}){sample}, level "
        f"{verification.level} of 4: {errors}{more}.{_how_checked(verification, model)}",
    )


def first_lines(headline: str, lines: Sequence[str], *verified: Text) -> Text:
    """What was found or measured, what it is of, and how the models were verified, once where that is the same."""
    different = [text for number, text in enumerate(verified) if text not in verified[:number]]
    return Text("\n").join([Text(headline, "bold"), *map(Text, lines), *different])


def resumed_line(sample: "SampleVerification", model: "Checkpoint", noun: str | None) -> Text:
    """:func:`verification_line` of passes that are resumed; with a ``noun`` of the sample with all errors."""
    more = ""
    if noun:
        more = (
            f", replaced values by at most {error(sample.values_error)}, final states of resumed passes by at most "
            f"{error(sample.resumed_error)}, on {counted(sample.n_inputs, noun)}"
        )
    return verification_line(sample.attention, model, more)


def checked_line(verification: "Verification", model: "Checkpoint") -> Text:
    """:func:`verification_line` in short: the larger of both differences."""
    if not verification.level:
        return Text.assemble(("Not verified", "bold yellow"), ": these weights were given; nothing was recomputed.")
    worst = max(verification.pattern_error, verification.output_error)
    how = f"to {worst:.0e}" if worst else "bit for bit"
    return Text.assemble(
        ("Checked", "bold green"),
        f": all {verification.heads_compared} heads equal the model's own ({how}).{_how_checked(verification, model)}",
    )


def _how_checked(verification: "Verification", model: "Checkpoint") -> str:
    compiled = " The model is compiled; its uncompiled modules were verified." if model.compiled else ""
    seen, tolerance = verification.scale_seen, verification.tolerance
    if seen is None or tolerance.row is None:
        return compiled
    scale = f"a wrong scale of all scores of a layer from {100 * seen:.1f} % on" if seen < 1 else "no wrong scale"
    weight = f"a wrong single weight from {tolerance.row:.0%} of the largest in its row"
    if verification.attention != "eager":
        weight = f"a single weight that is wrong from {tolerance.probe:g}"
    which, finer = f"In {str(model.dtype).removeprefix('torch.')}", "--dtype float32"
    if model.quantised:
        which, finer = "With these weights", "a dequantised checkpoint"
    return (
        f" {which} the comparison is coarse. It finds {scale}, and {weight} on; {finer} finds smaller errors, and a "
        f"scale that is wrong in one head only.{compiled}"
    )


def notes(*lines: str) -> Text:
    """Notes below tables; empty ones are left out."""
    return Text("\n".join(line for line in lines if line), style="dim")


def cut_note(tokens: "Prompt", name: str = "text") -> str:
    """Note on what was cut from a text, or ''."""
    cut = tokens.truncated
    return f"The {name} was cut: without its last {counted(cut, 'token')} (--truncate)." if cut else ""


def target_note(text: str, generated: bool) -> str:
    """Note on the target of an encoder-decoder."""
    whose = "generated by the model, greedily" if generated else "given"
    return (
        f"Target ({whose}): {quoted(text)}. D and X attend from what the decoder reads, a start token and the target "
        "without its last token: the row of each token predicts the next one."
    )


def spaced(parts: Iterable[RenderableType]) -> Group:
    """Tables and texts, separated by empty lines; in a string rich would read markup."""
    texts = [Text(part) if isinstance(part, str) else part for part in parts]
    filled = [part for part in texts if part or not isinstance(part, Text)]
    return Group(*[line for part in filled for line in (Text(), part)][1:])


@dataclass(frozen=True)
class Printable:
    """Tables and texts whose characters a terminal may get."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.content, options):
            text = printable(segment.text.replace(GLUE, " "))
            yield segment if segment.control else segment._replace(text=text)


def plain_text(tables: RenderableType, width: int) -> str:
    """Tables for a width, in columns, as text without colours; UsageError for a width that is too small."""
    if not is_whole(width) or width < _NARROWEST:
        raise UsageError(f"expected a width of {_NARROWEST} columns or more, found {as_found(width)}.")
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, highlight=False, force_jupyter=False).print(Printable(tables))
    return text.getvalue()
