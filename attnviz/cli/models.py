"""The command ``attnviz models``; nothing heavy is imported, so that a list is quick."""

from pathlib import Path
from typing import Annotated

import typer

from attnviz.cli.options import AsJson, output_option, text_option
from attnviz.cli.runner import Run, check_out, errors_to_exit_codes
from attnviz.cli.terminal import decoded, print_results, progress, say, say_what_was_written
from attnviz.errors import CheckpointError, UsageError


def models(
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
    as_json: AsJson = False,
) -> None:
    """List the layers, heads, sizes and parameters of models, and say which of them attnviz can measure.

    The numbers come from config files and papers; no weights are loaded. Without a name it lists the built-in models,
    those in the cache of the hub, and those of the BERT, GPT-2 and GPT-3 papers.

    Examples:
        attnviz models
        attnviz models minilm bert-large --json
        attnviz models --families
    """
    with errors_to_exit_codes(Run()) as run:
        check_out(out)
        wanted = [decoded("NAME", name) for name in names or []]
        if families:
            _list_families(wanted, out, as_json)
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
        if out is not None:
            with OutputFolder(Path(out), LAYOUT) as run.folder:
                document = run.folder.commit(document)
        print_results(Path(out or "."), document, lambda width: models_report(listed, width), as_json, quiet=False)
        if run.folder is not None:
            say_what_was_written(run.folder, quiet=False)
        if failed:
            raise typer.Exit(failed[0].exit_code)


def _list_families(names: list[str], out: str | None, as_json: bool) -> None:
    if names or out is not None:
        raise UsageError(
            "--families lists all architectures, on the terminal alone; leave out NAME and --out (--json prints JSON)."
        )
    from attnviz.commands.models.report import families_document, families_report
    from attnviz.version import __version__

    document = families_document(__version__)
    print_results(Path(), document, lambda width: families_report(document, width), as_json, quiet=False)
