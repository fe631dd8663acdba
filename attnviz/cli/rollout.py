"""The command ``attnviz rollout``: parse, call, hand over."""

from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.cli import options
from attnviz.cli.runner import Show, check_out, errors_to_exit_codes
from attnviz.cli.terminal import decoded, read_text

if TYPE_CHECKING:
    from attnviz.progress import Progress
    from attnviz.results.result import Result

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
    figures: Annotated[
        str | None,
        typer.Option(help="Any of rollout, layers, from (with commas between); all; none.", show_default=False),
    ] = None,
    no_figures: options.NoFigures = False,
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
    with errors_to_exit_codes() as run:
        sentence = read_text(text)
        second = None if pair is None else decoded("--pair", pair)
        start = None if from_token is None else decoded("--from", from_token)
        check_out(out)
        from attnviz.commands.rollout.max_flow import check_flow_library
        from attnviz.model.sources import find_checkpoint

        if flow or all_flows:
            check_flow_library()
        source = find_checkpoint(model, revision)

        def measure(progress: "Progress", _: object) -> "Result":
            from attnviz.commands.rollout.measure import rollout as roll_out

            return roll_out(
                sentence,
                source,
                pair=second,
                device=device,
                dtype=dtype,
                words=words,
                layer=layer,
                residual=residual,
                from_token=start,
                flow=flow,
                all_flows=all_flows,
                truncate=truncate,
                progress=progress,
            )

        show = Show(figures, no_figures, formats, theme, width=width, top=top, tensors=save_rollout)
        run.execute("rollout", measure, show, models=[model], out=out, as_json=as_json, quiet=quiet)
