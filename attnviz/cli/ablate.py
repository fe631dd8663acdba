"""The command ``attnviz ablate``."""

from pathlib import Path
from typing import Annotated

from attnviz.cli import options as opt
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import read_source
from attnviz.options import HeadMetric, Replacement


@command(*opt.COMMON, opt.GeneratedGroup, opt.LabelledGroup, opt.SampleGroup, first="method together role")
def ablate(
    run: Run,
    texts: Annotated[
        list[str] | None,
        opt.argument(
            "Corpora (existing files, as for attnviz profile; a table may have labels) or texts. Write - to read one "
            "text from standard input.",
            metavar="CORPUS|TEXT",
        ),
    ] = None,
    truncate: opt.Truncate = False,
    method: Annotated[
        Replacement,
        opt.measuring(
            "What takes the place of a removed head: mean (its mean output over all tokens), zero (nothing), or "
            "uniform (the same attention to every visible token)."
        ),
    ] = "mean",
    select: opt.MeasuredHeads = None,
    together: Annotated[
        bool, opt.measuring("Also remove the selected heads as one set; then no layers and no curve.")
    ] = False,
    role: Annotated[
        list[str] | None,
        opt.measuring(
            "Also measure the tokens of a relation (obj: objects, and verbs with an object), each beside the nearest "
            "other word. May be given more than once. Needs trees, or a parser.",
            metavar="RELATION",
        ),
    ] = None,
    repeats: Annotated[
        bool, opt.measuring("Instead of texts, measure on random tokens, repeated: the second copy beside the first.")
    ] = False,
    label: opt.Label = None,
    answer: Annotated[
        opt.Answer,
        "With --foil: the token that follows the texts, at BERT's mask, or a classifier's class; measured is how far "
        "its logit falls against that of the foil.",
    ] = None,
    foil: Annotated[
        opt.Foil,
        "The token or class that the answer, or --label, is compared with. A .tsv with the columns text, answer and "
        "foil has its own.",
    ] = None,
    curve: Annotated[
        bool,
        opt.measuring(
            "Also remove heads together: each layer, and a growing share of all heads.", "--curve/--no-curve"
        ),
    ] = True,
    gradient: Annotated[
        bool, opt.measuring("Also measure importance by gradients (Michel et al. 2019).", "--gradient/--no-gradient")
    ] = True,
    order_by: Annotated[
        HeadMetric | None,
        opt.measuring(
            "The metric by which heads are ranked, and removed one after the other. Default: loss, or else kl or "
            "cosine; of a classifier whose loss is near 0 on most texts the margin."
        ),
    ] = None,
    top: Annotated[opt.Top, "Number of heads in the table and in ablate-heads; 0 for all. Default: 12."] = None,
    table: opt.Table = None,
) -> None:
    """Remove heads, one at a time or a set, and measure how much the model changes.

    GPT-2, and BERT with its masked-LM head, are measured by loss and KL divergence; BERT without that head by how far
    its final states move. A classifier is measured by the loss of the class of each text (--label, or a column of a
    table); without labels by the KL divergence of its class probabilities. Of an encoder-decoder it is the loss of the
    target.

    Every layer is verified on a sample.

    It writes ablate-heads.png, ablate-curve.png, captions, ablate.json and ablate.csv, and prints the heads ranked.

    Examples:
        attnviz ablate "The cat that I saw ran away"
            How much the model changes without each head, on one sentence.
        attnviz ablate novel.txt --select L2 --together
            Remove a whole layer, over all lines of a file.
        attnviz ablate corpus.conllu --select L2H0 --role obj
            Whether objects need the head more than other words do.
        attnviz ablate reviews.csv -m ./my-classifier
            What each head does for the classes of a classifier.
    """
    sources = list(map(read_source, run.options["texts"]))
    if not any(isinstance(source, Path) for source in sources):
        run.refuse(("limit",), "is about the texts of a corpus; expected one with it, found none")
    run.work(run.bound("ablate", texts=sources), of=[*sources, run.options["target"]])
