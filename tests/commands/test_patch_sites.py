"""Patching of every site, whole and by position, against plain hooks on transformers' own modules."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from csv import DictReader
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

import attnviz
from attnviz.errors import ArchitectureError, UsageError
from attnviz.models.checkpoint import from_loaded
from attnviz.models.head_ids import HeadId
from attnviz.options import PatchSite
from attnviz.run.edit import Edit, edited_passes, run_and_keep, running
from tests.support.ablations import masked_token_model, next_token_model
from tests.support.classifiers import sharp_classifier
from tests.support.families import checkpoint_of, first_of, model_of
from tests.support.tolerances import SUMS_32

PROMPTS = {
    "gpt2": ("the cat ran to the", "the dog ran to the", " house", " dog"),
    "llama": ("the cat ran to the", "the dog ran to the", "cat", "dog"),
    "bert": ("the cat [MASK] away", "the dog [MASK] away", "ran", "saw"),
    "classifier": ("the cat ran away", "the dog ran away", "good", "bad"),
}
OF_BERT = {
    "q": ("attention.self.query", "output"),
    "k": ("attention.self.key", "output"),
    "v": ("attention.self.value", "output"),
    "z": ("attention.output.dense", "input"),
    "attn_out": ("attention.output.dense", "output"),
    "resid_mid": ("attention", "output"),
    "mlp_out": ("output.dense", "output"),
    "resid_pre": ("", "input"),
    "resid_post": ("", "output"),
}
MODULES = {
    "gpt2": {
        **dict.fromkeys("qkv", ("attn.c_attn", "output")),
        "z": ("attn.c_proj", "input"),
        "attn_out": ("attn", "output"),
        "resid_mid": ("ln_2", "input"),
        "mlp_out": ("mlp", "output"),
        "resid_pre": ("", "input"),
        "resid_post": ("", "output"),
    },
    "llama": {
        **{letter: (f"self_attn.{letter}_proj", "output") for letter in "qkv"},
        "z": ("self_attn.o_proj", "input"),
        "attn_out": ("self_attn", "output"),
        "resid_mid": ("post_attention_layernorm", "input"),
        "mlp_out": ("mlp", "output"),
        "resid_pre": ("", "input"),
        "resid_post": ("", "output"),
    },
    "bert": OF_BERT,
    "classifier": OF_BERT,
}
"""Where a layer's sites are: a module of it ("" for itself), and a side."""


@cache
@torch.no_grad()
def made(kind: str) -> tuple[Any, Any, Any]:
    """A model in float64, its tokenizer and its layers; Llama's heads share keys by two."""
    if kind == "gpt2":
        model, tokenizer = next_token_model()
        return model.double(), tokenizer, model.transformer.h
    if kind == "llama":
        model, tokenizer = model_of("llama")
        return model.double(), tokenizer, model.model.layers
    model, tokenizer = masked_token_model() if kind == "bert" else sharp_classifier("bert")
    if kind == "classifier":
        model.classifier.weight.mul_(30)
    return model.double(), tokenizer, model.bert.encoder.layer


