"""Regenerates examples/gallery: ``python examples/make_gallery.py TREEBANK`` (needs the extra "demo").

TREEBANK is the dev part of UD English EWT (en_ewt-ud-dev.conllu), for the pictures of a profile; without it
those are left as they are.

The files are byte-identical from run to run with the versions of .ci/constraints.txt.
"""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

import attnviz

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
    "she was to get out again."
)

COUNTING = "one two three four five one two three four five"

# name in the gallery: text, options of analyze(), selection, figures
PICTURES = {
    "sentence": (SENTENCE, {}, ["L0H2", "L1H8"], ["overview", "heads"]),
    "paragraph": (PARAGRAPH, {}, ["L1H8"], ["overview", "heads"]),
    "page": (PAGE, {}, ["L1H8"], ["overview", "heads"]),
    "words": ("Unbelievably, the antidisestablishmentarians agreed", {"words": True}, ["L1H8"], ["heads"]),
    "pair": ("Where is the cat?", {"pair": "It ran away."}, ["L2H8"], ["heads"]),
    "repeat": (COUNTING, {"model": "tiny-gpt2"}, ["L0H2", "L1H0"], ["overview", "heads"]),
    "repeat-long": (PARAGRAPH + " " + PARAGRAPH, {"model": "tiny-gpt2"}, ["L1H0"], ["overview", "heads"]),
}


def draw_profile(treebank: Path) -> None:
    """The pictures of a profile of minilm, and its tables."""
    found = attnviz.profile_heads("minilm", [treebank], repeats=True, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        attnviz.save_profile(found, folder)
        for name in ("roles", "relations", "layers", "likeness", "roles/syntactic-obj"):
            picture = (Path(folder) / f"{name}.png").read_bytes()
            (GALLERY / f"profile-{name.removeprefix('roles/')}.png").write_bytes(picture)
    print(f"profile: {found.corpora[0].texts} texts")


def main(treebank: Annotated[Path | None, typer.Argument(exists=True, dir_okay=False)] = None) -> None:
    GALLERY.mkdir(exist_ok=True)
    for old in GALLERY.glob("*"):
        if treebank is not None or not old.name.startswith("profile-"):
            old.unlink()
    if treebank is not None:
        draw_profile(treebank)
    for name, (text, options, selection, figures) in PICTURES.items():
        analysis = attnviz.analyze(text, **{"model": "minilm", "device": "cpu", **options})
        with tempfile.TemporaryDirectory() as folder:
            if "overview" in figures:
                analysis.save(folder, figures=["overview"])
                (GALLERY / f"{name}-overview.png").write_bytes((Path(folder) / "overview.png").read_bytes())
            if "heads" in figures:
                analysis.save(folder, select=selection, figures=["heads"])
                for picture in sorted((Path(folder) / "heads").glob("*.png")):
                    (GALLERY / f"{name}-{picture.name}").write_bytes(picture.read_bytes())
        print(f"{name}: {len(analysis.tokens)} tokens")
    for name, text, model in (("sentence", SENTENCE, "minilm"), ("repeat", COUNTING, "tiny-gpt2")):
        analysis = attnviz.analyze(text, model, device="cpu")
        (GALLERY / f"{name}-tables.txt").write_text(analysis.report(width=80), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
