"""The benchmark that anyone can run: ``python -m tests.benchmarks`` (needs the extras demo, test and bench).

Every figure is a ratio against a named rival or floor, medians of five runs in turn, in one session:
machines differ and are noisy, ratios much less so.
"""

import importlib.util
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from transformers import GPT2Config, GPT2LMHeadModel

from attnviz.figures.heatmap import HeatmapPlan
from attnviz.figures.matrix import Labels
from attnviz.figures.style import PLAIN
from tests.benchmarks.in_browser import MISSING, paint_and_switch
from tests.benchmarks.lengths import growth, in_memory, long_text, longest_text, peers
from tests.benchmarks.measure import RUNS, Row, at_most, below, faster, functions, printed, processes
from tests.support.models import gpt2_tokenizer

if TYPE_CHECKING:
    import attnviz
    from attnviz.models.checkpoint import Checkpoint

PYTHON = sys.executable
ATTNVIZ = [PYTHON, "-m", "attnviz"]
SENTENCE = "The cat that I saw ran away"


def start_up() -> list[Row]:
    """``attnviz --help``, whole process; the limit is a number of seconds."""
    (ours, *_), (floor, *_) = processes([[*ATTNVIZ, "--help"], [PYTHON, "-c", "import typer"]])
    return [below("attnviz --help", ours, "python -c 'import typer'", floor, "s", 0.15)]


def whole_command() -> list[Row]:
    """``attnviz heads TEXT --figures overview`` against one eager forward pass with attentions."""
    from attnviz.models.sources import find_checkpoint

    folder = str(find_checkpoint("minilm").folder)
    with tempfile.TemporaryDirectory() as out:
        ours = [*ATTNVIZ, "heads", SENTENCE, "--figures", "overview", "-o", out]
        plain = [PYTHON, "-m", "tests.benchmarks.long_text", "attentions", folder, "7"]
        (bare, *_), (parsed, *_), (theirs, *_) = processes([[*ours, "--no-syntax"], ours, plain])
    rival = "transformers: import, load, one pass"
    return [
        at_most("heads, overview, minilm, no parser", bare, rival, theirs, "s", 1.2),
        at_most("heads, overview, minilm, parser", parsed, rival, theirs, "s", 1.4),
    ]


def vector_pictures() -> list[Row]:
    """``attnviz heads TEXT --figures heads`` of 72 heads as SVGs against PNGs: CPU seconds of whole processes."""
    with tempfile.TemporaryDirectory() as out:
        command = [*ATTNVIZ, "heads", SENTENCE, "--figures", "heads", "--no-syntax", "-o", out, "--format"]
        (_, _, svg), (_, _, png) = processes([[*command, "svg"], [*command, "png"]], runs=min(RUNS, 3))
    return [at_most("72 head SVGs of minilm: CPU time", svg, "as PNGs", png, "s", 1.3)]


def head_pictures() -> list[Row]:
    """144 per-head PNGs and SVGs of 9 tokens against loops of new figures with the same content."""
    import seaborn

    from attnviz.figures.heatmap import heatmap_files

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

    def new_figure() -> tuple[Figure, Axes]:
        new = Figure(figsize=(4, 3.7), dpi=150)
        FigureCanvasAgg(new)
        return new, new.add_subplot()

    def number(weight: float) -> str:
        return f"{weight:.2f}".removeprefix("0") if weight >= 0.005 else ""

    def loop(file_format: str) -> None:
        edges = np.arange(10) - 0.5
        for pattern, title in zip(patterns, titles, strict=True):
            new, ax = new_figure()
            if file_format == "png":
                image: ScalarMappable = ax.imshow(pattern, cmap="Blues", vmin=0, vmax=1)
            else:  # rectangles, which stay sharp
                image = ax.pcolormesh(edges, edges, pattern, cmap="Blues", vmin=0, vmax=1)
            for (row, column), weight in np.ndenumerate(pattern):
                if shown := number(weight):
                    ax.text(
                        column, row, shown, ha="center", va="center", fontsize=7, color="w" if weight > 0.5 else "k"
                    )
            ax.set_xticks(range(9), labels, rotation=45)
            ax.set_yticks(range(9), labels)
            ax.set_title("\n".join(title))
            new.colorbar(image, label="attention weight")
            with matplotlib.rc_context({"svg.fonttype": "none"}):
                new.savefig(io.BytesIO(), format=file_format)

    def with_seaborn() -> None:
        for pattern, title in zip(patterns, titles, strict=True):
            new, ax = new_figure()
            numbers = [[number(weight) for weight in row] for row in pattern]
            shown = {"xticklabels": labels, "yticklabels": labels, "annot": numbers, "fmt": ""}
            seaborn.heatmap(pattern, cmap="Blues", vmin=0, vmax=1, ax=ax, **shown)
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
        faster("144 head PNGs, 9 tokens", png, "matplotlib, a new figure each", png_loop, 20),
        faster("144 head PNGs, 9 tokens", png, "seaborn.heatmap, a new figure each", sns, 30),
        faster("144 head SVGs, 9 tokens", svg, "matplotlib, a new figure each", svg_loop, 10),
    ]


