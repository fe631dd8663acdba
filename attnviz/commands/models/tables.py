"""Configurations of models for the terminal: one table, and below it what the numbers rest on."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnviz.cli.runner import printable
from attnviz.commands.models.configurations import Configuration
from attnviz.commands.models.known_configurations import PAPERS
from attnviz.results.tables import add_row, plain_table

__all__ = ["configuration_table", "models_report"]

_WIDE = 116
_NARROWEST_NAME = 18
_OTHERS, _OTHERS_WIDE = 61, 97
"""What the other columns of the table take, and those of the wide one."""

_SIZES = (
    ("Layers", "n_layers"),
    ("Heads", "n_heads"),
    ("d_model", "d_model"),
    ("d_head", "d_head"),
    ("Posi-\ntions", "positions"),
)


def models_report(found: Sequence[Configuration], *, width: int) -> RenderableType:
    """Everything that ``attnviz models`` prints.

    Args:
        found: the configurations.
        width: columns of the terminal.
    """
    return Group(configuration_table(found, width=width), Text(), _notes(found, width >= _WIDE))


def configuration_table(found: Sequence[Configuration], *, width: int) -> Table:
    """A row a model; a wide one has also the paper's count, the share in attention and the size in float32."""
    wide = width >= _WIDE
    table = plain_table("Models (from configs and papers; no weights were loaded)", wide)
    room = max(width - (_OTHERS_WIDE if wide else _OTHERS), _NARROWEST_NAME)
    table.add_column("Name", overflow="fold", min_width=_NARROWEST_NAME, max_width=room)
    for title, _ in _SIZES:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("Para-\nmeters", justify="right", no_wrap=True)
    if wide:
        table.add_column("In the\npaper", justify="right", no_wrap=True)
        table.add_column("In atten-\ntion", justify="right", no_wrap=True)
        table.add_column("float32\n(GiB)", justify="right", no_wrap=True)
    table.add_column("Source", no_wrap=True)
    table.add_column("Repro-\nduced", no_wrap=True)
    earlier = None
    for model in found:
        if earlier is not None and _source(model) != earlier:
            table.add_section()
        earlier = _source(model)
        add_row(table, [printable(model.name), *_numbers(model, wide), earlier, "yes" if model.reproduced else "no"])
    return table


def _numbers(model: Configuration, wide: bool) -> list[str]:
    sizes = ["–" if (size := getattr(model, name)) is None else f"{_mark(model, name)}{size}" for _, name in _SIZES]
    if not wide:
        stated = model.stated_parameters
        return [*sizes, _rounded(model.parameters if stated is None else stated)]
    share = "–"
    if model.parameters and model.attention_parameters is not None:
        share = f"{model.attention_parameters / model.parameters:.0%}"
    size = "–" if model.float32_gib is None else f"{model.float32_gib:.2f}"
    return [*sizes, _rounded(model.parameters), _rounded(model.stated_parameters), share, size]


def _mark(model: Configuration, name: str) -> str:
    """A star before what is not the paper's own."""
    return "*" if model.origins.get(name) == "released" else ""


def _rounded(count: int | None) -> str:
    """110M as the paper has it, 124.4M as counted; a billion and a half in millions, as GPT-2's paper has it."""
    if count is None:
        return "–"
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= size and (letter != "B" or count >= 2 * size or count % 10**8 == 0):
            return f"{count / size:.1f}".removesuffix(".0") + letter
    return str(count)


def _source(model: Configuration) -> str:
    return (model.source or "").replace(" et al.", "") if model.kind == "paper" else model.kind


def _notes(found: Sequence[Configuration], wide: bool) -> Text:
    papers = [model for model in found if model.kind == "paper"]
    lines = _on_parameters(found, papers, wide)
    lines += _said_once(found)
    if any("released" in (model.origins.get(name) for _, name in _SIZES) for model in papers):
        lines.append("*: not in the paper, but in the config that its authors released.")
    lines += [f"{paper}: {title}." for paper, title in PAPERS.items() if paper in {model.source for model in papers}]
    return Text("\n".join(printable(line) for line in lines), style="dim")


def _on_parameters(found: Sequence[Configuration], papers: Sequence[Configuration], wide: bool) -> list[str]:
    """What the shown parameters are; nothing where none are shown."""
    of_what = "of the bare model, without a task head; embeddings and BERT's pooler counted, shared ones once."
    any_counted = any(model.parameters is not None for model in found)
    if not papers or wide:
        return [f"Parameters: {of_what}"] if any_counted else []
    counted = [f"{model.name} {_rounded(model.parameters)}" for model in papers if model.parameters is not None]
    if not any_counted:
        return ["Parameters: as a paper states them."]
    lines = [f"Parameters: as a paper states them, else counted: {of_what}"]
    return [*lines, f"Counted from the released sizes: {', '.join(counted)}."] if counted else lines


def _said_once(found: Sequence[Configuration]) -> list[str]:
    """A line for all that holds for the same models, which are named by their paper where they are all of it."""
    models: dict[str, list[Configuration]] = {}
    for model in found:
        reasons = [] if model.reproduced else [f"not reproduced: {model.reason}"]
        for note in (*reasons, *model.notes):
            models.setdefault(note.removesuffix("."), []).append(model)
    notes: dict[str, list[str]] = {}
    for note, those in models.items():
        of_paper = [model for model in found if model.kind == "paper" and model.source == those[0].source]
        whole = len(those) > 1 and those == of_paper
        name = str(those[0].source) if whole else ", ".join(model.name for model in those)
        notes.setdefault(name, []).append(note)
    return [f"{name}: {'; '.join(said)}." for name, said in notes.items()]