@contextmanager
def hooked(module: Any, side: str, visit: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    def before(_: Any, args: Any, kwargs: Any) -> Any:
        replaced = visit(args[0] if args else kwargs["hidden_states"])
        if replaced is None:
            return None
        return ((replaced, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": replaced})

    def after(_: Any, __: Any, given: Any) -> Any:
        replaced = visit(given[0] if isinstance(given, tuple) else given)
        return given if replaced is None else (replaced, *given[1:]) if isinstance(given, tuple) else replaced

    if side == "input":
        handle = module.register_forward_pre_hook(before, with_kwargs=True)
    else:
        handle = module.register_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()


class Plain:
    """Transformers' own model, a site of which is given what it had for another text."""

    def __init__(self, kind: str, site: str) -> None:
        self.kind, self.site = kind, site
        self.model, self.tokenizer, self.layers = made(kind)
        *_, answer, foil = PROMPTS[kind]
        ids = self.model.config.label2id if kind == "classifier" else self.tokenizer.get_vocab()
        self.answer, self.foil = (
            ids[label.replace(" ", "Ġ") if kind == "gpt2" else "▁" + label if kind == "llama" else label]
            for label in (answer, foil)
        )
        config = self.model.config
        self.n_heads = config.num_attention_heads
        if site in ("k", "v"):
            self.n_heads = getattr(config, "num_key_value_heads", self.n_heads)
        self.per_head = site in ("z", "q", "k", "v")

    @torch.no_grad()
    def measured(self, text: str) -> float:
        inputs = self.tokenizer(text, return_tensors="pt")
        logits = self.model(**inputs).logits[0]
        if logits.dim() == 2:
            ids = inputs["input_ids"][0].tolist()
            logits = logits[ids.index(self.tokenizer.mask_token_id) if "[MASK]" in text else -1]
        return float(logits[self.answer] - logits[self.foil])

    def module(self, layer: int) -> tuple[Any, str]:
        name, side = MODULES[self.kind][self.site]
        return self.layers[layer].get_submodule(name), side

    def columns(self, width: int, head: int | None) -> slice:
        if head is None:
            return slice(None)
        first = 0
        if self.kind == "gpt2" and self.site in ("q", "k", "v"):
            width //= 3
            first = width * "qkv".index(self.site)
        d_head = width // self.n_heads
        return slice(first + d_head * head, first + d_head * (head + 1))

    @contextmanager
    def patched(self, layer: int, head: int | None, to: Sequence[int], values: Tensor) -> Iterator[None]:
        block, (module, side) = self.layers[layer], self.module(layer)
        last: list[Tensor] = []

        def patch(given: Tensor) -> Tensor:
            changed, where = given.clone(), self.columns(given.shape[-1], head)
            changed[:, to, where] = values[:, to, where]
            last[:] = [changed]
            return changed

        if self.site != "resid_mid" or self.kind in ("bert", "classifier"):
            with hooked(module, side, patch):
                yield
            return

        # the norm's input alone is not the stream: the layer's result is made anew of the patched one
        def read(given: Tensor) -> None:
            patch(given)

        def remade(_: Tensor) -> Tensor:
            return last[0] + block.mlp(module.forward(last[0]))

        with hooked(module, side, read), hooked(block, "output", remade):
            yield

    def effects(self, into: str, source: str, each: bool) -> dict[tuple[int, int | None, int | None], float]:
        kept: dict[int, Tensor] = {}
        whole = 0.0
        for layer in range(len(self.layers)):
            with hooked(*self.module(layer), lambda given, layer=layer: kept.update({layer: given.clone()})):
                whole = self.measured(source)
        unpatched, found = self.measured(into), {}
        n = len(self.tokenizer(into)["input_ids"])
        for layer in range(len(self.layers)):
            for head in range(self.n_heads) if self.per_head else (None,):
                for position in range(n) if each else (None,):
                    to = range(n) if position is None else [position]
                    with self.patched(layer, head, to, kept[layer]):
                        moved = self.measured(into) - unpatched
                    found[layer, head, position] = moved / (whole - unpatched)
        assert max(map(abs, found.values())) > 1e-3
        return found


@pytest.mark.parametrize("site", get_args(PatchSite))
@pytest.mark.parametrize("kind", PROMPTS)
def test_every_site_is_patched_as_plain_hooks_do_whole_and_by_position(kind: str, site: str) -> None:
    clean, corrupt, answer, foil = PROMPTS[kind]
    plain = Plain(kind, site)
    prompts: dict[str, Any] = {"corrupt": corrupt, "answer": answer, "foil": foil, "tokenizer": plain.tokenizer}
    for direction in ("denoise", "noise"):
        into, source = (corrupt, clean) if direction == "denoise" else (clean, corrupt)
        for by in (None, "position"):
            result = attnviz.patch(clean, plain.model, **prompts, direction=direction, site=site, by=by)
            found = {(effect.layer, effect.head, effect.position): effect.effect for effect in result.effects}
            assert found == pytest.approx(plain.effects(into, source, by is not None), abs=SUMS_32)


def test_one_token_alone_or_by_position_is_the_same() -> None:
    model, tokenizer, _ = made("llama")
    clean, corrupt, answer, foil = PROMPTS["llama"]
    prompts: dict[str, Any] = {"corrupt": corrupt, "answer": answer, "foil": foil, "tokenizer": tokenizer}
    alone = attnviz.patch(clean, model, **prompts, site="resid_post", at=["last"])
    each = attnviz.patch(clean, model, **prompts, site="resid_post", at=["last", "#1"], by="position")
    assert {effect.position for effect in each.effects} == {1, len(tokenizer(clean)["input_ids"]) - 1}
    last = {effect.layer: effect.effect for effect in each.effects if effect.position != 1}
    assert last == pytest.approx({effect.layer: effect.effect for effect in alone.effects}, abs=SUMS_32)


def test_spans_are_patched_token_by_token_at_other_positions() -> None:
    model, tokenizer, _ = made("gpt2")
    prompts: dict[str, Any] = {"answer": " house", "foil": " dog", "tokenizer": tokenizer, "site": "resid_pre"}
    given: dict[str, Any] = {"corrupt": "the dog saw the cat ran to the", "spans": ["on=cat", "on=dog", "to=ran"]}
    each = attnviz.patch("the cat ran to the", model, **prompts, **given, by="position")
    tokens = sorted((effect.position, effect.token) for effect in each.effects if effect.layer == 0)
    assert tokens == [(1, "cat"), (2, "ran")]
    for spans, position in ((given["spans"][:2], 1), (given["spans"][2:], 2)):
        alone = attnviz.patch("the cat ran to the", model, **prompts, corrupt=given["corrupt"], spans=spans)
        found = {effect.layer: effect.effect for effect in each.effects if effect.position == position}
        assert found == pytest.approx({effect.layer: effect.effect for effect in alone.effects}, abs=SUMS_32)


def resampled(checkpoint: Any, inputs: dict[str, Tensor], other: dict[str, Tensor]) -> dict[HeadId, Tensor]:
    """Resample ablation: final states with each head's output that of another text at the same position."""
    heads = [HeadId(layer, head) for layer in checkpoint.layers for head in range(checkpoint.n_heads_of(layer))]
    found = {}
    with running(checkpoint):
        base, donor = run_and_keep(checkpoint, inputs), run_and_keep(checkpoint, other)
        edits = [[Edit(head.layer, donor.values[head.layer, "z"], heads=[head.head])] for head in heads]
        for numbers, final in edited_passes(base, edits):
            found |= {heads[number]: states for number, states in zip(numbers, final, strict=True)}
    return found


@torch.no_grad()
def test_resample_ablation_is_a_function_of_its_own() -> None:
    model, tokenizer, layers = made("gpt2")
    one, other = (dict(tokenizer(text, return_tensors="pt")) for text in PROMPTS["gpt2"][:2])
    found = resampled(from_loaded(model, tokenizer), one, other)
    plain = Plain("gpt2", "z")
    for (layer, head), states in found.items():
        seen: list[Tensor] = []
        with hooked(layers[layer].attn.c_proj, "input", lambda given, seen=seen: seen.append(given.clone())):
            model(**other)
        with plain.patched(layer, head, range(5), seen[0]), hooked(model.transformer, "output", seen.append):
            model(**one)
        assert torch.allclose(states, seen[-1][0], atol=SUMS_32)
    assert len(found) == model.config.n_layer * model.config.n_head
    longer = dict(tokenizer(f"{PROMPTS['gpt2'][1]} the cat", return_tensors="pt"))
    with pytest.raises(UsageError, match="broadcast"):
        resampled(from_loaded(model, tokenizer), one, longer)


@pytest.mark.parametrize(
    ("site", "at", "heads", "expected"),
    [
        ("z", None, [1], lambda given: torch.cat([given[:, :, :1], 0 * given[:, :, 1:2], given[:, :, 2:]], 2)),
        ("mlp_out", torch.tensor([[True, False, True, False, False]]), None, lambda given: 2 * given),
    ],
    ids=["zero", "a function at positions"],
)
def test_edits_may_be_a_number_or_a_function(site: str, at: Any, heads: Any, expected: Any) -> None:
    checkpoint = from_loaded(*made("gpt2")[:2])
    inputs = dict(checkpoint.tokenizer("the cat ran to the", return_tensors="pt"))
    instead: Any = torch.zeros(()) if site == "z" else lambda value: 2 * value
    with running(checkpoint):
        kept = run_and_keep(checkpoint, inputs, [(0, site)])
        whole = expected(kept.values[0, site])
        new = whole if at is None else torch.where(at[..., None], whole, kept.values[0, site])
        ((_, final),) = edited_passes(kept, [[Edit(0, instead, site, heads, at)]])
        ((_, by_value),) = edited_passes(kept, [[Edit(0, new, site)]])
    assert torch.allclose(final, by_value)
    assert not torch.allclose(final, kept.final)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"site": "k", "receiver": "logits"}, UsageError),
        ({"site": "mlp_out", "self_repair": True, "answer": " house", "foil": " dog"}, UsageError),
        ({"by": "position", "receiver": "logits"}, UsageError),
        ({"site": "resid_pre", "select": "L0H1"}, UsageError),
        ({"site": "stream"}, UsageError),
        ({"by": "token"}, UsageError),
        ({"by": "position", "at": "#9"}, UsageError),
        ({"by": "position", "at": "7:9"}, UsageError),
    ],
)
def test_what_a_site_or_a_position_cannot_be_given_with_is_refused(options: dict[str, Any], error: Any) -> None:
    model, tokenizer, _ = made("gpt2")
    with pytest.raises(error):
        attnviz.patch("the cat ran to the", model, tokenizer=tokenizer, corrupt="the dog ran to the", **options)


