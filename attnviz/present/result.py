"""A result: what one run of a command measured, with its figures, tables, document and files."""

import html
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, Unpack

from attnviz.arguments import as_found, check_kind
from attnviz.errors import UsageError
from attnviz.locks import IN_USE, alone
from attnviz.models.head_ids import HeadId, head_named, select_heads, selection_texts
from attnviz.options import DrawingOptionNames, ViewOptionNames, checked
from attnviz.plugins import plugins_used
from attnviz.present.documents import Entry, caption_files, json_text
from attnviz.present.fields import Table, plain_value
from attnviz.present.figure_context import FigureContext, with_models
from attnviz.present.output_folder import OutputFolder, folder_named
from attnviz.present.report import View, checked_views, spec_of, views_of
from attnviz.progress import Progress, tell
from attnviz.version import __version__
from attnviz.wording import counted, visible

if TYPE_CHECKING:
    import pandas
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from attnviz.figures.style import Style
    from attnviz.inputs.prompt import Prompt
    from attnviz.models.checkpoint import Checkpoint
    from attnviz.present.view import File, ViewOptions


class Document(dict[str, Any]):
    """A document as written, with a repr of one line for notebooks."""

    def __init__(self, content: Entry, folder: Path) -> None:
        super().__init__(content)
        self.folder = folder

    def __repr__(self) -> str:
        folder = visible(str(self.folder))
        return f"<{counted(len(self['files']), 'file')} in {folder}; a dict with the keys {', '.join(self)}>"


