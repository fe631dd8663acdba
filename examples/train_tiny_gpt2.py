"""Train the GPT-2 that ships with attnviz as ``tiny-gpt2``: small, real, and with induction heads.

    python examples/train_tiny_gpt2.py BOOKS --out tiny-gpt2

BOOKS is a folder of ``.txt`` files, UTF-8, one paragraph a line; one of them (``--held-out``) is never
trained on. The result is a folder for ``attnviz heads TEXT --model ./tiny-gpt2``: model.safetensors
(float16), config.json, tokenizer.json and a model card with everything measured on the held-out book.

Text alone makes no induction heads in so small a model in so short a time, and plain repeats of random
tokens teach it to count positions instead. So it begins with exercises: sequences that follow a random
successor table of their own over a dozen tokens, with a random jump now and then (after the Markov
chains of Edelman et al. 2024 and the repeats of Olsson et al. 2022). Only looking up "what followed this
token before" predicts them, and only tokens that can be so predicted count in their loss. When
an induction head is there, the books take over, with a part of every batch still for exercises. In a
last short stage, with a new optimizer and a lower learning rate, some sequences are random tokens or a few words
repeated: these form no induction head, but sharpen those that are there.
Position embeddings begin as sinusoids (Vaswani et al. 2017), in which "one before" is the same rotation
everywhere. The initialisation matters: with matrices two to four times as large none came within 700 steps.

Interrupt it when you like (Ctrl-C): the same command goes on from the last saved step, to the same result
as an uninterrupted run on the same machine. One run takes about an hour on two CPU cores.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

END = "<|endoftext|>"
CHECKED = 50
"""Steps between two looks at the exercises' success."""

ASCII = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "—": "--", "\ufeff": None})

Ids = NDArray[np.int64]
console = Console(stderr=True)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result, beside the books; part of the checkpoint and of the model card."""

    seed: int
    steps: int
    batch_size: int
    vocabulary: int = 4096
    positions: int = 256
    n_layers: int = 4
    n_heads: int = 4
    d_model: int = 128
    learning_rate: float = 2e-3
    warmup: int = 50
    exercise_steps: int = 2000
    exercise_length: int = 64
    exercise_until: float = 0.5
    tables: float = 0.15
    copies: float = 0.05
    jump: float = 0.15
    sinusoid: float = 0.05
    sharpening_steps: int = 1000
    sharpening_rate: float = 4e-4
    repeats: float = 0.10
    short_repeats_every: int = 6

    @property
    def all_steps(self) -> int:
        """Those of both stages."""
        return self.steps + self.sharpening_steps


# --- data


def read_books(folder: Path, held_out: str) -> tuple[list[str], str]:
    """The training books and the held-out one; curly quotes and dashes as plain ASCII, as people type them."""
    books = {path.stem: path.read_text(encoding="utf-8").translate(ASCII) for path in sorted(folder.glob("*.txt"))}
    if held_out not in books or len(books) < 2:
        raise typer.BadParameter(f"expected at least two .txt files in {folder}, one of them {held_out}.txt")
    kept = books.pop(held_out)
    return list(books.values()), kept


def train_tokenizer(books: list[str], size: int) -> Tokenizer:
    """A byte-level BPE of its own, as GPT-2's, from the training books only."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator((line for book in books for line in book.splitlines(keepends=True)), trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, book: str) -> Ids:
    """The ids of one book."""
    return np.concatenate([np.asarray(e.ids) for e in tokenizer.encode_batch(book.splitlines(keepends=True)) if e.ids])


def first_of_its_kind(ids: Ids) -> NDArray[np.bool_]:
    """Which tokens of a sequence have no copy before them."""
    first = np.zeros(len(ids), bool)
    first[np.unique(ids, return_index=True)[1]] = True
    return first


