"""Regenerates examples/gallery: ``python examples/make_gallery.py TREEBANK`` (needs the extra "demo").

TREEBANK is the dev part of UD English EWT (en_ewt-ud-dev.conllu), for the pictures of a profile and of ablations;
without it those are left as they are.

The files are byte-identical from run to run with the versions of .ci/constraints.txt.
"""

import contextlib
import copy
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import attnviz
from attnviz.figures import Style

GALLERY = Path(__file__).parent / "gallery"

SENTENCE = "The cat that I saw ran away"
PARAGRAPH = (  # Lewis Carroll, Alice's Adventures in Wonderland (1865)
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: "
    "once or twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it."
)
PAGE = (
    PARAGRAPH + " “And what is the use of a book,” thought Alice “without pictures or conversations?” So she was "
    "considering in her own mind (as well as she could, for the hot day made her feel very sleepy and stupid), whether "
    "the pleasure of making a daisy-chain would be worth the trouble of getting up and picking the daisies, when "
    "suddenly a White Rabbit with pink eyes ran close by her. There was nothing so very remarkable in that; nor did "
    "Alice think it so very much out of the way to hear the Rabbit say to itself, “Oh dear! Oh dear! I shall be late!” "
    "(when she thought it over afterwards, it occurred to her that she ought to have wondered at this, but at the time "
    "it all seemed quite natural); but when the Rabbit actually took a watch out of its waistcoat-pocket, and looked "
    "at it, and then hurried on, Alice started to her feet, for it flashed across her mind that she had never before "
    "seen a rabbit with either a waistcoat-pocket, or a watch to take out of it, and burning with curiosity, she ran "
    "across the field after it, and fortunately was just in time to see it pop down a large rabbit-hole under the "
    "hedge. In another moment down went Alice after it, never once considering how in the world "
    "she was to get out again. The rabbit-hole went straight on like a tunnel for some way, and then dipped suddenly "
    "down, so suddenly that Alice had not a moment to think about stopping herself before she found herself falling "
    "down a very deep well. Either the well was very deep, or she fell very slowly, for she had plenty of time as she "
    "went down to look about her and to wonder what was going to happen next."
)
HALF_A_PAGE = PAGE[len(PARAGRAPH) + 1 : len(PARAGRAPH) + 640].rpartition(" ")[0]

PETS = "The boy ate an apple, the girl read a very old book and the dog quickly chased the big cat"

COUNTING = "one two three four five one two three four five"

# model, text, heads that have pictures of their own; the folder is named by model and tokens
VIEWS = (
    ("minilm", SENTENCE, ["L0H2", "L1H8"]),
    ("minilm", PARAGRAPH, ["L1H8", "L2H0"]),
    ("minilm", PAGE, ["L1H8", "L2H0"]),
    ("tiny-gpt2", COUNTING, ["L0H2", "L1H0"]),
    ("tiny-gpt2", PARAGRAPH, ["L0H2", "L1H0"]),
    ("tiny-gpt2", PARAGRAPH + " " + HALF_A_PAGE, ["L0H2", "L1H0"]),  # as much as its 256 positions hold
)

# folder, text, options of analyze(), of save()
STYLES = (
    ("words", "Unbelievably, the antidisestablishmentarians agreed", {"words": True}, {}),
    ("dark", SENTENCE, {}, {"style": Style("dark")}),
    ("log", SENTENCE, {}, {"style": Style(scale="log"), "drop_special": True}),
    ("column", SENTENCE, {}, {"style": Style(width=3.3)}),
)


