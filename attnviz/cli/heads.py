"""The command ``attnviz heads``."""

from collections.abc import Callable
from typing import Annotated

import typer

import attnviz
from attnviz.cli import options
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import decoded, read_text, split_names
from attnviz.progress import Progress

__all__ = ["heads"]


@command(
    figures="Any of overview, heads, lines, map, mean, pair, panel (with commas between); all that the text has; none.",
    drawn="overview,heads",
    out="Folder for the results; default attnviz-out/MODEL/TEXT. Pictures of an earlier run stay there where it "
    "was of the same model, text and options; its other files are replaced or removed, those of another text with "
    "--overwrite only.",
)
def heads(
    run: Run,
    text: options.Text,
    pair: options.Pair = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="What the decoder of an encoder-decoder (Marian, BART, T5) reads; default its own, generated greedily."
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Of a generated target, at most.")] = 40,
    select: options.Select = None,
    words: options.Words = False,
    local_window: options.LocalWindow = 1,
    long_range_from: options.LongRangeFrom = 4,
    syntax: Annotated[
        bool, typer.Option("--syntax/--no-syntax", help="Parse the text, where spaCy and a pipeline are installed.")
    ] = True,
    parser: options.Parser = None,
    profile: Annotated[
        bool, typer.Option("--profile/--no-profile", help="Show what a stored profile says of the model.")
    ] = True,
    truncate: options.Truncate = False,
    scale: Annotated[
        str,
        typer.Option(help="Of colours: shared (0 to 1, by all heads), per-head (up to its largest weight), or log."),
    ] = "shared",
    drop_special: Annotated[
        bool,
        typer.Option(
            "--drop-special", help="Draw patterns without special tokens (GPT-2: the first token), renormalised."
        ),
    ] = False,
    token: Annotated[
        str | None, options.token_option("Whose attention the figures lines show (adds lines)", "all tokens")
    ] = None,
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help="Statistic that the figure map shows: entropy, distance, sink, local, ... Repeatable; adds map; "
            "default entropy.",
        ),
    ] = None,
    save_attention: Annotated[
        bool, typer.Option("--save-attention", help="Also write attention.safetensors, a tensor a layer.")
    ] = False,
    top: Annotated[int, typer.Option(min=0, help="Heads in the table, clearest first; 0 for all.")] = 12,
) -> None:
    """Verify, measure and draw every attention head on one text.

    Writes overview.png, heads/L00H00.png …, captions.md, heads.json and heads.csv, and prints tables.
    Exit codes: 0 done, 1 an error to mend, 2 wrong usage, 3 the heads do not reproduce the model, 130 interrupted.
    """
    sentence = read_text(text)
    second = None if pair is None else decoded("--pair", pair)
    read = None if target is None else decoded("--target", target)
    start = None if token is None else decoded("--token", token)
    statistics = split_names(maps)
    source = run.find_model()

    def measure(progress: Progress, warn: Callable[[str], None]) -> "attnviz.Analysis":
        from attnviz.commands.heads.map_view import statistic_named

        for statistic in statistics:
            statistic_named(statistic)
        return attnviz.analyze(
            sentence,
            source,
            pair=second,
            target=read,
            max_new_tokens=max_new_tokens,
            device=run.device,
            dtype=run.dtype,
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

    run.execute(
        measure,
        texts=(sentence, second, read),
        scale=scale,
        adds=["lines"] * (start is not None) + ["map"] * bool(statistics),
        select=select or (),
        top=top,
        drop_special=drop_special,
        token=start,
        maps=statistics,
        tensors=save_attention,
    )
