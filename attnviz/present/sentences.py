"""Sentences that several commands share: how heads were verified, a text cut, what a decoder read; too few texts."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.intervals import ERROR_RATE, texts_needed
from attnviz.wording import counted, error, quoted, visible

if TYPE_CHECKING:
    from attnviz.inputs.prompt import Prompt
    from attnviz.measures.estimates import Interval
    from attnviz.models.checkpoint import Checkpoint
    from attnviz.run.checks import Verification
    from attnviz.run.passes import SampleVerification


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


def cut_note(tokens: "Prompt", name: str = "text") -> str:
    """Note on what was cut from a text, or ''."""
    cut = tokens.truncated
    return f"The {name} was cut: without its last {counted(cut, 'token')} (--truncate)." if cut else ""


def first_look(n: int, unit: str) -> str:
    """That there are too few texts or pairs for intervals."""
    return f"{counted(n, unit)}: a first look, without intervals (from {ENOUGH_TEXTS} on)."


def without_zero(kind: str) -> str:
    """What is said of effects that are told from 0."""
    return f"with an interval without 0, at {ERROR_RATE} over all {kind}s together"


def too_few(effects: Iterable[tuple[float, "Interval | None"]], kind: str, unit: str, n: int) -> str:
    """That no effect of ``n`` texts or pairs is told from 0, and about how many of them it would take."""
    needed = texts_needed(effects, n)
    about = "" if needed is None else f"; it would take about {counted(needed, unit)} like these"
    return f"Too few {unit}s to name a {kind}: none {without_zero(kind)}{about}."


def target_note(text: str, generated: bool) -> str:
    """Note on the target of an encoder-decoder."""
    whose = "generated by the model, greedily" if generated else "given"
    return (
        f"Target ({whose}): {quoted(text)}. D and X attend from what the decoder reads, a start token and the target "
        "without its last token: the row of each token predicts the next one."
    )
