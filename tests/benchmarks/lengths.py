"""Rows of the benchmark on long texts: models of the sizes that people use, with random weights."""

import importlib.util
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests.benchmarks.measure import RUNS, Row, processes
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint

Figures = tuple[float, float]
"""Seconds and MiB, medians."""

EAGER, SDPA = "an eager pass, nothing kept", "an sdpa pass, nothing kept"


def smollm2(n: int) -> object:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, max_position_embeddings=n, tie_word_embeddings=True,
        )
    )  # fmt: skip


def minilm(n: int) -> object:
    return BertModel(
        BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536, max_position_embeddings=n)
    )


SIZES: dict[str, Callable[[int], object]] = {
    "SmolLM2-135M": smollm2,
    "GPT-2 small": lambda n: GPT2LMHeadModel(GPT2Config(n_positions=n)),
    "BERT-base": lambda n: BertModel(BertConfig(max_position_embeddings=n)),
    "MiniLM": minilm,
}


@contextmanager
def checkpoint(size: str, n: int) -> Iterator[str]:
    """A folder with a model of that size."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = bert_tokenizer() if size in ("BERT-base", "MiniLM") else gpt2_tokenizer()
        save_checkpoint(SIZES[size](n), tokenizer, Path(folder))
        yield folder


def measured(folder: str, n: int, *whats: str, runs: int = RUNS) -> list[Figures]:
    """Of each way, in turn, after one run to warm up where there are several."""
    found: dict[str, list[Figures]] = {what: [] for what in whats}
    for turn in range(runs == 1, runs + 1):
        for what in whats:
            done = subprocess.run(
                [sys.executable, "-m", "tests.benchmarks.long_text", what, folder, str(n)],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            if turn:
                seconds, peak = map(float, done.stdout.split())
                found[what].append((seconds, peak))
    return [
        (statistics.median(s for s, _ in figures), statistics.median(m for _, m in figures))
        for figures in found.values()
    ]


def ratio(what: str, ours: float, rival: str, theirs: float, unit: str, limit: float) -> Row:
    return Row(what, ours, rival, theirs, unit, f"at most {limit}x", ours / theirs <= limit)


def long_text() -> Iterator[Row]:
    """Every head verified and measured, no figures and no parser, against passes that keep nothing."""
    with checkpoint("SmolLM2-135M", 2048) as folder:
        ours, eager, sdpa = measured(folder, 2048, "analyze", "eager", "sdpa")
        yield ratio("SmolLM2-135M, 2,048 tokens: time", ours[0], EAGER, eager[0], "s", 0.9)
        yield ratio("SmolLM2-135M, 2,048 tokens: peak memory", ours[1], SDPA, sdpa[1], "MiB", 1.25)
    for size, n, limit in (("BERT-base", 512, 1.5), ("GPT-2 small", 512, 1.7), ("GPT-2 small", 1024, 1.4)):
        with checkpoint(size, n) as folder:
            ours, eager = measured(folder, n, "analyze", "eager")
            yield ratio(f"{size}, {n:,} tokens: time", ours[0], EAGER, eager[0], "s", limit)


def growth() -> Iterator[Row]:
    """What twice the length costs, and what the parser costs."""
    with checkpoint("SmolLM2-135M", 4096) as folder:
        [short], [long] = (measured(folder, n, "analyze", runs=min(RUNS, 3)) for n in (2048, 4096))
        yield ratio("SmolLM2-135M, 4,096 tokens: time", long[0], "2,048 tokens", short[0], "s", 4.5)
        yield ratio("SmolLM2-135M, 4,096 tokens: peak memory", long[1], "2,048 tokens", short[1], "MiB", 2.2)
        plain, parsed = measured(folder, 1500, "analyze", "analyze-parsed", runs=min(RUNS, 3))
        yield ratio("SmolLM2-135M, 1,500 words, with the parser: time", parsed[0], "without", plain[0], "s", 1.18)


def longest_text() -> Iterator[Row]:
    """8,192 tokens from the command line, overview and page included."""
    from transformers import AutoTokenizer

    from tests.benchmarks.long_text import text_of

    with checkpoint("SmolLM2-135M", 8192) as folder, tempfile.TemporaryDirectory() as out:
        text = text_of(8192, AutoTokenizer.from_pretrained(folder))
        command = [sys.executable, "-m", "attnviz", "heads", text, "-m", folder, "--no-syntax", "-o", out]
        [(seconds, peak)] = processes([[*command, "--figures", "overview,page"]], runs=1, warm_up=False)
        what = "SmolLM2-135M, 8,192 tokens, overview and page"
        yield Row(f"{what}: peak memory", peak, "a limit", 3072.0, "MiB", "3072 MiB", peak <= 3072)
        yield Row(f"{what}: time", seconds, "a limit", 1800.0, "s", "1800 s", seconds <= 1800)


def peers() -> Iterator[Row]:
    """The pages of others, and keeping all patterns, which is what they start from."""
    for n, rivals in ((512, ["bertviz", "circuitsvis", "attentions"]), (2048, ["attentions"])):
        with checkpoint("MiniLM", n) as folder, tempfile.TemporaryDirectory() as out:
            wanted = [rival for rival in rivals if rival == "attentions" or importlib.util.find_spec(rival)]
            figures = {what: _page(what, folder, n, Path(out)) for what in ["page", *wanted]}
            ours, our_peak, our_size = figures["page"]
            for rival in wanted:
                theirs, peak, size = figures[rival]
                name = "all patterns kept (output_attentions)" if rival == "attentions" else rival
                limits = (8.0, 1.1, 0.0) if rival == "attentions" else (1.0, 0.75, 0.5)
                what = f"MiniLM's size, {n:,} tokens, page of all heads"
                yield ratio(f"{what}: time", ours, name, theirs, "s", limits[0])
                yield ratio(f"{what}: peak memory", our_peak, name, peak, "MiB", limits[1])
                if size:
                    yield ratio(f"{what}: file", our_size, name, size, "MB", limits[2])


def _page(what: str, folder: str, n: int, out: Path) -> tuple[float, float, float]:
    """Seconds, MiB and MB of a page; 0 MB where none is written."""
    page = out / f"{what}.html"
    command: Sequence[str] = [sys.executable, "-m", "tests.benchmarks.long_text", what, folder, str(n), str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, peak = map(float, done.stdout.split())
    return seconds, peak, page.stat().st_size / 1e6 if page.exists() else 0.0
