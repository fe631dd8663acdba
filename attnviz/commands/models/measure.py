"""The configurations of models: those that are asked for, or all that are known on this machine."""

from collections.abc import Callable, Iterable
from pathlib import Path

from attnviz.commands.models.config_files import ConfigFile, built_in_configs, cached_configs, find_config
from attnviz.commands.models.config_reading import built_in_configuration, read_configuration
from attnviz.commands.models.configurations import Configuration
from attnviz.commands.models.papers import paper_configuration, paper_configurations
from attnviz.errors import CheckpointError, UsageError
from attnviz.model.sources import BUILT_IN, as_folder

__all__ = ["model_configurations"]


def model_configurations(
    names: str | Path | Iterable[str | Path] | None = (), tell: Callable[[int, int], None] = lambda _, __: None
) -> list[Configuration]:
    """Sizes and parameters of models, from their configs and from papers; no weights are loaded.

    Args:
        names: built-in names, folders, hub ids, and names of papers' models (``bert-large``, ``gpt2-xl``,
            ``gpt3-175b``); one alone needs no list. A name that is both a paper's model and in the hub's cache gives
            both. None or an empty list: the built-in models, all in the hub's cache, and the papers'.
        tell: told how many are read, of how many.

    Raises:
        CheckpointError: a name leads nowhere, or its config cannot be read.
        UsageError: a name is empty, or no name at all.
    """
    wanted = list(dict.fromkeys(_names(names)))
    if not wanted:
        return _known_here(tell)
    configurations: list[Configuration] = []
    for count, name in enumerate(wanted):
        tell(count, len(wanted))
        configurations += _named(name)
    return configurations


def _names(names: object) -> list[str]:
    """Each name as text; what is none is refused before anything is read."""
    several = [names] if isinstance(names, str | Path) else [] if names is None else names
    if isinstance(several, bytes) or not isinstance(several, Iterable):
        raise UsageError(f"expected a list of models such as ['minilm', 'gpt2-xl'], found {names!r}.")
    listed = list(several)
    for name in listed:
        if not isinstance(name, str | Path):
            raise UsageError(f"expected names or folders of models, found {name!r} among them.")
    return [str(name) for name in listed]


def _named(name: str) -> list[Configuration]:
    paper = paper_configuration(name)
    if paper is None or name in BUILT_IN or as_folder(name) is not None:
        return [_read(find_config(name))]
    cached = cached_configs().get(name)
    return [paper] if cached is None else [paper, _read(cached)]


def _known_here(tell: Callable[[int, int], None]) -> list[Configuration]:
    """A config in the cache that cannot be read is listed with the reason, and hides no other."""
    configurations = [built_in_configuration(file) for file in built_in_configs()]
    cached = cached_configs()
    for count, file in enumerate(cached.values()):
        tell(count, len(cached))
        try:
            configurations.append(read_configuration(file))
        except CheckpointError as error:
            configurations.append(Configuration(file.name, file.kind, file.revision, reason=str(error)))
    return configurations + paper_configurations()


def _read(file: ConfigFile) -> Configuration:
    return built_in_configuration(file) if file.kind == "built-in" else read_configuration(file)