def draw(name: str, result: Any, *more: dict[str, Any], **choices: Any) -> None:
    """The pictures of a result in a new folder, with captions and without its numbers; of ``more`` runs, too."""
    folder, captions = GALLERY / name, ["# Captions"]
    shutil.rmtree(folder, ignore_errors=True)
    for each in (choices, *more):
        with tempfile.TemporaryDirectory() as scratch:
            run = Path(scratch) / "run"
            for picture in result.save(run, **each)["figures"]:
                (folder / picture).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(run / picture, folder / picture)
            if (run / "captions.md").exists():  # a page alone has none
                captions += (run / "captions.md").read_text(encoding="utf-8").strip().split("\n\n")[1:]
    if len(captions) > 1:
        (folder / "captions.md").write_text("\n\n".join(captions) + "\n", encoding="utf-8")


def draw_views() -> None:
    for model, text, heads in VIEWS:
        analysis = attnviz.analyze(text, model, device="cpu")
        name, of_heads = f"{model}-{len(analysis.tokens)}", {"select": heads, "figures": ["heads", "lines"]}
        draw(name, analysis, of_heads, figures=["overview", "map", "mean"], maps=["entropy", "sink"])
        print(name)


def draw_styles() -> None:
    for name, text, options, style in STYLES:
        analysis = attnviz.analyze(text, "minilm", device="cpu", **options)
        draw(name, analysis, {"figures": ["overview"], **style}, select=["L1H8"], figures=["heads", "lines"], **style)
    pets = attnviz.analyze(PETS, "minilm", device="cpu")
    draw("relations", pets, select=["L2H0", "L2H8"], figures=["relations", "heads"], relation="own")
    long = attnviz.analyze(PAGE, "minilm", device="cpu")
    draw("text", long, select=["L2H8", "L1H8"], figures=["text"])
    before, after = (
        attnviz.analyze(text, "minilm", device="cpu") for text in (SENTENCE, SENTENCE.replace("cat", "dog"))
    )
    draw("compare", attnviz.compare(before, after), top=3)


