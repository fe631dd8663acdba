"""The command ``attnviz heads``."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

import attnviz
from attnviz.cli import options
from attnviz.cli.each_line import analyze_lines, texts_of_lines
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import read_text, split_names
from attnviz.progress import Progress

if TYPE_CHECKING:
    from attnviz.results.view import ChoiceNames


@command(
    figures="overview, heads, lines, map, mean, pair, panel, relations, text, page",
    note="Default: overview,heads. With --each-line also texts.",
)
def heads(
    run: Run,
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT",
            help="The sentence. Write - to read standard input. With --each-line: a file (.txt) with a text on each "
            "line, or -.",
        ),
    ],
    each_line: Annotated[
        bool,
        options.text_option(
            "--each-line", help="Analyse every line of a file by itself, and how much the heads vary between them."
        ),
    ] = False,
    pair: options.Pair = None,
    target: options.Target = None,
    max_new_tokens: options.MaxNewTokens = None,
    generate: Annotated[
        int | None,
        options.text_option(
            metavar="COUNT",
            min=1,
            help="Let a decoder (GPT-2, the Llama kind) write so many tokens after the text, greedily, and show the "
            "attention of all.",
        ),
    ] = None,
    any_family: Annotated[
        bool,
        options.text_option(
            "--any-family",
            help="Also take a family of transformers that attnviz does not reproduce. Its patterns are recomputed from "
            "the model's own queries and keys, which is level 1 of 4: not verified.",
        ),
    ] = False,
    select: options.SelectByRole = None,
    words: options.Words = False,
    local_window: options.LocalWindow = 1,
    long_range_from: options.LongRangeFrom = 4,
    syntax: Annotated[
        bool,
        typer.Option(help="Parse the text if spaCy and a pipeline for it are installed."),
    ] = True,
    parser: options.Parser = None,
    profile: Annotated[
        bool,
        typer.Option(help="Also show the roles that a stored profile gives the heads."),
    ] = True,
    truncate: options.Truncate = False,
    scale: Annotated[
        str,
        options.picture_option(
            metavar="SCALE",
            help="Colour scale: shared (0 to 1 for all heads), per-head (0 to the largest weight of the head), or log.",
        ),
    ] = "shared",
    drop_special: Annotated[
        bool,
        options.picture_option(
            "--drop-special",
            help="Draw patterns without special tokens (GPT-2: without the first token), each row scaled to sum to 1.",
        ),
    ] = False,
    token: Annotated[
        str | None,
        options.token_option(
            "Draw what this token attends to, in lines and text (adds the figure lines unless text is asked for)",
            "all",
            options.PICTURES,
        ),
    ] = None,
    relations: Annotated[
        bool,
        options.picture_option(
            "--relations",
            help="Outline in heatmaps the pairs of the relation that is a head's label or role, and draw them as arcs "
            "(adds the figure relations). Needs a parse.",
        ),
    ] = False,
    relation: Annotated[
        str | None,
        options.picture_option(
            metavar="RELATION", help="The same for this relation, such as obj, and all selected heads."
        ),
    ] = None,
    maps: Annotated[
        list[str] | None,
        options.picture_option(
            "--map",
            metavar="STATISTIC",
            help="Draw a map of this statistic, such as entropy, distance, sink or local (adds the figure map). "
            "May be given more than once. Default: entropy.",
        ),
    ] = None,
    save_attention: Annotated[bool, options.save_option("attention", "one tensor per layer")] = False,
    top: Annotated[int, options.top_option("Number of heads in the table, the clearest first.")] = 12,
) -> None:
    """Verify, measure, draw and label every attention head on one text.

    It writes overview.png, one picture per head (heads/L00H00.png), captions, heads.json and heads.csv, and prints
    tables. With --each-line every text has a folder of its own; texts.png, heads-texts.json and heads-texts.csv tell
    of all of them, and heads.jsonl has every heads.json as a line.

    Examples:
        attnviz heads "The cat that I saw ran away"
        attnviz heads sentences.txt --each-line --select L1
    """
    of_one: dict[str, object] = {"--pair": pair, "--target": target, "--token": token, "--generate": generate}
    of_one |= {"--relation": relation, "--any-family": any_family or None}
    lines = texts_of_lines(text, of_one) if each_line else None
    sentence = read_text(text) if lines is None else ""
    statistics = split_names(maps)
    source = run.find_model()
    reading: dict[str, Any] = {
        "max_new_tokens": max_new_tokens, "words": words, "local_window": local_window,
        "long_range_from": long_range_from, "syntax": syntax, "parser": parser, "truncate": truncate,
        "profile": profile,
    }  # fmt: skip

    def measure(progress: Progress, warn: Callable[[str], None]) -> "attnviz.Analysis":
        from attnviz.commands.heads.map_view import statistic_named

        for statistic in statistics:
            statistic_named(statistic)
        return attnviz.analyze(
            sentence, source, pair=pair, target=target, device=run.device, dtype=run.dtype, progress=progress,
            warn=warn, generate=generate, any_family=any_family, **reading,
        )  # fmt: skip

    drawn: ChoiceNames = {
        "select": select or (), "top": top, "drop_special": drop_special, "token": token, "maps": statistics,
        "tensors": save_attention, "relations": relations, "relation": relation,
    }  # fmt: skip
    adds = ["lines"] * (token is not None and "text" not in split_names([run.figures or "all"]))
    adds += ["map"] * bool(statistics) + ["relations"] * (relations or relation is not None)
    if lines is not None:
        analyze_lines(run, lines, source, reading, scale=scale, adds=adds, choices=drawn)
        return
    asked = None if generate is None else f"--generate {generate}"
    run.execute(measure, texts=(sentence, pair, target, asked), scale=scale, adds=adds, **drawn)
