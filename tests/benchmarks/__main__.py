"""The benchmark that anyone can run: ``python -m tests.benchmarks`` (needs the extras demo, test and bench).

Every figure is a ratio against a named rival or floor, medians of five runs in turn, in one session:
machines differ and are noisy, ratios much less so.
"""

import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from attnviz.figures.heatmap import HeatmapPlan
from attnviz.figures.look import PLAIN
from attnviz.figures.matrix import Labels
from tests.benchmarks.measure import RUNS, Row, functions, processes

PYTHON = sys.executable
ATTNVIZ = [PYTHON, "-m", "attnviz"]
SENTENCE = "The cat that I saw ran away"


def start_up() -> list[Row]:
    """``attnviz --help``, whole process; the limit is a number of seconds."""
    (ours, _), (floor, _) = processes([[*ATTNVIZ, "--help"], [PYTHON, "-c", "import typer"]])
    return [Row("attnviz --help", ours, "python -c 'import typer'", floor, "s", "0.25 s", ours <= 0.25)]


def whole_command() -> list[Row]:
    """``attnviz heads TEXT --figures overview`` against one eager forward pass with attentions."""
    from attnviz.model.sources import find_checkpoint

    folder = str(find_checkpoint("minilm").folder)
    with tempfile.TemporaryDirectory() as out:
        ours = [*ATTNVIZ, "heads", SENTENCE, "--figures", "overview", "-o", out]
        plain = [PYTHON, "-m", "tests.benchmarks.plain", folder, SENTENCE, "attentions"]
        (bare, _), (parsed, _), (theirs, _) = processes([[*ours, "--no-syntax"], ours, plain])
    rival = "transformers: import, load, one pass"
    return [
        _ratio("heads, overview, minilm, no parser", bare, rival, theirs, "s", 1.3),
        _ratio("heads, overview, minilm, parser", parsed, rival, theirs, "s", 1.6),
    ]


def head_pictures() -> list[Row]:
    """144 per-head PNGs and SVGs of 9 tokens against loops of new figures with the same content."""
    import seaborn

    from attnviz.figures.heatmap_files import heatmap_files

    patterns = np.random.default_rng(0).dirichlet(np.full(9, 0.2), (144, 9)).astype(np.float32)
    labels = ["[CLS]", "the", "cat", "that", "i", "saw", "ran", "away", "[SEP]"]
    titles = [(f"L{i // 12}H{i % 12}  previous-token", f"previous-token {0.5 + i / 300:.2f}") for i in range(144)]
    titles = [(title, f"{score} · uniform attention 0.12 · n = 6") for title, score in titles]

    def plans() -> Iterator[HeatmapPlan]:
        named, norm = Labels(tuple(labels), (False,) * 9), PLAIN.norm()
        for pattern, (title, evidence) in zip(patterns, titles, strict=True):
            yield HeatmapPlan(
                "head", "", title, (), evidence=evidence, values=pattern, labels=named, norm=norm, bar_norm=norm,
                bar="attention weight",
            )  # fmt: skip

    def loop(file_format: str) -> None:
        for pattern, title in zip(patterns, titles, strict=True):
            new, ax = _new_figure()
            image = _cells(ax, pattern, file_format)
            _number(ax, pattern)
            ax.set_xticks(range(9), labels, rotation=45)
            ax.set_yticks(range(9), labels)
            ax.set_title("\n".join(title))
            new.colorbar(image, label="attention weight")
            with matplotlib.rc_context({"svg.fonttype": "none"}):
                new.savefig(io.BytesIO(), format=file_format)

    def with_seaborn() -> None:
        for pattern, title in zip(patterns, titles, strict=True):
            new, ax = _new_figure()
            shown = [[_number_text(weight) for weight in row] for row in pattern]
            seaborn.heatmap(pattern, cmap="Blues", vmin=0, vmax=1, ax=ax, xticklabels=labels, yticklabels=labels,
                            annot=shown, fmt="")  # fmt: skip
            ax.set_title("\n".join(title))
            new.savefig(io.BytesIO(), format="png")

    calls = [
        lambda: list(heatmap_files(plans(), PLAIN, "png")),
        lambda: loop("png"),
        with_seaborn,
        lambda: list(heatmap_files(plans(), PLAIN, "svg")),
        lambda: loop("svg"),
    ]
    png, png_loop, sns, svg, svg_loop = functions(calls)
    return [
        _speed_up("144 head PNGs, 9 tokens", png, "matplotlib, a new figure each", png_loop, 12),
        _speed_up("144 head PNGs, 9 tokens", png, "seaborn.heatmap, a new figure each", sns, 18),
        _speed_up("144 head SVGs, 9 tokens", svg, "matplotlib, a new figure each", svg_loop, 3),
    ]


