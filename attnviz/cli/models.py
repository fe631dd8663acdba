"""The command ``attnviz models``; nothing heavy is imported here, so that help is quick."""

from contextlib import nullcontext
from typing import Annotated

import typer

from attnviz.arguments import utf8
from attnviz.cli import options as opt
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import progress
from attnviz.errors import UsageError


@command(opt.PrintingGroup, first="families verify as_json quiet")
def models(
    run: Run,
    names: Annotated[
        list[str] | None,
        opt.argument(
            "A built-in model, a folder, a hub id, or a model of a paper (bert-large, gpt2-xl, gpt3-175b). Default: "
            "all that are known here.",
            metavar="NAME",
        ),
    ] = None,
    out: Annotated[
        opt.Out, "Folder for models.json and models.csv, or models-verify.json and .csv. Default: none."
    ] = None,
    families: Annotated[
        bool, opt.reading("List instead the architectures that are reproduced, and which commands work.")
    ] = False,
    verify: Annotated[
        bool, opt.reading("Load the named models instead, and verify every head on a fixed set of short texts.")
    ] = False,
) -> None:
    """List the layers, heads, sizes and parameters of models, and say which of them attnviz can measure.

    The numbers come from config files and papers; no weights are loaded. Without a name it lists the built-in models,
    those in the cache of the hub, and those of the BERT, GPT-2 and GPT-3 papers.

    Examples:
        attnviz models
            The built-in models, and those of the papers.
        attnviz models minilm ./my-bert
            Sizes of given models, and whether attnviz measures them.
        attnviz models --families
            All architectures that attnviz knows.
        attnviz models ./my-bert --verify
            Whether a checkpoint can be trusted here: exit code 1 if not.
    """
    wanted = list(dict.fromkeys(utf8("NAME", name) for name in names or ()))
    if families:
        run.refuse(("verify",), "loads models; expected it without --families, which lists architectures")
        if names or out is not None:
            raise UsageError(
                "--families lists all architectures, on the terminal alone; leave out NAME and --out (--json prints "
                "JSON)."
            )
    elif verify and not names:
        raise UsageError("--verify loads models: expected NAME, such as minilm, found none.")
    from attnviz.commands.models import listed_families, listed_models
    from attnviz.present.output_folder import OutputFolder

    if out is not None:
        run.output = OutputFolder(run.results_folder((), ()), "models")
    with run.output or nullcontext(), progress(run.quiet) as tell:
        if families:
            listing = listed_families()
        elif verify:
            from attnviz.commands.models_verify import listed_verified

            listing = listed_verified(wanted, tell)
        else:
            listing = listed_models(wanted, tell)
        if run.output is not None:
            listing.write(run.output)
            run.output.put_in_place()
    run.show(listing.document, lambda: listing.report)
    if listing.exit_code:
        raise typer.Exit(listing.exit_code)
