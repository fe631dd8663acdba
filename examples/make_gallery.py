"""Regenerates examples/gallery, an example of every view: ``python examples/make_gallery.py TREEBANK`` (extra "demo").

TREEBANK is the dev part of UD English EWT (en_ewt-ud-dev.conllu), for the pictures of a profile, of ablations and of
a card; without it those are left as they are, as all but one part is with ``--only PART``.

Pictures have 256 colours. The files are byte-identical from run to run with the versions of .ci/constraints.txt.
"""

import contextlib
import copy
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from PIL import Image

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
PETS = "The boy ate an apple, the girl read a very old book and the dog quickly chased the big cat"

COUNTING = "one two three four five one two three four five"

SWAP = {
    "clean": "one two three four five one two three",
    "corrupt": "one two three five four one two three",
    "answer": " four",
    "foil": " five",
}

# name, what is seen; of the page of the paragraph, a comparison, a layer and a profile
SEEN = {
    "page": "head=L1H4&tokens=8",
    "page-compare": "tokens=2",
    "page-explain": "head=L0H4&token=7",
    "page-profile": "left=scatter&x=sink&y=entropy",
}


def save_small(picture: Path, target: Path) -> None:
    """Save a picture with a palette, which no eye tells from the whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    image = Image.open(picture).convert("RGB")
    image = image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
    image.save(target, "png", optimize=True)


def captions_of(file: Path) -> dict[str, str]:
    """Captions by picture, each with its details."""
    return dict(re.findall(r"^\*\*(\S+?)\*\*: (.*?)\s*(?=^\*\*\S+?\*\*: |\Z)", file.read_text("utf-8"), re.M | re.S))


def draw(folder: str, result: Any, *pictures: str, note: str = "", **choices: Any) -> None:
    """Keep these pictures of a result, and their captions."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        result.save(run, **choices)
        told = captions_of(GALLERY / "captions.md")
        for picture in pictures:
            save_small(run / picture, GALLERY / folder / picture)
            told[f"{folder}/{picture}"] = captions_of(run / "captions.md")[picture] + note
    text = "\n\n".join(["# Captions", *(f"**{picture}**: {told[picture]}" for picture in sorted(told))])
    (GALLERY / "captions.md").write_text(f"{text}\n", encoding="utf-8")
    print(folder)