def test_a_site_that_a_family_lacks_is_refused_by_name() -> None:
    checkpoint = checkpoint_of("gpt_neox")
    with pytest.raises(ArchitectureError, match="resid_mid"):
        attnviz.patch(
            "the cat ran", checkpoint.whole, tokenizer=checkpoint.tokenizer, corrupt="the dog ran", site="resid_mid"
        )


def of_answer(logits: Tensor, row: Any) -> Tensor:
    """The logit difference as a function of the user's own."""
    ids = made("gpt2")[1].get_vocab()
    answer, foil = (ids[row[name].replace(" ", "Ġ")] for name in ("answer", "foil"))
    return logits[:, answer] - logits[:, foil]


@pytest.mark.parametrize("options", [{}, {"site": "resid_post", "by": "position"}], ids=["z", "resid_post by position"])
def test_a_metric_may_be_a_function(options: dict[str, Any]) -> None:
    model, tokenizer, _ = made("gpt2")
    clean, corrupt, answer, foil = PROMPTS["gpt2"]
    prompts: dict[str, Any] = {"corrupt": corrupt, "answer": answer, "foil": foil, "tokenizer": tokenizer, **options}
    named, own = (attnviz.patch(clean, model, **prompts, metric=metric) for metric in ("logit_difference", of_answer))
    assert (own.clean, own.corrupt) == pytest.approx((named.clean, named.corrupt))
    assert [effect.effect for effect in own.effects] == pytest.approx([effect.effect for effect in named.effects])
    assert own.document()["options"]["metric"] == "of_answer"


