"""Writes the lists of examples/guide/options.md from the options of the program, as ``--help`` says them in short."""

from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from attnviz.cli.program import COMMANDS, app

OPTIONS = Path(__file__).parent / "guide" / "options.md"
FIRST = "\n## All commands\n"  # what stands above it is written by hand
MANY = 10  # commands; an option of fewer names them

# where the guide says more: of an option, or of one command's
PAGES = {
    "--out": "files.md#where-results-go",
    "--model": "models.md#naming-a-model",
    "--adapter": "models.md#adapters",
    "--plugin": "extending.md",
    "--attention": "verification.md#the-implementation-of-attention",
    "--device-map": "large.md#models-larger-than-one-device",
    "--width": "pictures.md#for-a-paper-or-a-slide",
    "--text-column": "profile.md#tables",
    "--pair": "models.md#pairs-of-texts",
    "--target": "translation.md#source-and-target",
    "--frequencies": "profile.md#rare-words",
    "profile --repeats": "profile.md#what-it-reads",
    "ablate --repeats": "ablate.md#where-a-role-needs-it",
    "--memory": "large.md#chunks-of-rows",
    "heads --parser": "numbers.md#which-texts-are-parsed",
    "profile --parser": "profile.md#what-it-reads",
    "outputs --answer": "outputs.md#an-answer-and-a-foil",
    "--scale": "pictures.md#colours-and-labels",
    "--by": "profile.md#files",
    "--table": "files.md#tables-for-a-paper",
    "--each-line": "heads.md#several-texts",
    "--alignments": "translation.md#which-heads-align",
    "--chat": "spans.md#a-chat",
    "--audio": "translation.md#sound-whisper",
    "heads --span": "spans.md#spans",
    "--contacts": "models.md#proteins",
    "--generate": "heads.md#a-text-that-the-model-continues",
    "--queries": "large.md#a-few-rows-of-a-long-text",
    "--corpus": "compare.md#over-a-corpus",
    "--export": "profile.md#for-other-tools",
    "--show": "profile.md#examples",
    "--store": "profile.md#profiles-that-are-kept",
    "outputs --token": "outputs.md#a-tokens-class",
    "--answer-span": "outputs.md#an-answer-in-a-text",
    "ablate --answer": "ablate.md#an-answer-and-a-foil",
    "--method": "ablate.md#what-is-removed",
    "--role": "ablate.md#where-a-role-needs-it",
    "ablate --label": "ablate.md#classifiers",
    "--order-by": "ablate.md#numbers",
    "--corrupt": "patch.md#both-prompts",
    "patch --answer": "patch.md#numbers",
    "--site": "patch.md#other-sites-and-positions",
    "patch --span": "patch.md#both-prompts",
    "--to": "patch.md#paths",
    "--self-repair": "patch.md#self-repair",
    "--published": "published.md",
    "--init": "check.md#a-file-for-a-ci",
    "--junit": "check.md#a-file-for-a-ci",
    "--patch": "patch.md",
    "--families": "models.md#what-is-reproduced",
    "--verify": "models.md#before-you-trust-a-checkpoint",
}


def lists() -> str:
    """The lists in Markdown: options of all or most commands, of several, and of each."""
    program: Any = get_command(app)
    commands = dict[tuple[str, str], list[str]]()
    for name in COMMANDS:
        command = program.commands[name]
        context = typer.Context(command, info_name=name)
        for option in command.params:
            if option.param_type_name == "option":
                commands.setdefault(command.record_of(option, context), []).append(name)
    sections = {"All commands": list[str]()}
    for (flags, text), named in sorted(commands.items(), key=lambda each: -len(each[1])):
        without = [name for name in COMMANDS if name not in named]
        title, among = f"`{named[0]}`", ""
        if len(named) >= MANY:
            title = f"All commands but {' and '.join(f'`{name}`' for name in without)}" if without else "All commands"
        elif len(named) > 1:
            title, among = "Several commands", f" ({', '.join(named)})"
        sections.setdefault(title, []).append(f"- {linked(flags, named[0])}{among}: {text}")
    return "\n\n".join(f"## {title}\n\n" + "\n".join(lines) for title, lines in sections.items())


def linked(flags: str, command: str) -> str:
    """The flags of an option in Markdown, with a link to what the guide says of it."""
    name = next(word for word in flags.replace(",", "").split() if word.startswith("--"))
    page = PAGES.get(f"{command} {name}", PAGES.get(name))
    return f"[`{flags}`]({page})" if page else f"`{flags}`"


def page() -> str:
    """The page, with the lists of this version."""
    above, _, _ = OPTIONS.read_text(encoding="utf-8").partition(FIRST)
    return f"{above}\n{lists()}\n"


if __name__ == "__main__":
    OPTIONS.write_text(page(), encoding="utf-8")
