"""The command ``attnviz heads``: parse, call, hand over."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnviz.cli import options
from attnviz.errors import UsageError
from attnviz.terminal import (
    decoded,
    default_folder,
    errors_to_exit_codes,
    print_tables,
    printable,
    printing,
    progress,
    read_text,
    removed_files,
    split_names,
)

if TYPE_CHECKING:
    from attnviz.analysis import Analysis

__all__ = ["heads"]


def heads(
    text: options.Text,
    model: options.Model = "minilm",
    revision: options.Revision = None,
    pair: options.Pair = None,
    select: options.Select = None,
    words: options.Words = False,
    local_window: options.LocalWindow = 1,
    long_range_from: options.LongRangeFrom = 4,
    figures: Annotated[
        str,
        typer.Option(
            help="Any of overview, heads, lines, map, mean, pair (with commas between); all that the text allows; none."
        ),
    ] = "overview,heads",
    formats: options.Formats = None,
    scale: Annotated[
        str,
        typer.Option(help="Of colours: shared (0 to 1, by all heads), per-head (up to its largest weight), or log."),
    ] = "shared",
    theme: options.Theme = "light",
    width: options.Width = None,
    drop_special: Annotated[
        bool,
        typer.Option(
            "--drop-special", help="Draw patterns without special tokens (GPT-2: the first token), renormalised."
        ),
    ] = False,
    from_token: Annotated[
        str | None,
        typer.Option(
            "--from", help="The token whose attention the figures lines show; adds lines.", show_default=False
        ),
    ] = None,
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help="Statistic that the figure map shows: entropy, distance, sink, local, ... Repeatable; adds map; "
            "default entropy.",
            show_default=False,
        ),
    ] = None,
    save_attention: Annotated[
        bool, typer.Option("--save-attention", help="Also write attention.safetensors, a tensor a layer.")
    ] = False,
    syntax: Annotated[
        bool, typer.Option("--syntax/--no-syntax", help="Parse the text, where spaCy and a pipeline are installed.")
    ] = True,
    parser: options.Parser = None,
    profile: Annotated[
        bool, typer.Option("--profile/--no-profile", help="Show what a stored profile says of the model.")
    ] = True,
    truncate: options.Truncate = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for the results; default attnviz-out/MODEL. Pictures of an earlier run stay there where it "
            "was of the same model, text and options; its other files are replaced or removed.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Heads in the table, clearest first; 0 for all.")] = 12,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Verify, measure and draw every attention head on one text.

    Writes overview.png, heads/L00H00.png …, captions.md, heads.json and heads.csv, and prints tables.
    Exit codes: 0 done, 1 an error to mend, 2 wrong usage, 3 the heads do not reproduce the model,
    130 interrupted.
    """
    with errors_to_exit_codes() as outcome:
        sentence = read_text(text)
        pair = None if pair is None else decoded("--pair", pair)
        if out is not None and not out.strip():
            raise UsageError("-o is empty; expected a folder (. for this one).")
        from attnviz.sources import find_checkpoint

        source = find_checkpoint(model, revision)
        statistics = split_names(maps)
        wanted_figures = _figure_sets(figures, pair is not None, from_token is not None, bool(statistics))
        wanted_formats = split_names(formats) or ["png"]
        started = None if from_token is None else decoded("--from", from_token)
        from attnviz.export import HEADS
        from attnviz.output_folder import OutputFolder

        folder = Path(out) if out is not None else default_folder(model)
        with OutputFolder(folder, HEADS) as output, progress(quiet) as tell:
            outcome.folder = output
            tell("loading", 0, 0)
            from attnviz.analysis import analyze, check_figures
            from attnviz.figures.figure_sets import Drawing
            from attnviz.figures.look import Look, parse_width

            check_figures(wanted_figures, wanted_formats, statistics, paired=pair is not None)
            look = Look(theme, scale, None if width is None else parse_width(width))
            shown = tuple(statistics) or ("entropy",)
            drawing = Drawing(tuple(wanted_figures), tuple(wanted_formats), look, drop_special, started, shown)
            analysis = analyze(
                sentence,
                source,
                pair=pair,
                device=device,
                dtype=dtype,
                words=words,
                local_window=local_window,
                long_range_from=long_range_from,
                syntax=syntax,
                parser=parser,
                truncate=truncate,
                profile=profile,
                progress=tell,
                warn=lambda message: None if quiet else typer.echo(f"attnviz: {printable(message)}", err=True),
            )
            content = analysis.write(
                output,
                drawing,
                select=select or (),
                save_attention=save_attention,
                progress=tell,
            )
            document = output.commit(content)
        with printing(folder):
            _print_results(analysis, document, select or [], top, as_json, quiet)
        if "lines" in wanted_figures and not quiet:
            from attnviz.figures.line_views import heads_with_lines

            if left_out := heads_with_lines(drawing.shown(analysis), analysis.select(select or ()), drawing.from_token)[
                1
            ]:
                typer.echo(f"attnviz: {left_out}", err=True)
        if not quiet:
            removed = removed_files(output.removed)
            typer.echo(f"Wrote {output.count} files to {printable(str(folder))}{removed}", err=True)


def _print_results(
    analysis: "Analysis", document: dict[str, Any], select: list[str], top: int, as_json: bool, quiet: bool
) -> None:
    if as_json:
        from attnviz.export import json_text

        sys.stdout.write(json_text(document))
    elif not quiet:
        from attnviz.tables import report

        print_tables(lambda width: report(analysis, analysis.select(select), top=top, width=width))
    sys.stdout.flush()


def _figure_sets(figures: str, paired: bool, lines: bool, maps: bool) -> list[str]:
    """The sets by name; ``all`` is all that the text allows, and options of a set ask for it."""
    every = ["overview", "heads", "lines", "map", "mean", *(["pair"] if paired else [])]
    named = split_names([figures])
    alone = [name for name in named if name in ("all", "none")]
    if alone and len(named) > 1:
        raise UsageError(
            f"expected --figures {alone[0]} alone, or sets with commas between ({', '.join(every)}), found {figures!r}."
        )
    wanted = {"all": every, "none": []}[alone[0]] if alone else named
    asked = [*wanted, *(["lines"] if lines else []), *(["map"] if maps else [])]
    return list(dict.fromkeys(asked))