def overview_picture() -> list[Row]:
    """One PNG of 144 heads at 448 tokens against a grid of 144 subplots: time and peak memory of whole processes."""
    commands = [[PYTHON, "-m", "tests.benchmarks.overview", mode] for mode in ("attnviz", "subplots")]
    (ours, our_peak), (theirs, peak) = printed(commands)
    rival = "matplotlib, 144 subplots with imshow"
    return [
        faster("overview of 144 heads, 448 tokens", ours, rival, theirs, 2),
        at_most("overview, 448 tokens: peak memory", our_peak, rival, peak, "MiB", 1.5),
    ]


def whole_treebank() -> Iterator[Row]:
    """A profile of minilm, against forward passes of the same sentences, and the memory that a whole treebank takes.

    Against batched passes stands what is counted of the model; against one sentence at a time everything, with examples
    and an untrained copy on a quarter of the sentences, as of the whole treebank.
    """
    from attnviz.commands.profile import measure
    from attnviz.inputs.batches import batches
    from attnviz.inputs.reading import open_corpus, read_texts, ready

    path, checkpoint = _treebank(), _minilm()
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    n = 1000
    texts = list(islice((text for text in read_texts(open_corpus(path), None) if ready(text, None) is not None), n))
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

    with patch.object(measure, "CONTROL_TEXTS", n // 4):
        everything = partial(measure.profile_heads, checkpoint, [path], limit=n)
        counted = partial(everything, control=False, examples=0)
        ours, whole, bare, one_by_one = functions([counted, everything, floor, loop], runs=min(RUNS, 3))
    what = f"profile of minilm, {len(texts):,} sentences"
    yield at_most(f"{what}, no control, no examples", ours, "batched eager passes with attentions", bare, "s", 1.45)
    yield faster(what, whole, "one sentence at a time, attentions", one_by_one, 1.3)
    with tempfile.TemporaryDirectory() as out:
        command = [*ATTNVIZ, "profile", str(path), "--figures", "none", "--no-store", "-o", out]
        (_, all_of_it, _), (_, a_part, _) = processes([command, [*command, "--limit", "300"]], runs=1, warm_up=False)
    yield at_most("profile of minilm, a whole treebank: peak memory", all_of_it, "300 sentences", a_part, "MiB", 1.2)


def examples() -> list[Row]:
    """What examples cost a profile of minilm: CPU time on one thread, which other processes hardly change."""
    from attnviz.commands.profile.measure import profile_heads

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    profile = partial(profile_heads, _minilm(), [_treebank()], limit=500)
    ours, plain = functions([profile, partial(profile, examples=0)], clock=time.process_time)
    torch.set_num_threads(threads)
    what = "profile of minilm, 500 sentences, 8 examples: CPU time"
    return [at_most(what, ours, "without examples", plain, "s", 1.15)]


def _treebank() -> Path:
    path = Path(os.environ.get("TREEBANK", "../shared/data/ud/en_ewt-ud-dev.conllu"))
    if not path.exists():
        sys.exit(f"expected a treebank at {path}; name one (.conllu) in the environment variable TREEBANK.")
    return path


def _minilm() -> "Checkpoint":
    from attnviz.models.checkpoint import load_checkpoint
    from attnviz.models.sources import find_checkpoint

    return load_checkpoint(find_checkpoint("minilm"), torch.device("cpu"), torch.float32)


def interactive_page() -> Iterator[Row]:
    """The page of all heads against bertviz's model view of the same patterns; limits are absolute."""
    import attnviz
    from examples.make_gallery import PAGE, PARAGRAPH
    from tests.support.hand_made import hand_made

    real = attnviz.analyze(f"{PAGE} {PARAGRAPH}", "minilm", device="cpu", syntax=False)
    every = torch.stack([pattern for _, pattern in real.patterns()])
    for layers, heads, n, causal, largest in (
        (6, 72, 448, False, 15.0),
        (30, 270, 128, False, 3.0),
        (30, 270, 128, True, 3.0),
    ):
        cut = every[torch.arange(heads) % len(every), :n, :n]
        cut = cut.tril() if causal else cut  # as many heads as SmolLM-135M has
        patterns = (cut / cut.sum(-1, keepdim=True)).reshape(layers, -1, n, n)
        analysis = hand_made(labels=real.units.labels[:n], special=(0,), patterns=patterns, causal=causal)
        rival, theirs, other = _model_view(patterns, real.units.labels[:n])
        (ours,) = functions([analysis.page])
        size, what = len(analysis.page()) / 1e6, f"page of {heads}{' causal' * causal} heads, {n} tokens"
        yield below(f"{what}: time", ours, rival, theirs, "s", 3)
        yield below(f"{what}: file", size, rival, other, "MB", largest)
        if n == 448 and not MISSING:
            yield from _in_browser(what, analysis)


def _model_view(patterns: torch.Tensor, labels: Sequence[str]) -> tuple[str, float, float]:
    """What is measured against, seconds, and MB: bertviz once, since it takes long; without it the numbers as JSON."""
    begin = time.perf_counter()
    if importlib.util.find_spec("bertviz") is None:
        size = sum(len(json.dumps(pattern.tolist())) for pattern in patterns)
        return "json.dumps of the patterns", time.perf_counter() - begin, size / 1e6
    from bertviz import model_view  # type: ignore[import-not-found]

    page = model_view([layer[None] for layer in patterns], list(labels), html_action="return")
    return "bertviz.model_view, one run", time.perf_counter() - begin, len(page.data) / 1e6


def _in_browser(what: str, analysis: "attnviz.Analysis") -> list[Row]:
    """In Chromium, where it is installed; bertviz shows nothing there without a network."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "heads.html"
        page.write_text(analysis.page(), encoding="utf-8")
        heads = [str(head.id) for head in analysis.heads[5::7]]
        (paint, floor), (switch, frame) = paint_and_switch(page, heads)
    return [
        below(f"{what}: first paint", paint, "a line of text", floor, "s", 1.5),
        below(f"{what}: another head", switch, "one frame", frame, "s", 0.1),
    ]


def ablation() -> Iterator[Row]:
    """All heads of a model as wide as BERT-base removed one at a time, against as many passes of a sentence each."""
    from tests.benchmarks.ablation import HEADS, SENTENCES, ablation_seconds

    what = f"{HEADS} heads, as wide as BERT-base, {SENTENCES} sentences"
    yield faster(f"ablate: {what}", *ablation_seconds(curve=False, gradient=False), 3)
    yield faster(f"with sets by two methods, curve and gradients: {what}", *ablation_seconds(), 1.5)


def patching() -> Iterator[Row]:
    """All heads of GPT-2 small's size on one pair of prompts, verified on both, against as many plain passes.

    And those of tiny-gpt2 on a table of pairs against hooks: CPU time on one thread.
    """
    import attnviz
    from tests.benchmarks.patching import HEADS, PAIRS, patching_calls

    heads, batch = 144, 16
    clean, corrupt = (f"the cat saw the dog and {name} ran to the house of the" for name in ("it", "he"))
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(initializer_range=0.2)).eval()
    tokenizer = gpt2_tokenizer()
    inputs = {name: value.repeat(batch, 1) for name, value in tokenizer(corrupt, return_tensors="pt").items()}

    @torch.inference_mode()
    def plain() -> None:
        for _ in range(heads // batch):
            model(**inputs, use_cache=False, logits_to_keep=1)

    ours, theirs = functions([lambda: attnviz.patch(clean, model, tokenizer=tokenizer, corrupt=corrupt), plain])
    rival = f"{heads} plain passes in batches of {batch}"
    yield at_most(f"patch: {heads} heads of GPT-2 small's size", ours, rival, theirs, "s", 1.2)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ours, theirs = functions(patching_calls(), clock=time.process_time)
    torch.set_num_threads(threads)
    rival = "a batched loop of hooks, also from another pair"
    yield at_most(f"patch: {PAIRS} pairs × {HEADS} heads of tiny-gpt2, CPU time", ours, rival, theirs, "s", 1.1)


def circuits() -> Iterator[Row]:
    """Composition and copying of GPT-2 small's size, against full products; memory against the weights."""
    [(ours, theirs, weights, peak)] = printed([[PYTHON, "-m", "tests.benchmarks.circuits"]], runs=1, warm_up=False)
    yield faster("circuits: 144 heads of GPT-2 small's size", ours, "d_model × d_model products a pair", theirs, 5)
    yield at_most("circuits: memory", peak / 2**20, "the weights", weights / 2**20, "MiB", 1.5)


def main() -> None:
    """Run all of them, or those that are named, by the names of the functions above."""
    matplotlib.use("Agg")
    calls = (
        start_up, whole_command, vector_pictures, head_pictures, overview_picture, interactive_page, in_memory,
        long_text, growth, longest_text, peers, whole_treebank, examples, ablation, patching, circuits,
    )  # fmt: skip
    known = {call.__name__: call for call in calls}
    wanted = sys.argv[1:] or list(known)
    print(f"Medians of {RUNS} runs in turn: the ratio, its limit, attnviz's own figure and the rival's")
    passed = True
    for row in (row for name in wanted for row in known[name]()):
        ratio = row.ours / row.theirs
        shown = f"{ratio:.2f}" if ratio > 0.3 else f"1/{1 / ratio:.1f}"
        figures = f"{row.what}: {row.ours:.2f} {row.unit}; {row.rival}: {row.theirs:.2f} {row.unit}"
        print(f"{'ok' if row.passed else 'MISSED':<6} {shown:>7}  {row.limit:<13}  {figures}", flush=True)
        passed &= row.passed
    sys.exit(not passed)


if __name__ == "__main__":
    main()
