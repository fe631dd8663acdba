"""The command ``attnviz heads``; with ``--each-line`` a folder for every line of a file, and one summary of all."""

import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attnviz
from attnviz.cli import options as opt
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import print_row, read_text, split_names
from attnviz.errors import UsageError
from attnviz.wording import counted

if TYPE_CHECKING:
    from attnviz.commands.heads.texts import OneText

# options that are about one text, and about a file of texts
_OF_ONE = "audio pair target token generate relation queries spans contacts by".split()
_OF_MANY = "text_column pair_column label_column alignments".split()


@command(opt.TextGroup, *opt.COMMON, opt.GeneratedGroup, opt.LabelledGroup, opt.SyntaxGroup, first="each_line")
def heads(
    run: Run,
    text: Annotated[
        str | None,
        opt.argument(
            "The sentence. Write - to read standard input. With --each-line: a file of texts (.txt, .csv, .tsv, "
            ".jsonl, .json, .conllu, a datasets folder) or chats, or - for lines. None with --chat or --audio."
        ),
    ] = None,
    chat: Annotated[
        Path | None,
        opt.reading(
            "Instead of TEXT a chat: a file (.json, .jsonl) of messages with role and content, which the tokenizer's "
            "own chat template renders.",
            metavar="FILE",
        ),
    ] = None,
    audio: Annotated[
        Path | None,
        opt.reading(
            "Instead of TEXT a sound, for Whisper: a WAV file of 16,000 samples a second of 16 bits, or its log-mel "
            "features (.npy). --target is what was said.",
            metavar="FILE",
        ),
    ] = None,
    each_line: Annotated[bool, opt.reading("Analyse every text of a file by itself, and how much heads vary.")] = False,
    alignments: Annotated[
        Path | None,
        opt.reading(
            "Of an encoder-decoder, with --each-line: gold word alignments, a line for each text (0-0 1-2, possible "
            "ones 2?3). A text is then SOURCE ||| TARGET.",
            metavar="FILE",
        ),
    ] = None,
    generate: Annotated[
        int | None,
        opt.reading("Let a decoder (GPT-2, Llama) write N tokens after the text, greedily; show the attention of all."),
    ] = None,
    queries: Annotated[
        str | None,
        opt.reading(
            "Measure and draw the rows of these tokens alone: last, a stretch such as -64: or 100:200, or a token as "
            "for --token. For long texts.",
            callback=opt.decoded,
        ),
    ] = None,
    words: opt.Words = False,
    spans: opt.Spans = None,
    contacts: Annotated[
        Path | None,
        opt.measuring(
            "Residues of a protein that are in contact: a .npy matrix (0 and 1, or distances in ångström, below 8), or "
            "a text with two residues a line, counted from 1. Scores each head by its precision, with and without the "
            "average product correction (APC).",
            metavar="FILE",
        ),
    ] = None,
    memory: opt.Memory = None,
    select: Annotated[
        opt.Select,
        "Heads to draw and list, or a label on this text or a role over a corpus (sink, previous, syntactic, obj): "
        f"{opt.HEADS}",
    ] = None,
    scale: Annotated[
        str,
        opt.drawing(
            "Colour scale of overview, heads, mean and page: shared (0 to 1 for all heads; of mean 0 to a round end), "
            "per-head (0 to the largest weight of the head), log, or auto (shared up to 40 tokens, log beyond)."
        ),
    ] = "auto",
    drop_special: Annotated[
        bool,
        opt.drawing(
            "Draw patterns without special tokens (GPT-2: without the first token), each row scaled to sum to 1."
        ),
    ] = False,
    token: Annotated[
        str | None,
        opt.token_option(
            "Draw what this token attends to, in lines and text (adds the figure lines unless text is asked for)",
            "all",
            group=opt.PICTURES,
        ),
    ] = None,
    relation: Annotated[
        str | None,
        opt.drawing(
            "Outline in heatmaps the pairs of a relation such as obj, or of each head's own (own), and draw them as "
            "arcs (adds the figure relations). Needs a parse.",
            metavar="NAME|own",
        ),
    ] = None,
    maps: Annotated[
        list[str] | None,
        opt.drawing(
            "Draw a map of this statistic, such as entropy, distance, sink or local (adds the figure map). May be "
            "given more than once. Default: entropy.",
            "--map",
            metavar="STATISTIC",
        ),
    ] = None,
    save_attention: Annotated[bool, opt.writing("Also write attention.safetensors, one tensor a layer.")] = False,
    save_npz: Annotated[bool, opt.writing("Also write attention.npz, the same for NumPy.")] = False,
    top: Annotated[
        opt.Top,
        "Number of heads in the tables, the clearest first, with all statistics and what they mean; and in relations, "
        "those that find most; 0 for all. Default: a few heads of each kind.",
    ] = None,
    by: opt.By = None,
    table: opt.Table = None,
) -> None:
    """Verify, measure, draw and label every attention head on one text.

    It writes overview.png, one picture per head (heads/L00H00.png), captions, heads.json and heads.csv, and prints
    tables. With --each-line it writes one table and heads.jsonl over all texts; --figures adds a folder for each.

    Examples:
        attnviz heads "The cat that I saw ran away"
            All heads of minilm on one sentence: tables and pictures.
        attnviz heads "The cat that I saw ran away" --figures page
            One interactive page, for a browser.
        attnviz heads "The cat ran away" -m ./my-bert
            Your own checkpoint: a folder, or a name on the Hugging Face hub.
        attnviz heads novel.txt --each-line
            Every line of a file, or row of a .csv, and what varies between them.
    """
    if (text, chat, audio).count(None) != 2:
        found = "both" if text or chat or audio else "neither"
        raise UsageError(f"expected TEXT, or --chat FILE or --audio FILE instead, found {found}.")
    names = run.figure_names(_implied_figures(run))
    if each_line:
        _each_line(run, text or str(chat), names or [])
        return
    run.refuse(_OF_MANY, "is of a file of texts; expected it with --each-line, found it without")
    if not run.options["syntax"] and "relations" in (names or []):
        raise UsageError(
            "the figure relations shows the parse of the text: leave it (or --relation) or --no-syntax out."
        )
    sentence = None if text is None else read_text(text)
    messages: list[str] = []
    if chat is not None:
        from attnviz.inputs.chats import message_texts
        from attnviz.inputs.reading import chat_of

        messages = [text for message in chat_of(chat).messages for text in message_texts(message)]
    generated = None if generate is None else f"--generate {generate}"

    def finish(result: "attnviz.Analysis", document: dict[str, Any]) -> Iterator[str]:
        from attnviz.commands.heads.report import hints

        return hints(result, run.choices(), document)

    run.work(
        run.bound("analyze", text=sentence),
        of=(sentence, *messages, audio and audio.stem, run.options["pair"], run.options["target"], generated),
        figures=names,
        finish=finish,
    )


