"""The command ``attnviz compare``: parse, call, hand over."""

from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.cli import options
from attnviz.cli.runner import (
    check_out,
    decoded,
    errors_to_exit_codes,
    print_results,
    progress,
    read_text,
    results_folder,
    say_what_was_written,
    split_names,
)
from attnviz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from attnviz.model.sources import Source

__all__ = ["compare"]

_FORMS = "attnviz compare TEXT --model M1 --model M2, or attnviz compare TEXT1 TEXT2 --model M"
_FIGURE_NAMES = {"all", "none", "overview", "heads", "lines", "map", "mean", "pair", "compare", "differences"}
"""What people who know ``attnviz heads --figures`` may write after this command's own."""


def compare(
    context: typer.Context,
    texts: Annotated[
        list[str],
        typer.Argument(metavar="TEXT", help="One text for two models, or two for one; - reads standard input."),
    ],
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="Built-in name (minilm, tiny-gpt2), checkpoint folder, or hub id; twice for two models. "
            "Default minilm.",
            show_default=False,
        ),
    ] = None,
    revisions: Annotated[
        list[str] | None,
        typer.Option(
            "--revision",
            help="Branch, tag or commit of a hub model; for two models twice, - for none.",
            show_default=False,
        ),
    ] = None,
    pair: Annotated[
        str | None, typer.Option(help="A second segment on both sides (BERT: token types 0 and 1).", show_default=False)
    ] = None,
    select: options.Select = None,
    words: options.Words = False,
    local_window: options.LocalWindow = 1,
    long_range_from: options.LongRangeFrom = 4,
    figures: Annotated[
        bool, typer.Option("--figures/--no-figures", help="Draw all figures of a comparison, or none; takes no names.")
    ] = True,
    formats: options.Formats = None,
    scale: Annotated[str, typer.Option(help="Of a head's picture: shared by all heads, or per-head.")] = "shared",
    theme: options.Theme = "light",
    width: options.Width = None,
    syntax: Annotated[
        bool, typer.Option("--syntax/--no-syntax", help="Parse the texts, where spaCy and a pipeline are installed.")
    ] = True,
    parser: options.Parser = None,
    truncate: options.Truncate = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for the results; default attnviz-out/compare-MODEL. Pictures of an earlier run stay there "
            "where it was of the same comparison; its other files are replaced or removed.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Heads in the table and with a picture each, most different first; 0 for all. "
            "Default 12, with --select all selected.",
            show_default=False,
        ),
    ] = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare every head of two models on one text, or of one model on two texts.

    Both sides are verified. Writes compare.png, compare-map.png, differences/L00H00.png …, captions.md, compare.json
    and compare.csv, and prints the heads ranked by Jensen-Shannon distance.
    Exit codes: 0 done, 1 an error to mend, 2 wrong usage, 3 the heads do not reproduce the model,
    130 interrupted.
    """
    with errors_to_exit_codes() as outcome:
        names = models or ["minilm"]
        chosen = context.get_parameter_source("figures")
        _check_form(texts, names, figures_chosen=chosen is not None and chosen.name == "COMMANDLINE")
        sentences = [read_text(text) for text in texts]
        pair = None if pair is None else decoded("--pair", pair)
        check_out(out)
        from attnviz.figures.look import Look, parse_width

        look = Look(theme, scale, None if width is None else parse_width(width))
        wanted = (split_names(formats) or ["png"]) if figures else []
        sources = _sources(names, revisions or [])
        from attnviz.commands.compare.document import COMPARE
        from attnviz.results.output_folder import OutputFolder

        folder = results_folder(out, names, "compare")
        with OutputFolder(folder, COMPARE) as output, progress(quiet) as tell:
            outcome.folder = output
            tell("loading", 0, 0)
            from attnviz.commands.compare.saving import TOP
            from attnviz.commands.compare.saving import compare as compare_sides
            from attnviz.commands.heads.analysis import Analysis, analyze
            from attnviz.results.saving import check_formats

            check_formats(wanted)
            sides: list[Analysis] = []
            for side, (sentence, source) in zip("AB", _sides(sentences, sources), strict=True):
                loaded = sides[0].checkpoint if sides and len(sources) == 1 else None
                analysed = analyze(
                    sentence,
                    loaded or source,
                    pair=pair,
                    device=None if loaded else device,
                    dtype=None if loaded else dtype,
                    words=words,
                    local_window=local_window,
                    long_range_from=long_range_from,
                    syntax=syntax,
                    parser=parser,
                    truncate=truncate,
                    profile=False,
                    progress=_telling(tell, side),
                )
                sides.append(analysed)
            found = compare_sides(*sides)
            document = found.write(
                output,
                select=select or (),
                top=top,
                formats=wanted,
                look=look,
                tell=lambda done, total: tell("drawing", done, total),
            )
        from attnviz.commands.compare.tables import compare_report

        rows = (0 if select else TOP) if top is None else top
        listed = found.select(select or ())
        print_results(
            folder, document, lambda width: compare_report(found, listed, top=rows, width=width), as_json, quiet
        )
        say_what_was_written(output, quiet)


def _check_form(texts: list[str], models: list[str], figures_chosen: bool) -> None:
    """Refuse what is neither of the two forms; a name after --figures, which would count as a text, is told apart."""
    names = [text for text in texts if set(text.split(",")) <= _FIGURE_NAMES]
    if figures_chosen and names:
        raise UsageError(
            f"--figures takes no name, found {names[0]!r}: compare draws all its figures; --no-figures draws none."
        )
    if sorted((len(texts), len(models))) != [1, 2]:
        found = f"{len(texts)} text{'s' * (len(texts) != 1)} and {len(models)} model{'s' * (len(models) != 1)}"
        raise UsageError(f"expected one text and two models, or two texts and one model: {_FORMS}; found {found}.")
    if texts.count("-") > 1:
        raise UsageError("both texts are -, but standard input can be read only once; give one of them as TEXT.")


def _sources(names: list[str], revisions: list[str]) -> "list[Source]":
    """Where the models lie, each with its revision.

    Raises:
        UsageError: revisions are given, but not one for each model.
    """
    from attnviz.model.sources import find_checkpoint

    if revisions and len(revisions) != len(names):
        raise UsageError(
            f"expected a --revision for each of {len(names)} models (- for one that has none), found {len(revisions)}."
        )
    wanted = [None if revision == "-" else revision for revision in revisions] or [None] * len(names)
    return [find_checkpoint(name, revision) for name, revision in zip(names, wanted, strict=True)]


def _sides(sentences: list[str], sources: "list[Source]") -> "list[tuple[str, Source]]":
    if len(sentences) == 1:
        return [(sentences[0], source) for source in sources]
    return [(sentence, sources[0]) for sentence in sentences]


def _telling(tell: "Callable[[str, int, int], None]", side: str) -> "Callable[[str, int, int], None]":
    """Progress of each side under a name of its own."""
    return lambda what, done, total: tell(f"{what} {side}", done, total)
