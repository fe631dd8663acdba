"""The command ``attnviz models``; nothing heavy is imported here, so that help is quick."""

from pathlib import Path
from typing import Annotated

import typer

from attnviz.cli.options import output_option, text_option
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import decoded, print_results, progress, say, say_what_was_written
from attnviz.errors import CheckpointError, UsageError


@command(shared=("as_json",))
def models(
    run: Run,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="A built-in model, a folder, a hub id, or a model of a paper (bert-large, gpt2-xl, gpt3-175b). "
            "Default: all that are known here.",
        ),
    ] = None,
    families: Annotated[
        bool,
        text_option("--families", help="List instead the architectures that are reproduced, and which commands work."),
    ] = False,
    out: Annotated[
        str | None,
        output_option("--out", "-o", metavar="FOLDER", help="Folder for models.json and models.csv. Default: none."),
    ] = None,
) -> None:
    """List the layers, heads, sizes and parameters of models, and say which of them attnviz can measure.

    The numbers come from config files and papers; no weights are loaded. Without a name it lists the built-in models,
    those in the cache of the hub, and those of the BERT, GPT-2 and GPT-3 papers.

    Examples:
        attnviz models
        attnviz models minilm bert-large --json
        attnviz models --families
    """
    wanted = [decoded("NAME", name) for name in names or []]
    if families:
        _list_families(run, wanted, out)
        return
    from attnviz.commands.models.configurations import Configuration
    from attnviz.commands.models.measure import model_configurations
    from attnviz.commands.models.report import LAYOUT, models_document, models_report
    from attnviz.results.output_folder import OutputFolder
    from attnviz.version import __version__

    listed, failed = list[Configuration](), list[CheckpointError]()
    with progress(quiet=False) as tell:
        for done, name in enumerate(dict.fromkeys(wanted)):
            tell("reading", done, len(wanted))
            try:
                listed += model_configurations([name])
            except CheckpointError as error:
                failed.append(error)
        if not wanted:
            listed = model_configurations((), lambda done, total: tell("reading", done, total))
    for each in failed if listed else failed[:-1]:
        say(str(each))
    if not listed:
        raise failed[-1]
    document = models_document(listed, __version__)
    folder = None if out is None else Path(out)
    if folder is not None:
        with OutputFolder(folder, LAYOUT) as run.folder:
            document = run.folder.commit(document)
    print_results(document, lambda width: models_report(listed, width), run.as_json, folder=folder)
    if run.folder is not None:
        say_what_was_written(run.folder)
    if failed:
        raise typer.Exit(failed[0].exit_code)


def _list_families(run: Run, names: list[str], out: str | None) -> None:
    if names or out is not None:
        raise UsageError(
            "--families lists all architectures, on the terminal alone; leave out NAME and --out (--json prints JSON)."
        )
    from attnviz.commands.models.report import families_document, families_report
    from attnviz.version import __version__

    document = families_document(__version__)
    print_results(document, lambda width: families_report(document, width), run.as_json)