def _implied_figures(run: Run) -> list[str]:
    of_text = "text" in split_names([run.options["figures"] or "all"])
    implied = {
        "lines": "token" in run.changed and not of_text,
        "map": "maps" in run.changed,
        "relations": "relation" in run.changed,
    }
    return [name for name, holds in implied.items() if holds]


def _each_line(run: Run, file: str, names: list[str]) -> None:
    from attnviz.commands.heads.texts import text_row
    from attnviz.inputs.lines import Place
    from attnviz.inputs.prompt import Text
    from attnviz.inputs.reading import open_corpus
    from attnviz.present.report import checked_views

    chat = run.options["chat"]
    if chat is not None and open_corpus(chat).kind != "chats":
        raise UsageError(f"expected a list of messages on each line of {chat}, found texts; leave out --chat.")

    run.refuse(_OF_ONE, "is about one text; expected --each-line without it, found both")
    lines: Path | list[Text] = Path(file)
    if file == "-":
        numbered = enumerate(io.StringIO(read_text("-"), newline=None), start=1)  # line ends of any system
        place = Path("standard input")
        lines = [Text(line.strip(), place=Place(place, number)) for number, line in numbered if line.strip()]
    choices = run.choices()
    written = set[str]()
    without = Counter[str]()

    def write(one: "OneText", analysis: "attnviz.Analysis") -> None:
        print_row(text_row(one), run.quiet or run.options["as_json"])
        if not (names or choices.save_attention or choices.save_npz) or one.folder in written:  # an equal text
            return
        written.add(one.folder)
        missing = [view.name for view in checked_views("heads", names) if view.drawing.missing(analysis)]
        without.update([] if names == ["all"] else missing)
        drawn = [name for name in names if name == "all" or name not in missing]
        try:
            assert run.output is not None
            by_default, within = run.options["figures"] is None, f"{one.folder}/"
            analysis.write(
                run.output, choices, figures=drawn, formats=run.format_names, by_default=by_default, within=within
            )
        except UsageError as error:
            raise UsageError(f"{one.place}: {error}") from error

    def finish(*_: object) -> Iterator[str]:
        for name, count in without.items():
            yield f"{counted(count, 'text')} had nothing to draw for the figure {name}"
        assert run.output is not None
        if written:
            yield f"each text has a folder of its own in {run.output.path}, {len(written)} in all"

    run.form = "heads.texts"
    run.work(
        run.bound("analyze_each", texts=lines, visit=write),
        of=[lines] if isinstance(lines, Path) else [line.text for line in lines],
        figures=[],
        finish=finish,
    )
