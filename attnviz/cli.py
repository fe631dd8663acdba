"""The command line: parse, call, hand over.

Data goes to standard output, progress and messages to standard error. Everything heavy is imported
inside the command, so that ``attnviz --help`` answers at once.
"""

import gc
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnviz import __version__
from attnviz.cli_ablate import ablate as ablate_command
from attnviz.cli_compare import compare as compare_command
from attnviz.cli_explain import explain as explain_command
from attnviz.cli_models import models as models_command
from attnviz.cli_outputs import outputs as outputs_command
from attnviz.cli_profile import profile as profile_command
from attnviz.cli_rollout import rollout as rollout_command
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

__all__ = ["app", "main"]

app = typer.Typer(
    name="attnviz",
    help="What the attention heads of a pretrained BERT or GPT-2 do: recomputed, verified, drawn and labelled.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("profile")(profile_command)
app.command("compare")(compare_command)
app.command("ablate")(ablate_command)
app.command("explain")(explain_command)
app.command("outputs")(outputs_command)
app.command("models")(models_command)
app.command("rollout")(rollout_command)

_FARTHEST = 1_000_000
_SELDOM = (50_000, 20, 100)  # loading makes a million objects that all stay: collecting often costs a second


def main() -> None:
    """The console script ``attnviz``."""
    gc.set_threshold(*_SELDOM)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 gets ? for what it cannot show
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnviz {__version__}")
        raise typer.Exit


@app.callback()
def _attnviz(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """What the attention heads of a pretrained BERT or GPT-2 do: recomputed, verified, drawn and labelled."""


@app.command()
def heads(
    text: Annotated[str, typer.Argument(help="The sentence; - reads standard input.", show_default=False)],
    model: Annotated[
        str, typer.Option("--model", "-m", help="Built-in name (minilm, tiny-gpt2), checkpoint folder, or hub id.")
    ] = "minilm",
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of a hub model.", show_default=False)
    ] = None,
    pair: Annotated[
        str | None, typer.Option(help="A second segment (BERT: token types 0 and 1).", show_default=False)
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            help="Heads to draw and list: L2H8, 2.8, L2 (a layer), L0-3, L*H8. Repeatable; default all.",
            show_default=False,
        ),
    ] = None,
    words: Annotated[
        bool, typer.Option("--words", help="Merge word pieces into words: sum over keys, mean over queries.")
    ] = False,
    local_window: Annotated[
        int, typer.Option(min=0, max=_FARTHEST, help="Largest distance that is local, in tokens (words with --words).")
    ] = 1,
    long_range_from: Annotated[
        int, typer.Option(min=1, max=_FARTHEST, help="Smallest distance that is long-range, likewise.")
    ] = 4,
    figures: Annotated[
        str,
        typer.Option(
            help="Any of overview, heads, lines, map, mean, pair (with commas between); all that the text allows; none."
        ),
    ] = "overview,heads",
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="png, svg or pdf. Repeatable; default png.", show_default=False),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(help="Of colours: shared (0 to 1, by all heads), per-head (up to its largest weight), or log."),
    ] = "shared",
    theme: Annotated[str, typer.Option(help="light or dark.")] = "light",
    width: Annotated[
        str | None,
        typer.Option(
            help="Of every figure: 3.3in, 8.4cm, 84mm, 240pt (a bare number is inches); default as the text asks for.",
            show_default=False,
        ),
    ] = None,
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
    parser: Annotated[
        str | None,
        typer.Option(help="spaCy pipeline to parse with; default an installed English one.", show_default=False),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile/--no-profile", help="Show what a stored profile says of the model.")
    ] = True,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut a text that is longer than the model instead of refusing it.")
    ] = False,
    device: Annotated[str, typer.Option("--device", "-d", help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16.")] = "float32",
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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the document of heads.json, and nothing else.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no tables, no progress, no messages.")] = False,
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
            from attnviz.figure_sets import Drawing
            from attnviz.look import Look, parse_width

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
            from attnviz.line_views import heads_with_lines

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
