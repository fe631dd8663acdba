"""The command ``attnviz heads``; with ``--each-line`` a folder for every line of a file, and one summary of all."""

import io
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attnviz
from attnviz.cli.runner import Job, Run, command
from attnviz.cli.terminal import print_row, read_text, split_names
from attnviz.errors import UsageError
from attnviz.wording import counted

if TYPE_CHECKING:
    from attnviz.commands.heads.texts.measure import OneText


@command
def heads(run: Run, text: str | None, each_line: bool, chat: Path | None, **options: Any) -> Job:
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
    given = text, chat, options["audio"]
    if given.count(None) != 2:
        found = "both" if any(given) else "neither"
        raise UsageError(f"expected TEXT, or --chat FILE or --audio FILE instead, found {found}.")
    if each_line:
        from attnviz.inputs.reading import open_corpus

        reading = {name: value for name, value in options.items() if name not in run.spec.of_one}
        if chat is not None and open_corpus(chat).kind != "chats":
            raise UsageError(f"expected a list of messages on each line of {chat}, found texts; leave out --chat.")
        return _each_line(run, text or str(chat), reading)
    run.refuse(run.spec.of_many, "is of a file of texts; expected it with --each-line, found it without")
    options = {name: value for name, value in options.items() if name not in run.spec.of_many}
    if not options["syntax"] and "relations" in (run.figure_names(_implied_figures(run)) or []):
        raise UsageError(
            "the figure relations shows the parse of the text: leave it (or --relation) or --no-syntax out."
        )
    sentence = None if text is None else read_text(text)
    messages: list[str] = []
    if chat is not None:
        from attnviz.inputs.chats import message_texts
        from attnviz.inputs.reading import chat_of

        messages = [text for message in chat_of(chat).messages for text in message_texts(message)]
    source = run.find_model()

    measure = run.measuring("analyze", sentence, source, chat=chat, **options)
    generated = None if options["generate"] is None else f"--generate {options['generate']}"
    audio = options["audio"] and options["audio"].stem
    texts = (sentence, *messages, audio, options["pair"], options["target"], generated)

    def finish(result: "attnviz.Analysis", document: dict[str, Any]) -> Iterator[str]:
        from attnviz.commands.heads.report import hints

        return hints(result, run.choices(), document)

    return run.job(measure, texts=texts, implied_figures=_implied_figures(run), finish=finish)


def _implied_figures(run: Run) -> list[str]:
    of_text = "text" in split_names([run.options["figures"] or "all"])
    implied = {
        "lines": "token" in run.changed and not of_text,
        "map": "maps" in run.changed,
        "relations": "relation" in run.changed,
    }
    return [name for name, holds in implied.items() if holds]


def _each_line(run: Run, file: str, reading: Mapping[str, Any]) -> Job:
    from attnviz.commands.heads.texts.report import text_row
    from attnviz.inputs.lines import Place
    from attnviz.inputs.prompt import Text
    from attnviz.present.report import checked_views

    run.refuse(run.spec.of_one, "is about one text; expected --each-line without it, found both")
    lines: Path | list[Text] = Path(file)
    if file == "-":
        numbered = enumerate(io.StringIO(read_text("-"), newline=None), start=1)  # line ends of any system
        place = Path("standard input")
        lines = [Text(line.strip(), place=Place(place, number)) for number, line in numbered if line.strip()]
    source = run.find_model()
    names = run.figure_names(_implied_figures(run)) or []
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
            assert job.output is not None
            by_default, within = run.options["figures"] is None, f"{one.folder}/"
            analysis.write(
                job.output, choices, figures=drawn, formats=run.format_names, by_default=by_default, within=within
            )
        except UsageError as error:
            raise UsageError(f"{one.place}: {error}") from error

    def finish(*_: object) -> Iterator[str]:
        for name, count in without.items():
            yield f"{counted(count, 'text')} had nothing to draw for the figure {name}"
        assert job.output is not None
        if written:
            yield f"each text has a folder of its own in {job.output.path}, {len(written)} in all"

    summary = replace(run, command="heads.texts", options={**run.options, "figures": None})
    job = summary.job(
        run.measuring("analyze_each", lines, source, **reading, visit=write),
        texts=[] if isinstance(lines, Path) else [line.text for line in lines],
        corpora=[lines] if isinstance(lines, Path) else [],
        rate=True,
        finish=finish,
    )
    return job
