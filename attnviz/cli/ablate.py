"""The command ``attnviz ablate``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnviz.arguments import is_there
from attnviz.cli.runner import Job, Run, command
from attnviz.cli.terminal import decoded, read_text, refuse_folder
from attnviz.errors import UsageError


@command
def ablate(run: Run, texts: Sequence[str], target: str | None, **options: Any) -> Job:
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
    from attnviz.inputs.tables import is_table_folder

    def is_source(name: str) -> bool:
        return is_there(name, Path.is_file) or is_there(name, is_table_folder)

    if texts.count("-") > 1:
        raise UsageError("standard input (-) can be read only once; give the other text as an argument.")
    sources = [read_text(text) if text == "-" else decoded("TEXT", text) for text in texts]
    for text in texts:
        if not is_source(text):
            refuse_folder(text)
    if not any(map(is_source, sources)):
        run.refuse(("limit",), "is about the texts of a corpus; expected one with it, found none")
    model = run.find_model()
    return run.job(
        run.measuring("ablate", sources, model, target=target, **options),
        texts=[*(text for text in sources if not is_source(text)), target],
        corpora=[Path(source) for source in sources if is_source(source)],
        rate=True,
    )