class Result:
    """What a command measured; the base of ``Analysis``, ``Comparison``, ``Ablation`` and all others.

    Attributes:
        command: its folder in :mod:`attnviz.commands`: ``heads``, or ``heads.texts`` of a form of it.
        noun: in the caption of a table, where that is not the name of the class.
    """

    command: ClassVar[str]
    noun: ClassVar[str] = ""

    @property
    def in_words(self) -> str:
        """What the result is of, and what it found: ``of “the cat ran” with minilm: 6 tokens, 72 heads verified``."""
        return ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.in_words}>"

    @property
    def reading_notes(self) -> list[str]:
        checkpoint = getattr(self, "checkpoint", None)
        return [*(() if checkpoint is None else checkpoint.notes), *self.text_notes]

    @property
    def text_notes(self) -> Sequence[str]:  # of these the sentences on the texts
        return ()

    @checked
    @alone
    def figure(self, name: str = "", style: "Style | None" = None, **choices: Unpack[DrawingOptionNames]) -> "Figure":
        """A new figure; of a view with several pictures the first, of one head's pictures that of the clearest head.

        With ``font_size``, or a ``width`` larger than the content, it is as laid out; :meth:`save` magnifies its files.

        Args:
            name: of a view, as for ``--figures``; by default the first of the command's.
            style: or its arguments as keywords: ``theme="dark", width="3.3in"``.
            choices: see :class:`attnviz.present.view.ViewOptions`.

        Raises:
            UsageError: no such figure, option or head.
        """
        wanted = self._choices(style, choices)
        view = self._view(name)
        with wanted.style.in_font():
            wanted = view.fitted(self, wanted)
            return view.picture(self._first_plan(view, wanted), wanted.style)

    def _first_plan(self, view: View, choices: "ViewOptions") -> Any:
        plan = next(view.plans(self, choices), None)
        if plan is None:
            raise UsageError(f"the figure {view.name!r} shows no head here unless it is named: expected select=...")
        return plan

    @checked
    @alone
    def draw(
        self, name: str, ax: "Axes", style: "Style | None" = None, **choices: Unpack[DrawingOptionNames]
    ) -> "Artist":
        """Draw a view of one panel on your own Axes, as :meth:`figure`; returns the artist for a colour bar."""
        from matplotlib.axes import Axes

        from attnviz.figures.page import PanelPlan

        view = self._view(name)
        wanted = self._choices(style, choices)
        if not isinstance(ax, Axes):
            raise UsageError(
                f"expected ax as matplotlib Axes, such as plt.figure().add_subplot(), found {as_found(ax)}."
            )
        with wanted.style.in_font():
            plan = self._first_plan(view, wanted)
            if not isinstance(plan, PanelPlan):
                raise UsageError(f"the figure {view.name!r} has several panels; figure() draws it as a whole.")
            return plan.draw(ax, wanted.style)

    @checked
    def document(self, figures: Sequence[str] = (), **choices: Unpack[ViewOptionNames]) -> Entry:
        """The content of the command's JSON file; ``figures`` are the paths of its pictures in the folder."""
        check_kind("figures", figures, Sequence[str | Path])
        wanted = self._choices(None, choices)
        return self._document(list(map(str, figures)), wanted, self.table(wanted))

    @checked
    def report(self, width: int = 100, **choices: Unpack[ViewOptionNames]) -> str:
        """The tables that the command prints, as plain text; UsageError for less than 20 columns."""
        from attnviz.present.tables import plain_text

        return plain_text(self.tables(self._choices(None, choices)), width)

    @checked
    def frame(self, **choices: Unpack[ViewOptionNames]) -> "pandas.DataFrame":
        """The rows of the command's CSV file as a table of pandas, in most results one per head.

        >>> analysis.frame().groupby("layer")["entropy"].mean()  # doctest: +SKIP
        """
        columns, rows = self.table(self._choices(None, choices)).csv_rows()
        try:
            import pandas
        except ImportError as error:
            raise UsageError(
                "frame() returns a table of pandas, which is not installed; type: pip install pandas"
            ) from error
        return pandas.DataFrame(rows, columns=columns)

    def paper_table(self, choices: "ViewOptions") -> str:
        """The table for a paper, as ``--table`` writes it."""
        from attnviz.present.paper_tables import paper_table

        spec = spec_of(self.command)
        whole = self.table(choices)
        listed = ""
        table = whole if spec.in_paper is None else spec.in_paper(self, choices)
        if table.name == whole.name and len(table.rows) < len(whole.rows):
            listed = f"; {len(table.rows):,} of {counted(len(whole.rows), 'row')} listed"
        if isinstance(self, OfHeads) and len(self.select(choices.select)) < len(self.heads):
            listed = f"; {len(self.select(choices.select))} of {counted(len(self.heads), 'head')} listed"
        what = f"{self.noun or type(self).__name__} {self.in_words}{listed}"
        caption = f"{what} (attnviz {self.command.partition('.')[0]}, version {__version__})."
        label = f"tab:attnviz-{self.command.replace('.', '-')}"
        return paper_table(choices.table or "md", table, spec.paper, caption, label)

    def table(self, choices: "ViewOptions") -> Table[Any]:
        """The rows that the JSON document and the CSV file have."""
        return spec_of(self.command).table(self, choices)

    def tables(self, choices: "ViewOptions") -> "RenderableType":
        """The tables that the command prints, for :mod:`rich`."""
        from attnviz.models.opening import encoder_note
        from attnviz.present.sentences import cut_note
        from attnviz.present.tables import notes, spaced

        checkpoint = getattr(self, "checkpoint", None)
        lines = [] if checkpoint is None else [encoder_note(checkpoint)]
        if isinstance(self, TextResult):
            lines.append(cut_note(self.tokens))
        tables = [*spec_of(self.command).tables(self, choices)]
        for by_kv in self._by_kv_head(choices):
            file, rows = f"{self.command}-kv-heads.csv", choices.rows(12)
            tables.append(by_kv.first(rows, file, "KV head"))
        told = spec_of(self.command).notes(self, choices)
        return spaced([*tables, notes(*told, *lines, *self.reading_notes)])

    def _by_kv_head(self, choices: "ViewOptions") -> list[Table[Any]]:
        table = spec_of(self.command).kv_heads
        return [table(self)] if choices.by and table is not None else []

    @checked
    def save(
        self,
        folder: str | Path,
        *,
        figures: Sequence[str] | None = None,
        formats: Sequence[str] = ("png",),
        style: "Style | None" = None,
        progress: Progress | None = None,
        **choices: Unpack[DrawingOptionNames],
    ) -> Document:
        """Write figures with captions, the JSON document and the CSV table into a folder: all of them, or nothing.

        Args:
            folder: an earlier run of the command there goes; files of your own stay.
            figures: names of views, or ``["all"]``, or ``["none"]``, as an empty list; default those of the command
                line.
            formats: any of ``png``, ``svg``, ``pdf``.
            style: as for :meth:`figure`, like the other keywords.
            progress: callback for every figure drawn.
            choices: see :class:`attnviz.present.view.ViewOptions`.

        Raises:
            OutputError: the folder cannot be written to, or was not written by this command.
            UsageError: an unknown figure, format, option or head.
        """
        path = folder_named(folder)
        wanted = self._choices(style, choices)
        self.wanted_views(figures, formats)
        with OutputFolder(path, self.command) as output:
            written = self.write(output, wanted, figures=figures, formats=formats, progress=progress)
            output.inputs = self._files_read(written)
            output.put_in_place()
        return Document(written, path)

    def _files_read(self, document: Entry) -> list[Path]:
        return [Path(corpus["path"]) for corpus in document.get("corpora", ())]

    def write(
        self,
        output: OutputFolder,
        choices: "ViewOptions",
        *,
        figures: Sequence[str] | None,
        formats: Sequence[str],
        by_default: bool = False,
        progress: Progress | None = None,
        within: str = "",
    ) -> Entry:
        """Write as :meth:`save` does into an open folder, or into a folder ``within/`` of it.

        ``by_default``: nobody asked for these figures by name, though other options may imply some.
        """
        stem = self.command.replace(".", "-")
        views = self.wanted_views(figures, formats)
        captions: dict[str, str] = {}
        if choices.table:
            output.write(f"{within}{stem}.{choices.table}", self.paper_table(choices))
        formats = tuple(dict.fromkeys(formats))
        if views and formats:
            pictures = self._pictures(views, choices, by_default or figures is None, formats, progress)
            with IN_USE:
                for name, picture, caption in pictures:
                    output.write(within + name, picture)
                    captions[name] = caption
        table = self.table(choices)
        document = self._document(list(captions), choices, table)
        if any(captions and not view.is_page for view in views):
            models = _models_of(document)
            whole = [(name, with_models(caption, models)) for name, caption in captions.items()]
            for name, text in caption_files(whole).items():
                output.write(within + name, text)
        output.write(f"{within}{stem}.csv", table.csv())
        for by_kv in self._by_kv_head(choices):
            output.write(f"{within}{stem}-kv-heads.csv", by_kv.csv())
        for name, content in spec_of(self.command).further(self, choices):
            output.write(f"{within}{name}", content)
        files = [name.removeprefix(within) for name in output.written if name.startswith(within)]
        document["files"] = sorted({*files, f"{stem}.json"})
        output.write(f"{within}{stem}.json", json_text(document))
        return document

    def _pictures(
        self,
        views: Sequence[View],
        choices: "ViewOptions",
        by_default: bool,
        formats: Sequence[str],
        progress: Progress | None,
    ) -> "Iterator[File]":
        with choices.style.in_font():
            planned, total, done = [], 0, 0
            for view in views:
                drawing = view.drawing
                wanted = view.fitted(self, drawing.by_default(self, choices) if by_default else choices)
                plans = None if drawing.files else [*view.plans(self, wanted)]
                planned.append((view, wanted, plans))
                of_heads = self.select(wanted.select) if isinstance(self, OfHeads) else ()
                total += 1 if view.is_page else len(formats) * len(of_heads if plans is None else plans)
            for view, wanted, plans in planned:
                for file in view.render_files(self, wanted, formats, plans):
                    yield file
                    done += 1
                    tell(progress, "drawing", done, total)

    def wanted_views(self, figures: Sequence[str] | None, formats: Sequence[str] = ("png",)) -> list[View]:
        """The requested views; None for the default ones. UsageError for one that this result has no picture for."""
        views = checked_views(self.command, figures, formats)
        if figures is None or "all" in figures:
            return [view for view in views if not view.drawing.missing(self)]
        for view in views:
            why = view.drawing.missing(self)
            if why:
                raise UsageError(f"there is no figure {view.name!r}: {why}.")
        return views

    @alone
    def _repr_html_(self) -> str:
        image = ""
        main = next((view for view in self.wanted_views(None) if not view.is_page), None)
        if main is not None:
            _, content, _ = next(iter(main.render_files(self, self._choices(None, {}), ("png",))))
            source = f"data:image/png;base64,{b64encode(content).decode('ascii')}"
            image = f'<img alt="{html.escape(repr(self))}" style="max-width: 100%" src="{source}">'
        return f"{image}<pre>{html.escape(self.report())}</pre>"

    @checked
    @alone
    def page(
        self, style: "Style | None" = None, budget: int | None = None, **choices: Unpack[DrawingOptionNames]
    ) -> str:
        """The interactive page as one HTML document; it begins with ``style`` and ``choices``, as in :meth:`figure`.

        ``budget`` are the bytes that the patterns of heads may take (default :data:`attnviz.page.page.BUDGET`); of
        more heads only their numbers are there.
        """
        (view,) = self.wanted_views(["page"])
        wanted = self._choices(style, choices)
        if budget is not None:
            if budget < 0:
                raise UsageError(f"expected budget as a number of bytes from 0 on, found {budget}.")
            wanted = replace(wanted, budget=budget)
        ((_, content, _),) = view.render_files(self, wanted, ())
        return content.decode()

    def _view(self, name: str) -> View:
        views = views_of(self.command)
        if not (name or views):
            raise UsageError(f"attnviz {self.command} draws nothing: expected result.report(), or save().")
        (view,) = self.wanted_views([name or views[0].name])
        if view.is_page:
            raise UsageError(f"{view.name!r} is no figure: expected result.page(), or save(figures=[{view.name!r}]).")
        return view

    def _choices(self, style: "Style | None", choices: DrawingOptionNames | ViewOptionNames) -> "ViewOptions":
        from attnviz.present.view import ViewOptions

        select = choices.get("select")
        several = isinstance(select, Sized) and not isinstance(select, str | tuple)  # () is the default
        if several and not selection_texts(select):
            raise UsageError(
                "expected select as at least one selection such as 'L2H8', found an empty list; leave it out for all."
            )
        return spec_of(self.command).completed(ViewOptions.from_keywords(style, choices))

    def _document(self, figures: Sequence[str], choices: "ViewOptions", table: Table[Any]) -> Entry:
        from attnviz.measures.patterns import PATTERNS
        from attnviz.measures.statistics import STATISTICS

        spec = spec_of(self.command)
        tables = [table, *self._by_kv_head(choices)]
        content = plain_value(spec.content(self, choices)) | {each.name: each.entries() for each in tables if each.name}
        plugins = plugins_used(
            architecture=[model.get("architecture") for model in _models_of(content)],
            pattern=[*PATTERNS] if spec.patterns else [],
            statistic=[*STATISTICS] if spec.patterns else [],
            figure=[f"{view.command}.{view.name}" for view in views_of(self.command) if any(map(view.drew, figures))],
        )
        more = {"reading_notes": self.reading_notes, "plugins": plugins}
        more = {key: value for key, value in more.items() if value}
        return {"attnviz": __version__, **content, **more, "figures": list(figures)}


