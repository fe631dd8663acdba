"""The command ``attnviz models``; nothing heavy is imported here, so that help is quick."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnviz.cli.runner import Job, Run, command
from attnviz.cli.terminal import decoded, print_results, progress, say_where_to_look
from attnviz.errors import UsageError
from attnviz.progress import Progress

if TYPE_CHECKING:
    from rich.console import RenderableType

# what a form of the command gives: the document, the CSV file, and what makes the tables
_Form = tuple[dict[str, Any], str, Callable[[], "RenderableType"]]


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
    wanted, out = list(dict.fromkeys(decoded("NAME", name) for name in names)), run.options["out"]
    measure: Callable[[Sequence[str], Progress], _Form] = _listed
    stem = "models"
    if families:
        run.refuse(("verify",), "loads models; expected it without --families, which lists architectures")
        if names or out is not None:
            raise UsageError(
                "--families lists all architectures, on the terminal alone; leave out NAME and --out (--json prints "
                "JSON)."
            )
        measure = _families
    elif verify:
        if not names:
            raise UsageError("--verify loads models: expected NAME, such as minilm, found none.")
        measure, stem = _verified, "models-verify"
    from attnviz.present.output_folder import OutputFolder

    output = None if out is None else OutputFolder(Path(out), "models")

    def work() -> None:
        with progress(run.quiet) as tell:
            document, table, report = measure(wanted, tell)
        if output is not None:
            from attnviz.present.documents import json_text

            document["files"] = [f"{stem}.csv", f"{stem}.json"]
            with output:
                output.write(f"{stem}.csv", table)
                output.write(f"{stem}.json", json_text(document))
                output.put_in_place()
        print_results(document, report, run.options["as_json"], run.quiet, None if output is None else output.path)
        if output is not None:
            say_where_to_look(output, run.quiet)
        if verify and any(model["reason"] for model in document["models"]):
            raise typer.Exit(1)

    return Job(work, output)


def _listed(names: Sequence[str], tell: Progress) -> _Form:
    from attnviz.commands.models import model_configurations, models_csv, models_document, models_report

    listed = model_configurations(names, lambda done, total: tell("reading", done, total))
    document = models_document(listed)
    return document, models_csv(document), lambda: models_report(listed)


def _verified(names: Sequence[str], tell: Progress) -> _Form:
    from attnviz.commands.models_verify import VERSIONS, verified, verified_csv, verified_report

    models = []
    for done, name in enumerate(names):
        tell(f"verifying {name}", done, len(names))
        models.append(verified(name))
    document = VERSIONS | {"models": models}
    return document, verified_csv(document), lambda: verified_report(document)


def _families(_: object, __: object) -> _Form:
    from attnviz.commands.models import families_document, families_report

    document = families_document()
    return document, "", lambda: families_report(document)