def overview_picture() -> list[Row]:
    """One PNG of 144 heads at 448 tokens against a grid of 144 subplots: time and peak memory of whole processes."""
    modes = [[PYTHON, "-m", "tests.benchmarks.overview", mode] for mode in ("attnviz", "subplots")]
    runs: dict[str, list[tuple[float, float]]] = {"attnviz": [], "subplots": []}
    for turn in range(RUNS + 1):
        for command in modes:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            if turn:
                seconds, peak = map(float, done.stdout.split())
                runs[command[-1]].append((seconds, peak))
    (ours, our_peak), (theirs, peak) = (
        tuple(statistics.median(column) for column in zip(*of, strict=True)) for of in runs.values()
    )
    rival = "matplotlib, 144 subplots with imshow"
    return [
        _speed_up("overview of 144 heads, 448 tokens", ours, rival, theirs, 2),
        _ratio("overview, 448 tokens: peak memory", our_peak, rival, peak, "MiB", 1.5),
    ]


def _new_figure() -> tuple[Figure, Axes]:
    new = Figure(figsize=(4, 3.7), dpi=150)
    FigureCanvasAgg(new)
    return new, new.add_subplot()


def _cells(ax: Axes, pattern: np.ndarray, file_format: str) -> ScalarMappable:
    """As a plain picture; in SVG as rectangles, which stay sharp."""
    if file_format == "png":
        return ax.imshow(pattern, cmap="Blues", vmin=0, vmax=1)
    edges = np.arange(len(pattern) + 1) - 0.5
    return ax.pcolormesh(edges, edges, pattern, cmap="Blues", vmin=0, vmax=1)


def _number(ax: Axes, pattern: np.ndarray) -> None:
    for (row, column), weight in np.ndenumerate(pattern):
        if shown := _number_text(weight):
            ax.text(column, row, shown, ha="center", va="center", fontsize=7, color="w" if weight > 0.5 else "k")


def _number_text(weight: float) -> str:
    return f"{weight:.2f}".removeprefix("0") if weight >= 0.005 else ""


def long_text() -> list[Row]:
    """Models of the sizes of GPT-2 small and SmolLM2-135M (random weights) on 1,024 tokens, no figures."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    smollm2 = LlamaConfig(
        vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    return [
        *_long_text("GPT-2 small", GPT2LMHeadModel(GPT2Config()), 1.2),
        *_long_text("SmolLM2-135M", LlamaForCausalLM(smollm2), 1.3),
    ]


def _long_text(name: str, model: object, memory: float) -> list[Row]:
    from tests.models import gpt2_tokenizer, save_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(model, gpt2_tokenizer(), Path(folder))
        text = "cat" + " cat" * 1023
        ours, plain = [], []
        for turn in range(RUNS + 1):
            for results, arguments in (
                (ours, ["tests.benchmarks.long_text", folder, text]),
                (plain, ["tests.benchmarks.plain", folder, text, "none"]),
            ):
                done = subprocess.run([PYTHON, "-m", *arguments], capture_output=True, text=True, check=True)
                if turn:
                    results.append(tuple(map(float, done.stdout.split())))
    (our_time, our_peak), (time, peak) = (
        tuple(statistics.median(column) for column in zip(*of, strict=True)) for of in (ours, plain)
    )
    rival = "eager forward pass, no attentions"
    return [
        _ratio(f"{name}, 1,024 tokens: peak memory", our_peak, rival, peak, "MiB", memory),
        _ratio(f"{name}, 1,024 tokens: time", our_time, rival, time, "s", 2.5),
    ]


def whole_treebank() -> list[Row]:
    """A profile of minilm on a treebank, everything counted, against forward passes of the same sentences."""
    from attnviz.commands.profile.measure import profile_heads
    from attnviz.corpora.batches import batches
    from attnviz.corpora.parsing import ready
    from attnviz.corpora.reading import open_corpus, read_texts
    from attnviz.model.checkpoint import load_checkpoint
    from attnviz.model.sources import find_checkpoint

    path = Path(os.environ.get("TREEBANK", "../shared/data/ud/en_ewt-ud-dev.conllu"))
    if not path.exists():
        sys.exit(f"expected a treebank at {path}; name one (.conllu) in the environment variable TREEBANK.")
    checkpoint = load_checkpoint(find_checkpoint("minilm"), torch.device("cpu"), torch.float32)
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    texts = [text for text in read_texts(open_corpus(path), None) if ready(text, None) is not None]
    prepared = [batch.inputs for batch in batches(checkpoint, texts, 32)]
    model.set_attn_implementation("eager")  # type: ignore[operator]

    @torch.inference_mode()
    def floor() -> None:
        for inputs in prepared:
            model(**inputs, output_attentions=True)

    @torch.inference_mode()
    def loop() -> None:
        for text in texts:
            model(**tokenizer(text.text, return_tensors="pt"), output_attentions=True)

    ours, without, bare, one_by_one = functions([
        lambda: profile_heads(checkpoint, [path]), lambda: profile_heads(checkpoint, [path], examples=0), floor, loop,
    ])  # fmt: skip
    with tempfile.TemporaryDirectory() as out:
        command = [*ATTNVIZ, "profile", str(path), "--no-figures", "--no-store", "-o", out]
        (_, all_of_it), (_, a_part) = processes([command, [*command, "--limit", "300"]], runs=1)
    what = f"profile of minilm, {len(texts):,} sentences"
    return [
        _ratio(f"{what}: peak memory", all_of_it, "the first 300 of them", a_part, "MiB", 1.2),
        _ratio(f"{what}: examples", ours, "the same without examples", without, "s", 1.15),
        _ratio(what, ours, "batched eager passes with attentions", bare, "s", 1.67),
        _speed_up(what, ours, "one sentence at a time, attentions", one_by_one, 1.3),
    ]


def interactive_page() -> list[Row]:
    """The page of all heads against the same patterns as JSON, which other tools' views hold; limits are absolute."""
    import attnviz
    from examples.make_gallery import PAGE, PARAGRAPH
    from tests.hand_made import hand_made

    real = attnviz.analyze(f"{PAGE} {PARAGRAPH}", "minilm", device="cpu", syntax=False)
    every = torch.stack([pattern for _, pattern in real.patterns()])
    rows, rival = [], "json.dumps of the patterns"
    for layers, heads, n, causal, largest in ((6, 72, 448, False, 15.0), (30, 270, 128, True, 3.0)):
        cut = every[torch.arange(heads) % len(every), :n, :n]
        cut = cut.tril() if causal else cut  # as many heads as SmolLM-135M has
        patterns = (cut / cut.sum(-1, keepdim=True)).reshape(layers, -1, n, n)
        analysis = hand_made(labels=real.units.labels[:n], special=(0,), patterns=patterns, causal=causal)
        begin = time.perf_counter()
        lists = sum(len(json.dumps(pattern.tolist())) for _, pattern in analysis.patterns()) / 1e6
        theirs = time.perf_counter() - begin
        (ours,) = functions([analysis.page])
        size, what = len(analysis.page()) / 1e6, f"page of {heads}{' causal' * causal} heads, {n} tokens"
        rows.append(Row(f"{what}: time", ours, rival, theirs, "s", "3 s", ours <= 3))
        rows.append(Row(f"{what}: file", size, rival, lists, "MB", f"{largest:g} MB", size <= largest))
    return rows


