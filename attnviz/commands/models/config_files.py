"""Where the config.json of a model lies: built in, in a folder, in the hub's cache, or on the hub; weights or not."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from attnviz.commands.models.configurations import paper_configurations, paper_of_release
from attnviz.errors import CheckpointError, UsageError
from attnviz.model.libraries import asking_hub, first_line, within
from attnviz.model.sources import BUILT_IN, HUB_DEADLINE, HUB_TIMEOUT, as_folder, built_in_folder

CONFIG = "config.json"


@dataclass(frozen=True)
class ConfigFile:
    """The config.json of a model: its name as given, ``built-in``, ``folder`` or ``hub``, and the hub's commit."""

    name: str
    kind: str
    folder: Path
    revision: str | None = None

    @property
    def path(self) -> Path:
        """The file itself."""
        return self.folder / CONFIG


def find_config(name: str) -> ConfigFile:
    """Find the config.json of a model; of a hub model that is not cached, fetch it and nothing else.

    Args:
        name: ``minilm``, ``tiny-gpt2``, a folder (or its config.json), or a hub id.

    Raises:
        CheckpointError: there is none, or the hub cannot be reached, within 10 seconds.
        UsageError: the name is empty.
    """
    if not name.strip():
        raise UsageError("NAME is empty; expected a built-in name, a folder, a hub id or the name of a paper's model.")
    if name in BUILT_IN:
        return ConfigFile(name, "built-in", built_in_folder(name) or BUILT_IN[name]().folder)
    folder = as_folder(name)
    return _on_hub(name) if folder is None else _in_folder(name, folder)


def built_in_configs() -> list[ConfigFile]:
    """Those of the built-in models that are installed."""
    return [ConfigFile(name, "built-in", folder) for name in BUILT_IN if (folder := built_in_folder(name)) is not None]


def cached_configs() -> dict[str, ConfigFile]:
    """By hub id, every model in the hub's cache whose config.json is there; nothing is asked of the hub.

    Of several revisions it is the main branch's, else the newest. HF_HOME and HF_HUB_CACHE are honoured.
    """
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except (CacheNotFound, ValueError):  # not there, or a file
        return {}
    configs = {}
    for repo in sorted(cache.repos, key=lambda repo: repo.repo_id):
        revisions = [revision for revision in repo.revisions if (revision.snapshot_path / CONFIG).is_file()]
        if repo.repo_type == "model" and revisions:
            best = max(revisions, key=lambda revision: ("main" in revision.refs, revision.last_modified))
            configs[repo.repo_id] = ConfigFile(repo.repo_id, "hub", best.snapshot_path, best.commit_hash)
    return configs


def _in_folder(name: str, folder: Path) -> ConfigFile:
    if folder.name == CONFIG and folder.is_file():
        folder = folder.parent
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        raise CheckpointError(f"expected a folder with a {CONFIG} at {folder}, found {found}.")
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder} has no {CONFIG}: expected one as transformers' save_pretrained writes it.")
    return ConfigFile(name, "folder", folder)


def _on_hub(name: str) -> ConfigFile:
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise CheckpointError(_unknown(name, f"it is no valid hub id ({first_line(error)})")) from error
    if (cached := cached_configs().get(name)) is not None:
        return cached
    if constants.HF_HUB_OFFLINE:
        reason = f"as a hub id it has no {CONFIG} in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set"
        raise CheckpointError(_unknown(name, reason))
    with asking_hub(name, None, partial(_unknown, name)):
        path = within(HUB_DEADLINE, partial(_fetch, name))
    return ConfigFile(name, "hub", path.parent, path.parent.name)


def _fetch(name: str) -> Path:
    """Ask first what the model has: that question fails at once where there is no hub, a download tries again."""
    from huggingface_hub import HfApi, hf_hub_download

    info = HfApi().model_info(name, timeout=HUB_TIMEOUT)
    if CONFIG not in [sibling.rfilename for sibling in info.siblings or []]:
        raise CheckpointError(f"the hub model {name!r} has no {CONFIG}, so it is no transformers model.")
    return Path(hf_hub_download(name, CONFIG, etag_timeout=HUB_TIMEOUT))


def _unknown(name: str, reason: str) -> str:
    papers = [known.name for known in paper_configurations()]
    released = paper_of_release(name)
    instead = f"attnviz models {released}, for its sizes" if released else "attnviz models, for all that are known here"
    return (
        f"no configuration of {name!r}: it is not a built-in name ({', '.join(BUILT_IN)}), not a folder with a "
        f"{CONFIG}, not a paper's model ({papers[0]} … {papers[-1]}), and {reason}. Type: {instead}."
    )
