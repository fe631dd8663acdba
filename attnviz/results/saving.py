"""Figures with their captions, a table and a document into an output folder: how every command writes its results."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from attnviz.errors import UsageError
from attnviz.figures.captions import CAPTIONS, captions_text, read_captions
from attnviz.figures.look import Look
from attnviz.figures.rendering import FORMATS, figure_bytes
from attnviz.results.output_folder import OutputFolder

__all__ = ["Picture", "check_formats", "write_captions", "write_results"]


@dataclass(frozen=True)
class Picture:
    """A figure that can be drawn.

    Attributes:
        stem: of its file, without suffix, relative to the folder.
        caption: one honest sentence: model, text, what is shown, scale.
        draw: makes it; told whether for a vector file.
    """

    stem: str
    caption: str
    draw: Callable[[bool], Figure]


def check_formats(formats: Sequence[str]) -> None:
    """Refuse what is no list of formats, and formats that no figure can be written in.

    Raises:
        UsageError: a single name, whose letters would be taken for names, or an unknown one.
    """
    if not isinstance(formats, list | tuple):
        example = f"; write {[name.strip() for name in formats.split(',')]}" if isinstance(formats, str) else ""
        raise UsageError(f"expected a list of formats such as ['png', 'pdf'], found {formats!r}{example}.")
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise UsageError(f"unknown format {unknown[0]!r}: expected any of {', '.join(FORMATS)}.")


def write_results(
    output: OutputFolder,
    pictures: Iterable[Picture],
    formats: Sequence[str],
    look: Look,
    document: Callable[[list[str]], dict[str, Any]],
    tell: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Fill an open folder and commit it: pictures, captions.md, the document, and what was written there before.

    Args:
        output: the folder.
        pictures: what to draw, one at a time.
        formats: any of :data:`attnviz.figures.rendering.FORMATS`; none for no figures.
        look: theme and width.
        document: makes it, told of the files that are pictures.
        tell: told how many pictures are drawn.

    Returns:
        the document as it was written.

    Raises:
        OutputError: the folder cannot be written to.
        UsageError: an unknown format.
    """
    captions = _write_pictures(output, pictures, formats, look, tell)
    content = document(list(captions))
    write_captions(output, content, captions)
    return output.commit(content)


def _write_pictures(
    output: OutputFolder,
    pictures: Iterable[Picture],
    formats: Sequence[str],
    look: Look,
    tell: Callable[[int], None],
) -> dict[str, str]:
    """Draw every picture in every format into an open folder; for each file, its caption."""
    check_formats(formats)
    captions: dict[str, str] = {}
    for number, picture in enumerate(pictures if formats else (), start=1):
        for file_format in dict.fromkeys(formats):
            name = f"{picture.stem}.{file_format}"
            content = figure_bytes(picture.draw(file_format != "png"), file_format, indexed=False, look=look)
            output.write(name, content)
            captions[name] = picture.caption
        tell(number)
    return captions


def write_captions(output: OutputFolder, content: dict[str, Any], captions: dict[str, str]) -> None:
    """Write captions.md for these files and for those of an earlier run that stay in the folder."""
    if captions:
        output.write(CAPTIONS, captions_text((_earlier_captions(output, content) | captions).items()))


def _earlier_captions(output: OutputFolder, content: dict[str, Any]) -> dict[str, str]:
    """By name, the captions of figures of an earlier run of the same kind, which stay in the folder."""
    kept = output.kept(content)
    if CAPTIONS not in kept:
        return {}
    text = (output.path / CAPTIONS).read_text(encoding="utf-8", errors="replace")
    return {name: sentence for name, sentence in read_captions(text) if name in kept}
