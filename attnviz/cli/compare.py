"""The command ``attnviz compare``: parse, call, hand over."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.cli import options
from attnviz.cli.runner import Show, errors_to_exit_codes
from attnviz.cli.terminal import decoded, read_text
from attnviz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from attnviz.commands.compare.measure import Comparison
    from attnviz.model.sources import Source
    from attnviz.progress import Progress

__all__ = ["compare"]

_FORMS = "attnviz compare TEXT --model M1 --model M2, or attnviz compare TEXT1 TEXT2 --model M"


def compare(
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
        str | None,
        typer.Option(help="Any of overview, map, differences (with commas between); all; none.", show_default=False),
    ] = None,
    no_figures: options.NoFigures = False,
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
    with errors_to_exit_codes() as run:
        names = models or ["minilm"]
        _check_form(texts, names)
        sentences = [read_text(text) for text in texts]
        second = None if pair is None else decoded("--pair", pair)
        sources = _sources(names, revisions or [])

        def measure(tell: "Progress", warn: "Callable[[str], None]") -> "Comparison":
            from attnviz.commands.compare.measure import compare as compare_sides
            from attnviz.commands.heads.measure import Analysis, analyze

            sides: list[Analysis] = []
            for side, (sentence, source) in zip("AB", _sides(sentences, sources), strict=True):
                loaded = sides[0].checkpoint if sides and len(sources) == 1 else None
                analysis = analyze(
                    sentence,
                    loaded or source,
                    pair=second,
                    device=None if loaded else device,
                    dtype=None if loaded else dtype,
                    words=words,
                    local_window=local_window,
                    long_range_from=long_range_from,
                    syntax=syntax,
                    parser=parser,
                    truncate=truncate,
                    profile=False,
                    progress=partial(_tell_side, tell, side),
                    warn=warn,
                )
                sides.append(analysis)
            return compare_sides(*sides)

        show = Show(
            figures=figures,
            no_figures=no_figures,
            formats=formats,
            theme=theme,
            scale=scale,
            width=width,
            select=select,
            top=top,
        )
        run.execute("compare", measure, show, models=names, out=out, as_json=as_json, quiet=quiet)


def _check_form(texts: list[str], models: list[str]) -> None:
    """Refuse what is neither of the two forms."""
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


def _tell_side(tell: "Progress", side: str, what: str, done: int, total: int) -> None:
    """Progress of each side under a name of its own."""
    tell(f"{what} {side}", done, total)