def _models_of(document: Entry) -> list[Any]:
    return document.get("models") or [document.get("model", {})]


class _OfHead(Protocol):
    @property
    def id(self) -> HeadId: ...


E = TypeVar("E", bound=_OfHead)


@dataclass(frozen=True, repr=False, eq=False)
class TextResult(Result):
    """What a command measured on one text, or a pair of texts."""

    checkpoint: "Checkpoint"
    tokens: "Prompt"

    @property
    def text(self) -> str:
        return self.tokens.source.text

    @property
    def pair(self) -> str | None:
        return self.tokens.source.pair

    @property
    def figure_context(self) -> FigureContext:
        texts = tuple(text for text in (self.text, self.pair) if text is not None)
        return FigureContext(self.checkpoint.short_name, texts, len(self.tokens))

    @property
    def text_notes(self) -> Sequence[str]:  # sentences on how the text was read
        return self.tokens.notes

    @property
    def sinks(self) -> str:
        from attnviz.inputs.prompt import sinks_in_words

        return sinks_in_words(self.tokens, "token")


class OfHeads(Generic[E]):
    """A result with one entry a head, in :attr:`heads`; ``checkpoint`` is the model that they are of."""

    heads: tuple[E, ...]
    checkpoint: "Checkpoint"

    def select(self, selections: str | HeadId | Iterable[str | HeadId] = ()) -> list[E]:
        """The entries of the selected heads (``L2H8``, ``L2``, ``L*H8``, …), in the order of ``heads``; default all."""
        chosen = set(select_heads(selections, self.checkpoint.kinds))
        return [entry for entry in self.heads if entry.id in chosen]

    def head(self, head: str | HeadId) -> E:
        """The entry of one head, by ``"L2H8"``, ``"2.8"`` or ``HeadId(2, 8)``; UsageError where there is none."""
        wanted = head_named(head, self.checkpoint.kinds)
        for entry in self.heads:
            if entry.id == wanted:
                return entry
        raise UsageError(f"this result has no head {wanted}; it has {min(self._ids)} to {max(self._ids)}.")

    @cached_property
    def _ids(self) -> frozenset[HeadId]:
        return frozenset(entry.id for entry in self.heads)

    def own(self, entry: E) -> E:
        """Return the entry; UsageError unless it is one of :attr:`heads`."""
        if isinstance(entry, type(self.heads[0])) and entry.id in self._ids:
            return entry
        raise UsageError(f"expected one of this result's heads, such as result.head('L0H0'), found {as_found(entry)}.")

    def all_own(self, entries: Iterable[E]) -> list[E]:
        """The entries; UsageError unless all of them are of :attr:`heads`."""
        try:
            listed = list(entries)
        except (TypeError, RuntimeError) as error:  # also of arrays and tensors of which no row can be read
            expected = "expected heads of this result, such as result.select('L2')"
            raise UsageError(f"{expected}, found {as_found(entries)}.") from error
        return list(map(self.own, listed))
