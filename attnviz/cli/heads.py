"""The command ``attnviz heads``: parse, call, hand over."""

from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.cli import options
from attnviz.cli.runner import Show, check_out, errors_to_exit_codes
from attnviz.cli.terminal import decoded, read_text, split_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from attnviz.progress import Progress
    from attnviz.results.result import Result

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
        str | None,
        typer.Option(
            help="Any of overview, heads, lines, map, mean, pair (with commas between); all that the text has; none.",
            show_default="overview,heads",
        ),
    ] = None,
    no_figures: options.NoFigures = False,
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
    with errors_to_exit_codes() as run:
        sentence = read_text(text)
        second = None if pair is None else decoded("--pair", pair)
        start = None if from_token is None else decoded("--from", from_token)
        check_out(out)
        from attnviz.model.sources import find_checkpoint

        source = find_checkpoint(model, revision)
        statistics = split_names(maps)

        def measure(progress: "Progress", warn: "Callable[[str], None]") -> "Result":
            from attnviz.commands.heads.map_view import statistic_named
            from attnviz.commands.heads.measure import analyze

            for statistic in statistics:
                statistic_named(statistic)
            return analyze(
                sentence,
                source,
                pair=second,
                device=device,
                dtype=dtype,
                words=words,
                local_window=local_window,
                long_range_from=long_range_from,
                syntax=syntax,
                parser=parser,
                truncate=truncate,
                profile=profile,
                progress=progress,
                warn=warn,
            )

        show = Show(
            figures,
            no_figures,
            formats,
            theme,
            scale,
            width,
            select,
            top,
            drop_special,
            start,
            statistics,
            tensors=save_attention,
            adds=(*(["lines"] if start is not None else []), *(["map"] if statistics else [])),
        )
        run.execute("heads", measure, show, models=[model], out=out, as_json=as_json, quiet=quiet, folder_name="")
