"""The command ``attnviz models``; nothing heavy is imported here, so that help is quick."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnviz import options as opt
from attnviz.arguments import utf8
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import progress
from attnviz.errors import UsageError
from attnviz.progress import Progress

if TYPE_CHECKING:
    from rich.console import RenderableType

# what a form of the command gives: the document, the CSV file, and what makes the tables
_Form = tuple[dict[str, Any], str, Callable[[], "RenderableType"]]

Names = Annotated[
    list[str] | None,
    opt.argument(
        help="A built-in model, a folder, a hub id, or a model of a paper (bert-large, gpt2-xl, gpt3-175b). Default: "
        "all that are known here.",
        metavar="NAME",
    ),
]
Families = Annotated[bool, opt.reading("List instead the architectures that are reproduced, and which commands work.")]
Verify = Annotated[
    bool, opt.reading("Load the named models instead, and verify every head on a fixed set of short texts.")
]

Out = Annotated[opt.Out, "Folder for models.json and models.csv, or models-verify.json and .csv. Default: none."]


@command(opt.PrintingGroup, first="families verify as_json quiet")
def models(
    run: Run,
    names: Names = None,
    out: Out = None,
    families: Families = False,
    verify: Verify = False,
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

    output = run.output = None if out is None else OutputFolder(run.results_folder((), ()), "models")
    with progress(run.quiet) as tell:
        document, table, report = measure(wanted, tell)
    if output is not None:
        from attnviz.present.documents import json_text

        document["files"] = [f"{stem}.csv", f"{stem}.json"]
        with output:
            output.write(f"{stem}.csv", table)
            output.write(f"{stem}.json", json_text(document))
            output.put_in_place()
    run.show(document, report)
    if verify and any(model["reason"] for model in document["models"]):
        raise typer.Exit(1)


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
