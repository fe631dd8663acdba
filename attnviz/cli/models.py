"""The command ``attnviz models``; nothing heavy is imported, so that a list is quick."""

from pathlib import Path
from typing import Annotated

import typer

from attnviz.cli.folders import check_out
from attnviz.cli.options import AsJson
from attnviz.cli.runner import Run, errors_to_exit_codes
from attnviz.cli.terminal import decoded, print_results, progress, say, say_what_was_written
from attnviz.errors import CheckpointError

__all__ = ["models"]


def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Built-in name, folder, hub id, or paper's model such as bert-large, gpt2-xl, gpt3-175b; "
            "default all that are known here.",
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="Folder for models.json and models.csv; default none.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List layers, heads, widths, positions and parameters of models, and which of them attnviz reproduces.

    From configs and papers; no weights are loaded. Without names: the built-in models, those in the hub's cache, and
    those of the BERT, GPT-2 and GPT-3 papers.
    Exit codes: 0 done, 1 an error to mend, 2 wrong usage, 130 interrupted.
    """
    with errors_to_exit_codes(Run()) as run:
        check_out(out)
        wanted = [decoded("NAME", name) for name in names or []]
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
        if out is not None:
            with OutputFolder(Path(out), LAYOUT) as run.folder:
                document = run.folder.commit(document)
        print_results(Path(out or "."), document, lambda width: models_report(listed, width), as_json, quiet=False)
        if run.folder is not None:
            say_what_was_written(run.folder, quiet=False)
        if failed:
            raise typer.Exit(failed[0].exit_code)