class Batches:
    """Batches that depend on nothing but the recipe and the step, so that a resumed run sees the same ones."""

    def __init__(self, recipe: Recipe, text: Ids, line_end: int) -> None:
        self.recipe = recipe
        self.text = text
        starts = np.flatnonzero(text[:-1] == line_end) + 1
        self.starts = starts[starts < len(text) - recipe.positions]

    def __call__(self, step: int, exercising: bool) -> tuple[Tensor, Tensor]:
        """The batch of one step, [batch, positions], and what to predict, -100 where nothing could.

        The exercises have as many tokens as the others, in shorter sequences: more tables to learn from.
        """
        recipe = self.recipe
        rng = np.random.default_rng((recipe.seed, step))
        length = recipe.positions
        short = step >= recipe.steps and step % recipe.short_repeats_every == 0
        if exercising or short:
            length = recipe.exercise_length
            one = self.short_repeat if short else self.table
            rows = [one(rng, length) for _ in range(recipe.batch_size * recipe.positions // length)]
            exercises = np.ones(len(rows), bool)
        else:
            kinds = rng.random(recipe.batch_size)
            repeats = recipe.repeats if step >= recipe.steps else 0.0
            rows = [self.row(rng, kind, repeats) for kind in kinds]
            exercises = (kinds < recipe.tables) | (kinds >= 1 - repeats)
        ids = torch.from_numpy(np.stack(rows))
        targets = ids[:, 1:].clone()
        for row in np.flatnonzero(exercises):
            targets[row][first_of_its_kind(rows[row])[1:]] = -100
        return ids, targets

    def row(self, rng: np.random.Generator, kind: float, repeats: float) -> Ids:
        """One sequence of a mixed batch: an exercise, prose or random tokens repeated, or prose."""
        recipe = self.recipe
        if kind < recipe.tables:
            return self.table(rng, recipe.positions)
        if kind >= 1 - repeats:
            return self.repeat(rng)
        return self.copy(rng) if kind < recipe.tables + recipe.copies else self.prose(rng)

    def prose(self, rng: np.random.Generator) -> Ids:
        """A stretch of a book: every other one begins with a paragraph, as a typed text does."""
        last = len(self.text) - self.recipe.positions
        start = rng.choice(self.starts) if rng.random() < 0.5 else rng.integers(last)
        return self.text[start : start + self.recipe.positions]

    def copy(self, rng: np.random.Generator) -> Ids:
        """A short stretch of a book over and over, from the middle of it: repeats among ordinary words."""
        length = int(rng.integers(5, self.recipe.positions // 3))
        stretch = self.prose(rng)[:length]
        return np.resize(np.roll(stretch, int(rng.integers(length))), self.recipe.positions)

    def repeat(self, rng: np.random.Generator) -> Ids:
        """Random tokens over and over, each time as many as before, from 8 to half of the positions."""
        length = int(rng.integers(8, self.recipe.positions // 2 + 1))
        return np.resize(rng.integers(1, self.recipe.vocabulary, size=length), self.recipe.positions)

    def short_repeat(self, rng: np.random.Generator, length: int) -> Ids:
        """Three tokens or more over and over, random ones or of a book, short stretches more often than long."""
        period = int(np.exp(rng.uniform(np.log(3), np.log(length // 2))))
        once = self.prose(rng)[:period] if rng.random() < 0.5 else rng.integers(1, self.recipe.vocabulary, size=period)
        return np.resize(once, length)

    def table(self, rng: np.random.Generator, length: int) -> Ids:
        """A walk along a random successor table over 8 to 16 tokens of the whole vocabulary, with jumps."""
        recipe = self.recipe
        tokens = rng.choice(np.arange(1, recipe.vocabulary), size=rng.integers(8, 17), replace=False)
        successor = rng.permutation(len(tokens))
        jumps = rng.random(length) < recipe.jump
        walk = np.empty(length, np.int64)
        place = 0
        for position in range(length):
            place = rng.integers(len(tokens)) if jumps[position] else successor[place]
            walk[position] = place
        return tokens[walk]


# --- the model


def new_model(recipe: Recipe) -> GPT2LMHeadModel:
    """A GPT-2 with sinusoidal position embeddings to begin with; they are trained like the rest."""
    torch.manual_seed(recipe.seed)
    config = GPT2Config(
        vocab_size=recipe.vocabulary, n_positions=recipe.positions, n_embd=recipe.d_model, n_layer=recipe.n_layers,
        n_head=recipe.n_heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    position = torch.arange(recipe.positions)[:, None]
    rate = torch.exp(torch.arange(0, recipe.d_model, 2) * (-math.log(10_000.0) / recipe.d_model))
    waves = torch.cat([torch.sin(position * rate), torch.cos(position * rate)], dim=1)
    model.transformer.wpe.weight.data.copy_(recipe.sinusoid * waves)
    return model


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then a cosine down to a twentieth; in the last stage a line down to nothing."""
    if step >= recipe.steps:
        return recipe.sharpening_rate * (recipe.all_steps - step) / recipe.sharpening_steps
    if step < recipe.warmup:
        return recipe.learning_rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def train(
    recipe: Recipe, batches: Batches, saved: Path, device: torch.device, every: int
) -> tuple[GPT2LMHeadModel, int]:
    """Train to the recipe's last step, from the saved one where there is one.

    Returns:
        the model, and how many steps were exercises.

    Raises:
        BadParameter: what is saved was made by another recipe.
    """
    model = new_model(recipe).to(device)
    optimizer = new_optimizer(model, recipe)
    first, exercised = 0, recipe.exercise_steps
    if saved.exists():
        state = torch.load(saved, map_location=device, weights_only=True)
        if state["recipe"] != asdict(recipe):
            raise typer.BadParameter(f"{saved} was made by another recipe: give another --out, or delete it")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, exercised = state["step"], state["exercised"]
        console.print(f"Going on from step {first}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("training", total=recipe.all_steps, completed=first)
        for step in range(first, recipe.all_steps):
            if step == recipe.steps:
                model.half().float()  # the last stage begins with what would be shipped without it
                optimizer = new_optimizer(model, recipe)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe, step)
            ids, targets = batches(step, step < exercised)
            loss = one_step(model, optimizer, ids.to(device), targets.to(device))
            if step % 50 == 0:
                progress.update(bar, description=f"training, loss {loss:.3f}")
            progress.advance(bar)
            if step < exercised and (step + 1) % CHECKED == 0:
                found = best_induction(model, recipe, recipe.exercise_length // 2)
                console.print(f"step {step + 1}: loss {loss:.3f}, best induction score {found:.2f}")
                if found >= recipe.exercise_until:
                    exercised = step + 1
            if (step + 1) % every == 0 or step + 1 in (recipe.steps, recipe.all_steps):
                save_state(saved, recipe, model, optimizer, step + 1, exercised)
                found = best_induction(model, recipe, recipe.positions // 2)
                console.print(f"step {step + 1}: loss {loss:.3f}, best induction score {found:.2f}, saved")
    return model, exercised


def new_optimizer(model: GPT2LMHeadModel, recipe: Recipe) -> torch.optim.Optimizer:
    """Adam without weight decay; the learning rate is set at every step."""
    return torch.optim.Adam(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95))


def one_step(model: GPT2LMHeadModel, optimizer: torch.optim.Optimizer, ids: Tensor, targets: Tensor) -> float:
    """One update; matrix products in bfloat16, sums and weights in float32."""
    model.train()
    with torch.autocast(ids.device.type, dtype=torch.bfloat16):
        logits = model(ids[:, :-1]).logits
    loss = cross_entropy(logits.float().flatten(0, 1), targets.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def save_state(
    path: Path, recipe: Recipe, model: GPT2LMHeadModel, optimizer: torch.optim.Optimizer, step: int, exercised: int
) -> None:
    """Whole or not at all, so that an interruption while saving loses nothing."""
    state = {
        "recipe": asdict(recipe), "step": step, "exercised": exercised,
        "model": model.state_dict(), "optimizer": optimizer.state_dict(),
    }  # fmt: skip
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


# --- what is measured


@torch.no_grad()
def patterns(model: GPT2LMHeadModel, ids: Tensor) -> Tensor:
    """Attention of every head, [n_layers, batch, n_heads, n, n]."""
    model.eval()
    model.set_attn_implementation("eager")
    attentions = model(ids.to(model.device), output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    return torch.stack(attentions).float().cpu()


def diagonal(pattern: Tensor, offset: int) -> list[list[float]]:
    """Mean attention from each query to the key ``offset`` away, by layer and head."""
    values = torch.diagonal(pattern, offset=offset, dim1=-2, dim2=-1).mean(dim=(1, 3))
    return [[float(value) for value in row] for row in values]


def repeat_scores(model: GPT2LMHeadModel, recipe: Recipe, length: int = 100, batch: int = 8) -> dict[str, Any]:
    """Random tokens, repeated once, no BOS: the diagonals of Wang et al. 2022 (appendix on head classes)."""
    rng = np.random.default_rng(recipe.seed + 1)
    once = torch.from_numpy(rng.integers(1, recipe.vocabulary, size=(batch, length)))
    pattern = patterns(model, torch.cat([once, once], 1))
    offsets = {"previous": -1, "duplicate": -length, "induction": 1 - length}
    return {name: diagonal(pattern, offset) for name, offset in offsets.items()}


def best_induction(model: GPT2LMHeadModel, recipe: Recipe, length: int) -> float:
    """The score of the best induction head, on random sequences of this length, repeated once."""
    return max(max(row) for row in repeat_scores(model, recipe, length)["induction"])


def windows(text: Ids, length: int) -> Tensor:
    """The text cut into pieces, one after another; the rest is left out."""
    count = len(text) // length
    return torch.from_numpy(text[: count * length].reshape(count, length))


@torch.no_grad()
def held_out_loss(model: GPT2LMHeadModel, text: Ids, positions: int) -> float:
    """Nats a token; each window is read alone, so its first token is not predicted."""
    model.eval()
    total = count = 0.0
    for ids in windows(text, positions).split(32):
        here = ids.to(model.device)
        logits = model(here).logits[:, :-1].float()
        total += float(cross_entropy(logits.flatten(0, 1), here[:, 1:].flatten(), reduction="sum"))
        count += here[:, 1:].numel()
    return total / count


def n_gram_losses(training: Ids, text: Ids, positions: int, vocabulary: int) -> dict[str, float]:
    """Nats a token of a unigram and of a bigram model with the same tokens, on the same predictions.

    The bigram is interpolated with the unigram (Jelinek & Mercer 1980); its weight is the best on the
    held-out text itself, which flatters the baseline.
    """
    pieces = windows(text, positions).numpy()
    before, after = pieces[:, :-1].ravel(), pieces[:, 1:].ravel()
    unigram = (np.bincount(training, minlength=vocabulary) + 1.0) / (len(training) + vocabulary)
    pair_counts = np.bincount(training[:-1] * vocabulary + training[1:], minlength=vocabulary**2)
    seen = np.maximum(np.bincount(training[:-1], minlength=vocabulary)[before], 1)
    bigram = pair_counts[before * vocabulary + after] / seen
    mixtures = [-np.log(w * bigram + (1 - w) * unigram[after]).mean() for w in np.linspace(0.5, 0.99, 50)]
    return {"unigram": float(-np.log(unigram[after]).mean()), "bigram": float(min(mixtures))}


def measure(model: GPT2LMHeadModel, recipe: Recipe, training: Ids, text: Ids, characters: int) -> dict[str, Any]:
    """Everything that the model card says."""
    losses = {
        "model": held_out_loss(model, text, recipe.positions),
        **n_gram_losses(training, text, recipe.positions, recipe.vocabulary),
    }
    natural = diagonal(patterns(model, windows(text, 64)[:64]), -1)
    return {
        "nats_per_token": losses,
        "nats_per_character": {name: loss * len(text) / characters for name, loss in losses.items()},
        "previous_on_text": natural,
        **repeat_scores(model, recipe),
    }


# --- the result


def ranked(scores: list[list[float]], least: float) -> str:
    """Heads with at least this score, best first, as they are printed by attnviz."""
    found = sorted(((score, f"L{i}H{j}") for i, row in enumerate(scores) for j, score in enumerate(row)), reverse=True)
    return ", ".join(f"{name} {score:.2f}" for score, name in found if score >= least) or "none"


def model_card(
    recipe: Recipe, found: dict[str, Any], held_out: str, n_books: int, n_tokens: int, size: int, exercised: int
) -> str:
    """The model card, in Markdown."""
    losses = "\n".join(
        f"| {name} | {found['nats_per_token'][name]:.3f} | {found['nats_per_character'][name]:.3f} |"
        for name in ("unigram", "bigram", "model")
    )
    seen = recipe.all_steps * recipe.batch_size * recipe.positions
    return f"""---
license: mit
language: en
---
# tiny-gpt2

A GPT-2 of {recipe.n_layers} layers and {recipe.n_heads} heads (d_model {recipe.d_model}, {recipe.positions}
positions, {recipe.vocabulary} tokens, {size:,} parameters) that ships with attnviz, so that causal attention
can be looked at on any machine without a download. Made by `examples/train_tiny_gpt2.py`; no weight was set by
hand.

## Data and recipe

{n_books} English novels in the public domain (Project Gutenberg; {n_tokens:,} tokens of the model's own
byte-level BPE, trained on the same novels; curly quotes and dashes written in ASCII). Held out:
{held_out.replace("-", " ").title()}. To make induction heads form, the first {exercised} steps, until one
scored {recipe.exercise_until}, are walks of {recipe.exercise_length} tokens along a random successor table of
their own over 8 to 16 tokens with a random jump {recipe.jump:.0%} of the time; after them
{recipe.tables:.0%} of the sequences are such walks, {recipe.copies:.0%} short stretches of a novel repeated,
and the rest novels. In the last {recipe.sharpening_steps} steps a further {recipe.repeats:.0%} are random tokens
repeated, and every {recipe.short_repeats_every}th step has sequences of {recipe.exercise_length} tokens in which a few
tokens, random or of a novel, are repeated. The loss of walks and repeats leaves out tokens that no one could predict.

{recipe.steps:,} steps of {recipe.batch_size} sequences, Adam, learning rate {recipe.learning_rate} with
{recipe.warmup} steps of warm-up and a cosine, and {recipe.sharpening_steps} with a new optimizer and
{recipe.sharpening_rate} going down to 0 ({seen:,} tokens in all); position embeddings initialised as sinusoids,
seed {recipe.seed}; matrix products in bfloat16. Stored in float16.

## Loss on the held-out novel

| | nats per token | nats per character |
| --- | ---: | ---: |
{losses}

All three predict the same tokens: all but the first of each window of {recipe.positions}. The bigram is
interpolated with the unigram; its weight is the best for the held-out text.

## What its heads do

Measured on 8 random sequences of 100 tokens repeated once, no BOS, as the mean attention on a diagonal (Wang et
al. 2022), and for previous-token heads also on 64 stretches of 64 tokens of the held-out novel. Listed from
0.30.

| | heads |
| --- | --- |
| previous token, random | {ranked(found["previous"], 0.3)} |
| previous token, held-out novel | {ranked(found["previous_on_text"], 0.3)} |
| induction | {ranked(found["induction"], 0.3)} |
| duplicate token | {ranked(found["duplicate"], 0.3)} |

## What it is not for

Not for writing text, not for facts, and no stand-in for GPT-2 small: it is small enough to ship, it learned
from old novels, and its induction heads come from exercises made for them, sooner than they would from text. It
shows what attention heads look like, and keeps tests honest.
"""


def write(folder: Path, model: GPT2LMHeadModel, tokenizer: Tokenizer, positions: int) -> GPT2LMHeadModel:
    """Config, tokenizer and float16 weights; returns the model as it reads back, which is what is measured."""
    model.half().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, unk_token=END, model_max_length=positions
    )
    fast.save_pretrained(folder)
    return GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32)


def books_as_ids(tokenizer: Tokenizer, books: list[str]) -> Iterator[Ids]:
    """The training text, with a line of its own between books."""
    for book in books:
        yield encode(tokenizer, book.rstrip("\n") + "\n")


def main(
    books: Annotated[Path, typer.Argument(help="Folder of .txt files.", exists=True, file_okay=False)],
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint.")] = Path("tiny-gpt2"),
    held_out: Annotated[str, typer.Option(help="Book that is never trained on, without .txt.")] = "treasure-island",
    steps: Annotated[int, typer.Option(min=1, help="Updates.")] = 4200,
    sharpening_steps: Annotated[int, typer.Option(min=1, help="More of them, in the last stage.")] = 1000,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences an update.")] = 16,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    save_every: Annotated[int, typer.Option(min=1, help="Steps between two saved states.")] = 250,
) -> None:
    """Train tiny-gpt2 on a folder of books; the same command goes on after an interruption."""
    recipe = Recipe(seed=seed, steps=steps, batch_size=batch_size, sharpening_steps=sharpening_steps)
    out.mkdir(parents=True, exist_ok=True)
    training_books, kept = read_books(books, held_out)
    tokenizer = train_tokenizer(training_books, recipe.vocabulary)
    text = np.concatenate(list(books_as_ids(tokenizer, training_books)))
    kept_ids = encode(tokenizer, kept)
    console.print(f"{len(training_books)} books, {len(text):,} tokens; held out: {held_out}, {len(kept_ids):,} tokens")
    batches = Batches(recipe, text, line_end=tokenizer.encode("\n").ids[0])
    saved = out / "training-state.pt"
    model, exercised = train(recipe, batches, saved, torch.device(device), save_every)
    model = write(out, model, tokenizer, recipe.positions)
    found = measure(model, recipe, text, kept_ids, len(kept))
    size = sum(parameter.numel() for parameter in model.parameters())
    (out / "README.md").write_text(
        model_card(recipe, found, held_out, len(training_books), len(text), size, exercised), encoding="utf-8"
    )
    saved.unlink()
    typer.echo(json.dumps(found["nats_per_token"]))


if __name__ == "__main__":
    typer.run(main)
