"""The command ``attnviz heads``: parse, call, hand over."""

from typing import Annotated

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
    say,
    say_what_was_written,
    split_names,
)
from attnviz.errors import UsageError

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
        check_out(out)
        from attnviz.model.sources import find_checkpoint

        source = find_checkpoint(model, revision)
        statistics = split_names(maps)
        wanted_figures = _figure_sets(figures, pair is not None, from_token is not None, bool(statistics))
        wanted_formats = split_names(formats) or ["png"]
        started = None if from_token is None else decoded("--from", from_token)
        from attnviz.commands.heads.export import HEADS
        from attnviz.results.output_folder import OutputFolder

        folder = results_folder(out, [model])
        with OutputFolder(folder, HEADS) as output, progress(quiet) as tell:
            outcome.folder = output
            tell("loading", 0, 0)
            from attnviz.commands.heads.analysis import analyze, check_figures
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
                warn=lambda message: say(message, quiet),
            )
            document = analysis.write(
                output,
                drawing,
                select=select or (),
                save_attention=save_attention,
                progress=tell,
            )
        from attnviz.commands.heads.tables import report

        chosen = analysis.select(select or ())
        print_results(folder, document, lambda width: report(analysis, chosen, top=top, width=width), as_json, quiet)
        if "lines" in wanted_figures and not quiet:
            from attnviz.figures.line_views import heads_with_lines

            _, left_out = heads_with_lines(drawing.shown(analysis), chosen, drawing.from_token)
            if left_out:
                say(left_out)
        say_what_was_written(output, quiet)


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