@pytest.mark.parametrize(
    ("metric", "named"),
    [
        (lambda logits, _: logits, "shape"),
        (lambda logits, _: logits[:, 0] * float("nan"), "nan"),
        (lambda _, row: row["house"], "house"),
    ],
    ids=["another shape", "not a number", "raises"],
)
def test_a_function_that_gives_no_number_a_row_is_refused_with_its_own_words(metric: Any, named: str) -> None:
    model, tokenizer, _ = made("gpt2")
    with pytest.raises(UsageError, match=named):
        attnviz.patch("the cat ran", model, tokenizer=tokenizer, corrupt="the dog ran", metric=metric)


@pytest.mark.parametrize("family", first_of(("jamba", "gpt_neox", "gemma2"), "jamba"))
def test_the_whole_stream_carries_the_whole_difference(family: str) -> None:
    """Before the first layer and after the last; also where layers do not attend, or run side by side."""
    model, tokenizer = model_of(family, headed=True)
    prompts: dict[str, Any] = {"clean": "the cat ran", "corrupt": "the dog ran", "answer": 5, "foil": 16}
    for site, at in (("resid_pre", 0), ("resid_post", -1)):
        result = attnviz.patch(model=model, tokenizer=tokenizer, site=site, **prompts)
        layers = sorted(result.effects, key=lambda effect: result.checkpoint.every_layer.index(effect.layer))
        assert len(layers) == len(result.checkpoint.every_layer)
        assert layers[at].effect == pytest.approx(1, abs=SUMS_32 * 10)


def test_a_table_is_patched_by_position_where_its_prompts_are_as_long(tmp_path: Path) -> None:
    model, tokenizer, _ = made("gpt2")
    rows = [
        (f"the {word} ran to the", f"the dog {last} to the") for word in ("cat", "house") for last in ("ran", "saw")
    ]
    table = tmp_path / "pairs.jsonl"
    table.write_text("\n".join(json.dumps({"clean": clean, "corrupt": corrupt}) for clean, corrupt in rows))
    options: dict[str, Any] = {"tokenizer": tokenizer, "site": "resid_pre", "by": "position"}
    result = attnviz.patch(table, model, **options, batch_size=2)
    assert {(effect.position, effect.token) for effect in result.effects if effect.layer == 0} == {
        *((0, "the"), (1, None), (2, "ran"), (3, "to"), (4, "the"))
    }
    assert result.n_unrelated > 0
    result.save(tmp_path / "out", figures=[])
    with (tmp_path / "out" / "patch.csv").open() as file:
        assert {row["token"] for row in DictReader(file) if row["position"] == "1"} == {""}
    table.write_text(table.read_text() + "\n" + json.dumps({"clean": "the cat ran", "corrupt": "the dog ran"}))
    with pytest.raises(UsageError):
        attnviz.patch(table, model, **options)
    longer = attnviz.patch(table, model, tokenizer=tokenizer, site="mlp_out")
    assert len(longer.effects) == model.config.n_layer


@torch.no_grad()
def test_where_heads_carry_little_it_is_said_what_to_look_at() -> None:
    model, tokenizer = next_token_model()
    prompts: dict[str, Any] = {"corrupt": "the dog ran to the dog", "answer": " house", "foil": " dog"}
    for block in model.transformer.h:
        block.attn.c_proj.weight.mul_(1e-3)
    result = attnviz.patch("the cat ran to the cat", model, tokenizer=tokenizer, **prompts)
    assert "--site mlp_out" in result.report()
    other = attnviz.patch("the cat ran", made("gpt2")[0], tokenizer=tokenizer, corrupt="the dog ran")
    assert "--site mlp_out" not in other.report()
