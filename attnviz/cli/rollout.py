"""The command ``attnviz rollout``: parse, call, hand over."""

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
    say_what_was_written,
    split_names,
)

__all__ = ["rollout"]


def rollout(
    text: options.Text,
    model: options.Model = "minilm",
    revision: options.Revision = None,
    pair: options.Pair = None,
    from_token: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Whose inputs to rank: cat, or #3. Default the first token ([CLS]), in GPT-2 the last.",
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(min=0, help="Roll out up to this layer, counted from 0; default the last.", show_default=False),
    ] = None,
    residual: Annotated[
        float, typer.Option(help="Share of the identity (what a token keeps of itself) in every layer, 0 to 1.")
    ] = 0.5,
    flow: Annotated[
        bool,
        typer.Option("--flow/--no-flow", help="Also the maximum flow from that token: n problems (attnviz[flow])."),
    ] = False,
    all_flows: Annotated[
        bool, typer.Option("--all-flows", help="The maximum flow from every token: n² problems, up to 128 tokens.")
    ] = False,
    words: Annotated[
        bool, typer.Option("--words", help="Merge word pieces after rolling out: sum over inputs, mean over outputs.")
    ] = False,
    figures: options.Figures = True,
    formats: options.Formats = None,
    theme: options.Theme = "light",
    width: options.Width = None,
    save_rollout: Annotated[
        bool, typer.Option("--save-rollout", help="Also write rollout.safetensors, the matrices of every layer.")
    ] = False,
    truncate: options.Truncate = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    out: options.Out = None,
    top: Annotated[int, typer.Option(min=0, help="Input tokens in the table; 0 for all.")] = 12,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Roll attention out through all layers: how much of each input token comes to each position.

    Every head is verified. Writes rollout.png, rollout-layers.png, rollout-from.png, captions.md, rollout.json and
    rollout.csv, and prints the inputs of one token, ranked.
    Exit codes: 0 done, 1 an error to mend, 2 wrong usage, 3 the heads do not reproduce the model,
    130 interrupted.
    """
    with errors_to_exit_codes() as outcome:
        sentence = read_text(text)
        pair = None if pair is None else decoded("--pair", pair)
        from_token = None if from_token is None else decoded("--from", from_token)
        check_out(out)
        from attnviz.commands.rollout.max_flow import check_flow_library
        from attnviz.figures.look import Look, parse_width

        look = Look(theme, width=None if width is None else parse_width(width))
        wanted = (split_names(formats) or ["png"]) if figures else []
        if flow or all_flows:
            check_flow_library()
        from attnviz.commands.rollout.document import ROLLOUT
        from attnviz.model.sources import find_checkpoint
        from attnviz.results.output_folder import OutputFolder

        source = find_checkpoint(model, revision)
        folder = results_folder(out, [model], "rollout")
        with OutputFolder(folder, ROLLOUT) as output, progress(quiet) as tell:
            outcome.folder = output
            tell("loading", 0, 0)
            from attnviz.commands.rollout.saving import rollout as roll_out
            from attnviz.results.saving import check_formats

            check_formats(wanted)
            found = roll_out(
                sentence,
                source,
                pair=pair,
                device=device,
                dtype=dtype,
                words=words,
                layer=layer,
                residual=residual,
                from_token=from_token,
                flow=flow,
                all_flows=all_flows,
                truncate=truncate,
                progress=tell,
            )
            document = found.write(output, formats=wanted, look=look, save_rollout=save_rollout, progress=tell)
        from attnviz.commands.rollout.tables import rollout_report

        print_results(folder, document, lambda width: rollout_report(found, top=top, width=width), as_json, quiet)
        say_what_was_written(output, quiet)