def draw_corpus_comparison(treebank: Path) -> None:
    """What rounding the weights of minilm to 4 bits changes, over a treebank."""
    before = attnviz.analyze(SENTENCE, "minilm", device="cpu").checkpoint
    model = copy.deepcopy(before.model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embeddings" not in name:
                step = weight.abs().amax(1, keepdim=True) / 7  # of each output, from -7 to 7
                weight.copy_((weight / step).round() * step)
    after = replace(before, model=model, name="minilm, weights rounded to 4 bits", weights_hash=None)
    found = attnviz.compare_corpus(before, after, treebank, limit=200)
    draw("compare-corpus", found)
    (GALLERY / "compare-corpus" / "tables.txt").write_text(found.report(width=100), encoding="utf-8")
    print("compare-corpus")


def draw_llama() -> None:
    """Four layers of smollm2, if it is installed; else they are left as they are."""
    try:
        analysis = attnviz.analyze(COUNTING, "smollm2", device="cpu")
    except attnviz.CheckpointError as error:
        print(f"smollm2 is left as it is: {error}")
        return
    draw("smollm2-10", analysis, select="L8-11", figures=["overview"])


def draw_inside(treebank: Path | None) -> None:
    """What lies inside a layer, what heads write, and how much of each token arrives."""
    for model, text in (("minilm", SENTENCE), ("tiny-gpt2", COUNTING)):
        draw(f"explain-{model}", attnviz.explain(text, model, device="cpu"), figures=["path"])
        draw(f"outputs-{model}", attnviz.head_outputs(text, model, device="cpu"), top=1)
        draw(f"rollout-{model}", attnviz.rollout(text, model, device="cpu"))
        draw(f"circuits-{model}", attnviz.circuits(model, device="cpu"))
        if treebank is not None:
            found = attnviz.ablate([treebank], model, limit=60, device="cpu")
            draw(f"ablate-{model}", found)
            (GALLERY / f"ablate-{model}" / "tables.txt").write_text(found.report(80, verbose=True), encoding="utf-8")
        print(f"inside {model}")
    draw("why", attnviz.why(COUNTING, "tiny-gpt2", head="L1H0", query="#9", key="#5", depth=2, device="cpu"))
    if treebank is not None:
        with contextlib.chdir(treebank.parent):  # so that files name it alone
            draw("card", attnviz.card("L2H0", Path(treebank.name), "minilm", ablate=True, device="cpu"))


def draw_translation() -> None:
    """The cross-attention of a model that translates numbers, which it first learns to do: a minute."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "number-translator"
        trained = [sys.executable, str(Path(__file__).with_name("train_number_translator.py")), "--out", str(folder)]
        print(subprocess.run(trained, check=True, capture_output=True, text=True).stdout.strip())
        analysis = attnviz.analyze("three thousand two hundred forty seven", str(folder), device="cpu")
        draw("translation", analysis, select="X0", figures=["overview"])
    with (GALLERY / "translation" / "captions.md").open("a", encoding="utf-8") as captions:
        captions.write("\nnumber-translator is a BART of one layer, trained by examples/train_number_translator.py.\n")


# name, theme, width, height, what is seen
SCREENSHOTS = (
    ("page", "light", 1400, 1060, "head=L1H4&tokens=8"),
    ("page-scatter", "dark", 1400, 1060, "head=L2H0&left=scatter&x=entropy&y=distance&view=lines&tokens=8,21"),
    ("page-narrow", "light", 700, 1500, "head=L1H8&tokens=21"),
)


def draw_page() -> None:
    """The interactive page, and how it looks, with that of a comparison."""
    analysis = attnviz.analyze(PARAGRAPH, "minilm", device="cpu")
    draw("page", analysis, figures=["page"])
    for name, theme, width, height, seen in SCREENSHOTS:
        screenshot(analysis.page(Style(theme)), name, width, height, seen)
    sides = (attnviz.analyze(text, "minilm", device="cpu") for text in (SENTENCE, SENTENCE.replace("cat", "dog")))
    screenshot(attnviz.compare(*sides).page(), "page-compare", 1200, 900, "tokens=2")
    layer = attnviz.explain(SENTENCE, "minilm", device="cpu")
    screenshot(layer.page(), "page-explain", 1200, 1000, "head=L0H4&token=7")
    print("page")


def screenshot(html: str, name: str, width: int, height: int, seen: str) -> None:
    """A page as Chromium shows it; without Chromium the picture is left as it is."""
    if (chromium := shutil.which("chromium")) is None:
        print(f"{name}: no chromium, its screenshot is left as it is")
        return
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "page.html"
        page.write_text(html, encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=8000"]
        options += [f"--window-size={width},{height}", f"--screenshot={GALLERY / 'page' / name}.png"]
        subprocess.run([chromium, *options, f"file://{page}#{seen}"], check=True, capture_output=True)


def draw_profile(treebank: Path) -> None:
    """The pictures of a profile of minilm."""
    with contextlib.chdir(treebank.parent):  # so that the page names the file alone
        profile = attnviz.profile_heads("minilm", [Path(treebank.name)], repeats=True, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        profile.save(folder)
        for name in ("roles", "relations"):
            target = GALLERY / "profile" / f"{name}.png"
            target.parent.mkdir(exist_ok=True)
            target.write_bytes((Path(folder) / f"{name}.png").read_bytes())
    screenshot(profile.page(), "page-profile", 1200, 900, "left=scatter&x=sink&y=entropy")
    print(f"profile: {profile.corpora[0].texts} texts")


def main(treebank: Annotated[Path | None, typer.Argument(exists=True, dir_okay=False)] = None) -> None:
    GALLERY.mkdir(exist_ok=True)
    draw_views()
    draw_styles()
    draw_llama()
    draw_translation()
    draw_page()
    draw_inside(treebank)
    if treebank is not None:
        draw_profile(treebank)
        draw_corpus_comparison(treebank)
    for name, text, model in (("minilm-9", SENTENCE, "minilm"), ("tiny-gpt2-10", COUNTING, "tiny-gpt2")):
        analysis = attnviz.analyze(text, model, device="cpu")
        (GALLERY / name / "tables.txt").write_text(analysis.report(width=80), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