def ablation() -> list[Row]:
    """All heads of a BERT-base-sized model removed one at a time, against as many passes of a sentence each."""
    from tests.benchmarks.ablation import ablation_seconds

    what = "144 heads, BERT-base size, 32 sentences"
    return [
        _speed_up(f"ablate: {what}", *ablation_seconds(curve=False, gradient=False), 3),
        _speed_up(f"with sets by two methods, curve and gradients: {what}", *ablation_seconds(), 1.5),
    ]


def _ratio(what: str, ours: float, rival: str, theirs: float, unit: str, limit: float) -> Row:
    return Row(what, ours, rival, theirs, unit, f"at most {limit}x", ours / theirs <= limit)


def _speed_up(what: str, ours: float, rival: str, theirs: float, limit: float) -> Row:
    return Row(what, ours, rival, theirs, "s", f"at most 1/{limit:g}", theirs / ours >= limit)


def main() -> None:
    """Run all of them, or those that are named, by the names of the functions above."""
    matplotlib.use("Agg")
    calls = (
        start_up, whole_command, head_pictures, overview_picture, interactive_page, long_text, whole_treebank, ablation,
    )  # fmt: skip
    known = {call.__name__: call for call in calls}
    wanted = sys.argv[1:] or list(known)
    table = Table(title=f"Medians of {RUNS} runs in turn", title_justify="left")
    for column in ("what", "attnviz", "rival", "rival's", "ratio", "limit", ""):
        table.add_column(column)
    rows = [row for name in wanted for row in known[name]()]
    for row in rows:
        ratio = row.ours / row.theirs
        shown = f"{ratio:.2f}" if ratio > 0.3 else f"1/{1 / ratio:.1f}"
        theirs = f"{row.theirs:.2f} {row.unit}"
        table.add_row(
            row.what,
            f"{row.ours:.2f} {row.unit}",
            row.rival,
            theirs,
            shown,
            row.limit,
            "ok" if row.passed else "MISSED",
        )
    Console(width=140).print(table)
    sys.exit(not all(row.passed for row in rows))


if __name__ == "__main__":
    main()