def screenshot(html: str, name: str, width: int = 1200, height: int = 900) -> None:
    """A page as Chromium shows it; without Chromium the picture is left as it is."""
    if (chromium := shutil.which("chromium")) is None:
        print(f"{name}: no chromium, its screenshot is left as it is")
        return
    with tempfile.TemporaryDirectory() as scratch:
        page, picture = Path(scratch) / "page.html", Path(scratch) / "page.png"
        page.write_text(html, encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=8000"]
        options += [f"--window-size={width},{height}", f"--screenshot={picture}"]
        subprocess.run([chromium, *options, f"file://{page}#{SEEN[name]}"], check=True, capture_output=True)
        save_small(picture, GALLERY / "page" / f"{name}.png")
    print(name)


def draw_minilm_9() -> None:
    analysis = attnviz.analyze(SENTENCE, "minilm", device="cpu")
    draw("minilm-9", analysis, "overview.png", "mean.png", "map-entropy.png", figures=["overview", "map", "mean"])
    draw("minilm-9", analysis, "heads/L01H08.png", select="L1H8", figures=["heads"])
    draw("minilm-9", analysis, "lines.png", select=["L0H2", "L1H8"], figures=["lines"])
    draw("dark", analysis, "overview.png", figures=["overview"], style=Style("dark"))


def draw_long_texts() -> None:
    draw("minilm-50", attnviz.analyze(PARAGRAPH, "minilm", device="cpu"), "overview.png", figures=["overview"])
    analysis = attnviz.analyze(PAGE, "minilm", device="cpu")
    draw("minilm-408", analysis, "heads/L02H00.png", select="L2H0", figures=["heads"])
    draw("text", analysis, "text.png", select=["L2H8", "L1H8"], figures=["text"])


def draw_relations() -> None:
    analysis = attnviz.analyze(PETS, "minilm", device="cpu")
    choices = {"select": ["L2H0", "L2H8"], "figures": ["relations", "heads"], "relation": "own"}
    draw("relations", analysis, "relations.png", "heads/L02H00.png", **choices)


def draw_compare() -> None:
    sides = (attnviz.analyze(text, "minilm", device="cpu") for text in (SENTENCE, SENTENCE.replace("cat", "dog")))
    comparison = attnviz.compare(*sides)
    draw("compare", comparison, "compare.png", "differences/L05H04.png", top=3)
    screenshot(comparison.page(), "page-compare")


def draw_smollm2() -> None:
    """Four layers of smollm2, if it is installed."""
    try:
        analysis = attnviz.analyze(COUNTING, "smollm2", device="cpu")
    except attnviz.CheckpointError as error:
        print(f"smollm2 is left as it is: {error}")
        return
    draw("smollm2-10", analysis, "overview.png", select="L8-11", figures=["overview"])


def draw_layers() -> None:
    """What lies inside a layer, what heads write, and how much of each token arrives."""
    layer = attnviz.explain(SENTENCE, "minilm", device="cpu")
    draw("explain-minilm", layer, "explain-row.png", figures=["row"])
    screenshot(layer.page(), "page-explain", height=1000)
    draw(
        "outputs-minilm",
        attnviz.head_outputs(SENTENCE, "minilm", device="cpu"),
        "outputs.png",
        "outputs/L05H11.png",
        top=1,
    )
    draw("outputs-tiny-gpt2", attnviz.head_outputs(COUNTING, "tiny-gpt2", device="cpu"), "outputs-effects.png", top=1)
    draw("rollout-minilm", attnviz.rollout(SENTENCE, "minilm", device="cpu"), "rollout.png")
    draw("circuits-tiny-gpt2", attnviz.circuits("tiny-gpt2", device="cpu"), "composition-key.png")
    chain = attnviz.why(COUNTING, "tiny-gpt2", head="L1H0", query="#9", key="#5", depth=2, device="cpu")
    draw("why", chain, "why.png")
    draw("patch", attnviz.patch(**SWAP, model="tiny-gpt2", device="cpu"), "patch.png")


def draw_page() -> None:
    analysis = attnviz.analyze(PARAGRAPH, "minilm", device="cpu")
    (GALLERY / "page" / "heads.html").write_text(analysis.page(), encoding="utf-8")
    screenshot(analysis.page(), "page", 1400, 1060)


def draw_translation() -> None:
    """The cross-attention of a model that translates numbers, which it first learns to do: a minute."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "number-translator"
        trained = [sys.executable, str(Path(__file__).with_name("train_number_translator.py")), "--out", str(folder)]
        print(subprocess.run(trained, check=True, capture_output=True, text=True).stdout.strip())
        analysis = attnviz.analyze("three thousand two hundred forty seven", str(folder), device="cpu")
        note = "\n\nnumber-translator is a BART of one layer, trained by examples/train_number_translator.py."
        draw("translation", analysis, "overview.png", note=note, select="X0", figures=["overview"])


def draw_corpus(treebank: Path) -> None:
    """What takes a treebank: an ablation, a card, a profile, and what rounding minilm to 4 bits changes."""
    ablation = attnviz.ablate([treebank], "tiny-gpt2", limit=60, device="cpu")
    draw("ablate-tiny-gpt2", ablation, "ablate-heads.png", "ablate-curve.png")
    (GALLERY / "ablate-tiny-gpt2" / "tables.txt").write_text(ablation.report(80, verbose=True), encoding="utf-8")
    draw("card", attnviz.card("L2H0", model="minilm", device="cpu"), "claim.png", figures=["claim"])
    with contextlib.chdir(treebank.parent):  # so that files name it alone
        draw("card", attnviz.card("L2H0", Path(treebank.name), "minilm", ablate=True, device="cpu"), "card.png")
        profile = attnviz.profile_heads("minilm", [Path(treebank.name)], repeats=True, device="cpu")
    draw("profile", profile, "roles.png", "relations.png")
    screenshot(profile.page(), "page-profile")
    before = attnviz.analyze(SENTENCE, "minilm", device="cpu").checkpoint
    model = copy.deepcopy(before.model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embeddings" not in name:
                step = weight.abs().amax(1, keepdim=True) / 7  # of each output, from -7 to 7
                weight.copy_((weight / step).round() * step)
    after = replace(before, model=model, name="minilm, weights rounded to 4 bits", weights_hash=None)
    draw("compare-corpus", attnviz.compare_corpus(before, after, treebank, limit=200), "compare-corpus-distances.png")


def main(
    treebank: Annotated[Path | None, typer.Argument(exists=True, dir_okay=False)] = None,
    only: Annotated[str, typer.Option(help="One part: minilm_9, long_texts, relations, compare, …")] = "",
) -> None:
    parts = [draw_minilm_9, draw_long_texts, draw_relations, draw_compare, draw_smollm2, draw_layers, draw_page]
    for part in [*parts, draw_translation]:
        if only in part.__name__:
            part()
    if treebank is not None:
        draw_corpus(treebank)


if __name__ == "__main__":
    typer.run(main)
