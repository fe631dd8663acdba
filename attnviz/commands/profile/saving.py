"""A profile into a folder: its document, its table, its figures; for the command line and for Python."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attnviz.arguments import check_switch
from attnviz.commands.profile.document import PROFILE, profile_document
from attnviz.commands.profile.drawing import profile_files
from attnviz.commands.profile.profiling import Profile
from attnviz.results.output_folder import OutputFolder, check_folder
from attnviz.results.saving import check_formats
from attnviz.version import __version__

__all__ = ["save_profile", "write_profile"]


def save_profile(
    profile: Profile, folder: str | Path, *, figures: bool = True, formats: Sequence[str] = ("png",)
) -> dict[str, Any]:
    """Write what ``attnviz profile`` writes: profile.json, profile.csv and, where wanted, the figures.

    Args:
        profile: what was measured.
        folder: made where there is none.
        figures: whether to draw.
        formats: any of ``png``, ``svg``, ``pdf``.

    Returns:
        the document of profile.json.

    Raises:
        OutputError: the folder cannot be written to, or holds files of these names that attnviz did not write.
        UsageError: no folder or list of formats, or an unknown format.
    """
    check_switch("figures", figures)
    check_folder(folder)
    check_formats(formats)
    with OutputFolder(Path(folder), PROFILE) as output:
        return write_profile(output, profile, formats if figures else ())


def write_profile(
    output: OutputFolder, profile: Profile, formats: Sequence[str], tell: Callable[[int], None] = lambda _: None
) -> dict[str, Any]:
    """The same into a folder that is open already.

    Args:
        output: the folder, laid out for a profile.
        profile: what was measured.
        formats: of the figures; none for no figures.
        tell: told how many figures are drawn.

    Returns:
        the document of profile.json.

    Raises:
        OutputError: the disk is full, or the like.
    """
    names = []
    files = profile_files(profile, profile.head_distances, formats, profile.queries_compared) if formats else ()
    for name, content in files:
        output.write(name, content)
        names.append(name)
        tell(len(names))
    return output.commit(profile_document(profile, __version__, names))
