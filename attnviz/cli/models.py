"""The command ``attnviz models``; nothing heavy is imported here, so that help is quick."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnviz.cli.runner import Job, Run, command
from attnviz.cli.terminal import decoded, print_results, progress, say_where_to_look
from attnviz.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnviz.present.output_folder import OutputFolder


@command
def models(run: Run, names: Sequence[str], families: bool, verify: bool) -> Job:
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
    wanted = [decoded("NAME", name) for name in names]
    out = run.options["out"]
    if families:
        run.refuse(("verify",), "loads models; expected it without --families, which lists architectures")
        if names or out is not None:
            raise UsageError(
                "--families lists all architectures, on the terminal alone; leave out NAME and --out (--json prints "
                "JSON)."
            )
        return Job(partial(_list_families, run))
    from attnviz.present.output_folder import OutputFolder

    output = None if out is None else OutputFolder(Path(out), "models")
    if verify:
        if not names:
            raise UsageError("--verify loads models: expected NAME, such as minilm, found none.")
        return Job(partial(_verify, run, list(dict.fromkeys(wanted)), output), output)
    from attnviz.commands.models.measure import model_configurations
    from attnviz.commands.models.report import models_csv, models_document, models_report

    with progress(run.quiet) as tell:
        listed = model_configurations(wanted, lambda done, total: tell("reading", done, total))

    def work() -> None:
        document = models_document(listed)
        _give(run, "models", document, models_csv(document), lambda: models_report(listed), output)

    return Job(work, output)


def _verify(run: Run, names: Sequence[str], output: "OutputFolder | None") -> None:
    from attnviz.commands.models.report import verified_csv, verified_report
    from attnviz.commands.models.verify import VERSIONS, verified

    with progress(run.quiet) as tell:
        models = []
        for done, name in enumerate(names):
            tell(f"verifying {name}", done, len(names))
            models.append(verified(name))
    document = VERSIONS | {"models": models}
    _give(run, "models-verify", document, verified_csv(document), lambda: verified_report(document), output)
    if any(model["reason"] for model in models):
        raise typer.Exit(1)


def _give(
    run: Run,
    name: str,
    document: dict[str, Any],
    table: str,
    report: Callable[[], "RenderableType"],
    output: "OutputFolder | None",
) -> None:
    if output is not None:
        from attnviz.present.documents import json_text

        document["files"] = [f"{name}.csv", f"{name}.json"]
        with output:
            output.write(f"{name}.csv", table)
            output.write(f"{name}.json", json_text(document))
            output.put_in_place()
    print_results(document, report, run.options["as_json"], run.quiet, None if output is None else output.path)
    if output is not None:
        say_where_to_look(output, run.quiet)


def _list_families(run: Run) -> None:
    from attnviz.commands.models.report import families_document, families_report

    document = families_document()
    print_results(document, lambda: families_report(document), run.options["as_json"], run.quiet)
