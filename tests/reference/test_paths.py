"""Path patching and self-repair beside plain forward hooks, and on models whose paths are known by design."""

from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2LMHeadModel

from attnviz.commands.outputs import head_outputs
from attnviz.errors import VerificationError
from attnviz.inputs.text import tokenize
from attnviz.measures import paths, self_repair
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.head_ids import HeadId, all_heads
from attnviz.run.edit import KeptPass, run_and_keep, running
from tests.support.ablations import next_token_model
from tests.support.families import LLAMAS, TEXT, model_of
from tests.support.llamas import HYBRID
from tests.support.models import gpt2_config, gpt2_tokenizer
from tests.support.tolerances import SHARP_32, SUMS_32

FIRST = ("mixtral", "falcon")
OTHERS = "gemma2 gpt_neox llama cohere phi3 deepseek_v3 gpt_oss jamba gptj gpt_neo opt bloom modernbert".split()
"""A family of each kind: norms, experts, blocks in parallel, fused projections, networks that write in place."""

BASE, OTHER = torch.tensor([[5, 9, 17, 13, 9, 21, 5]]), torch.tensor([[5, 12, 17, 30, 8, 21, 7]])


def kept(checkpoint: Checkpoint, *texts: Tensor) -> list[KeptPass]:
    """A pass of each text; inside :func:`running`."""
    return [run_and_keep(checkpoint, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}) for ids in texts]


def logits_along(
    checkpoint: Checkpoint,
    name: str,
    base: Tensor = BASE,
    other: Tensor = OTHER,
    at: Tensor | None = None,
    networks: str = "frozen",
) -> dict[HeadId, Tensor]:
    """By sender the logits [n, vocabulary] with its path to a receiver patched."""
    found: dict[HeadId, Tensor] = {}
    with running(checkpoint):
        receiver = paths.receiver_named(name, checkpoint, networks)
        senders = receiver.senders(checkpoint)
        runs = kept(checkpoint, base, other)
        where = torch.ones_like(base, dtype=torch.bool) if at is None else at
        for numbers, final in paths.along_paths(*runs, receiver, senders, where):
            logits: Any = checkpoint.language_head(final)
            found |= {senders[number]: each for number, each in zip(numbers, logits, strict=True)}
    return found


@torch.no_grad()
def logits_by_hooks(
    checkpoint: Checkpoint,
    sender: HeadId,
    receiver: HeadId | None,
    reads: str = "",
    at: Any = slice(None),
    networks: str = "frozen",
) -> Tensor:
    """Logits [n, vocabulary] of the base with one path patched: passes of Wang et al., networks frozen or running."""
    layers, model = checkpoint.modules, checkpoint.whole
    outputs = [layer.feed_forward_output_norm or layer.network_output for layer in layers]
    outputs += [layer.experts for layer in layers if layer.experts is not None]
    mixers = [layer.output for layer in layers if not layer.attends]
    held = [*mixers, *(outputs if networks == "frozen" else [])]

    def logits(ids: Tensor, into: Callable[[Any, Tensor], Tensor], out: Callable[[Any, Tensor], Tensor]) -> Tensor:
        with ExitStack() as stack:
            for layer in layers:
                if layer.attends:
                    stack.enter_context(layer.o_proj.register_forward_pre_hook(lambda m, args: (into(m, args[0]),)))
            for module in {*outputs, *mixers, *(each for layer in layers for each in layer.projections)}:
                stack.enter_context(module.register_forward_hook(lambda m, _, result: out(m, result)))
            return model(ids).logits[0]

    base, other, frozen = dict[Any, Tensor](), dict[Any, Tensor](), dict[Any, Tensor]()

    def keep(kept: dict[Any, Tensor]) -> Callable[[Any, Tensor], Tensor]:
        def own(module: Any, x: Tensor) -> Tensor:
            kept.setdefault(module, deepcopy(x))  # Falcon adds to what its network gives, in place
            return x

        return own

    logits(BASE, keep(base), keep(base))
    logits(OTHER, keep(other), keep(other))
    sends = layers[sender.layer].o_proj
    d_head = base[sends].shape[-1] // checkpoint.n_heads
    columns = slice(sender.head * d_head, (sender.head + 1) * d_head)

    def heads(module: Any, _: Tensor) -> Tensor:
        values = base[module].clone()
        if module is sends:
            values[:, at, columns] = other[module][:, at, columns]
        return values

    direct = logits(BASE, heads, lambda m, x: deepcopy(base[m]) if m in held else frozen.setdefault(m, x))
    if receiver is None:
        return direct
    projections, number = layers[receiver.layer].projections, "qkv".index(reads)
    gates = 1 + (checkpoint.architecture.gated and reads == "q")  # each head's follow its queries
    first = receiver.head * d_head * gates + (number * checkpoint.d_model if len(projections) == 1 else 0)
    if checkpoint.architecture.fused_by_head:
        first = (3 * receiver.head + number) * d_head
    changed = projections[0] if len(projections) == 1 else projections[number]

    def projected(module: Any, result: Tensor) -> Tensor:
        if module is changed:
            result = result.clone()
            result[..., first : first + d_head] = frozen[module][..., first : first + d_head]
        return result

    return logits(BASE, lambda _, x: x, projected)


def ungrouped(model: Any) -> Any:
    """A Llama in which every head has keys and values of its own, the same as in its group: the same function."""
    own = type(model)(type(model.config)(**model.config.to_dict() | {"num_key_value_heads": 4})).eval()
    weights = model.state_dict()
    for name, value in weights.items():
        if ".k_proj." in name or ".v_proj." in name:
            weights[name] = value.unflatten(0, (2, -1)).repeat_interleave(2, 0).flatten(0, 1)
    own.load_state_dict(weights)
    return own


def differences(
    checkpoint: Checkpoint, name: str, apart: Checkpoint, at: Any = slice(None), networks: str = "frozen"
) -> float:
    """Largest change by any path to a receiver, after it was compared with that of the hooks."""
    receiver, changes = paths.receiver_named(name, checkpoint), []
    with torch.no_grad():
        unchanged = checkpoint.whole(BASE).logits[0]
    where = torch.zeros_like(BASE, dtype=torch.bool)
    where[:, at] = True
    for sender, ours in logits_along(checkpoint, name, at=where, networks=networks).items():
        theirs = logits_by_hooks(apart, sender, receiver.head, receiver.reads, at, networks)
        torch.testing.assert_close(ours, theirs, rtol=SUMS_32, atol=SUMS_32)
        changes.append(float((theirs - unchanged).abs().max()))
    return max(changes)


@pytest.mark.parametrize(
    ("family", "networks"),
    [
        ("llama", "frozen"),
        ("qwen3_5_text", "frozen"),
        ("gpt2", "run"),
        pytest.param("bloom", "run", marks=pytest.mark.thorough),
    ],
)
def test_paths_to_heads_are_those_of_plain_hooks(family, networks):
    """BLOOM cannot be run from a layer on."""
    widths: dict[str, Any] = {"head_dim": 8} if family in LLAMAS else {}
    if family in HYBRID:
        widths["layer_types"] = ["full_attention"] * 2
    model, tokenizer = next_token_model() if family == "gpt2" else model_of(family, headed=True, **widths)
    checkpoint = from_loaded(model, tokenizer)
    apart = from_loaded(ungrouped(model), tokenizer) if family in LLAMAS else checkpoint
    last = checkpoint.n_layers - 1
    for name in (f"L{last}H1.q", f"L{last}H1.k", f"L{last}H1.v", "L1H2.k"):  # layers after L1H2 run, too
        assert differences(checkpoint, name, apart, networks=networks) > 5e-4
    assert differences(checkpoint, "L1H2.k", apart, [1, 3], networks) > 5e-4


@pytest.mark.parametrize("family", [*FIRST, *(pytest.param(each, marks=pytest.mark.thorough) for each in OTHERS)])
def test_paths_to_logits_are_those_of_plain_hooks(family):
    """And with nothing sent to any head nothing changes, which the product checks in every pass."""
    checkpoint = from_loaded(*model_of(family, headed=True))
    for networks in ("frozen", "run"):
        assert differences(checkpoint, "logits", checkpoint, networks=networks) > 1e-4
    if family in HYBRID:  # one layer attends
        return
    for name in ("L1H1.q", "L1H1.k", "L1H1.v"):
        (one, *_, other) = logits_along(checkpoint, name).values()
        assert family not in LLAMAS or float((one - other).abs().max()) > 1e-5


def test_an_encoder_whose_norms_follow_has_no_paths():
    assert "norm" in paths.why_no_paths(from_loaded(*model_of("bert", headed=True)))


BOS, SIGNAL, NOISE, ASKS, ANSWER, FOIL = range(10, 16)


def with_backup(repairs: bool) -> Checkpoint:
    """A GPT-2 without networks: L0H0 writes the answer where it is asked for; L1H0 does so only if L0H0 did not.

    A direction is a pair of dimensions, one + and one -, so that norms do not move it. After noise L0H0 writes another
    direction of the same length, so that the scale of no norm depends on what it writes.
    """
    config = gpt2_config(n_embd=32, n_layer=2, n_head=2, tie_word_embeddings=False)
    model = GPT2LMHeadModel(config).eval()

    def direction(number: int) -> Tensor:
        return torch.eye(config.n_embd)[2 * number] - torch.eye(config.n_embd)[2 * number + 1]

    bos, signal, noise, asks, answer, other = map(direction, range(6))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not (".ln_" in name and name.endswith("weight")):
                parameter.zero_()
        for token, code in ((BOS, bos), (SIGNAL, signal), (NOISE, noise), (ASKS, asks)):
            model.transformer.wte.weight[token] = code
        model.lm_head.weight[ANSWER] = answer
        first, second = (block.attn for block in model.transformer.h)
        query, key, value = 0, config.n_embd, 2 * config.n_embd  # first columns of head 0
        first.c_attn.weight[:, query] = 2 * asks
        first.c_attn.weight[:, key] = signal + noise
        first.c_attn.weight[:, value] = signal / 8
        first.c_attn.weight[:, value + 1] = noise / 8
        first.c_proj.weight[0], first.c_proj.weight[1] = answer, other
        second.c_attn.weight[:, query] = 4 * (asks - 2 * answer)  # asked, and no answer yet
        second.c_attn.weight[:, key] = signal
        if repairs:
            second.c_attn.weight[:, value] = signal / 8
        second.c_proj.weight[0] = answer
    return from_loaded(model, gpt2_tokenizer())


def test_a_backup_head_repairs_and_without_one_nothing_does():
    clean, corrupt = torch.tensor([[BOS, SIGNAL, ASKS]]), torch.tensor([[BOS, NOISE, ASKS]])
    read, answer, foil = torch.tensor([2]), torch.tensor([ANSWER]), torch.tensor([FOIL])
    everywhere = torch.ones_like(clean, dtype=torch.bool)
    found = []
    for checkpoint in map(with_backup, (True, False)):
        with running(checkpoint):
            runs = kept(checkpoint, clean, corrupt)
            found += self_repair.self_repairs(*runs, [HeadId(0, 0)], read, answer, foil, everywhere)
    with_one, without = found
    assert float(with_one.direct) > 0.5
    assert float(with_one.total) < 0.6 * float(with_one.direct)
    largest = max(with_one.changes, key=lambda source: abs(float(with_one.changes[source])))
    assert largest == HeadId(1, 0)
    assert float(without.direct) > 0.5
    assert float(without.total) == pytest.approx(float(without.direct), abs=SUMS_32)
    assert max(abs(float(each)) for each in (without.norm, *without.changes.values())) < SUMS_32


@pytest.mark.parametrize(
    "family",
    ["gpt2", "granite", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("llama", "gpt_neo", "mixtral"))],
)
def test_removed_heads_have_the_direct_effects_of_outputs_and_the_logits_of_hooks(family):
    """Against nothing (zeros) a head loses its whole direct effect; total: logits without it; the rest sums up."""
    checkpoint = from_loaded(*model_of(family, headed=True))
    ids = torch.tensor([tokenize(checkpoint, TEXT).ids])
    effects = head_outputs(TEXT, checkpoint, token=ids.shape[1] - 1, answer=17, foil=13).effects
    assert effects is not None
    heads = all_heads(checkpoint.n_layers, checkpoint.n_heads)
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    read, answer, foil = torch.tensor([ids.shape[1] - 1]), torch.tensor([17]), torch.tensor([13])
    with running(checkpoint):
        (base,) = kept(checkpoint, ids)
        nothing = replace(base, values={key: torch.zeros_like(value) for key, value in base.values.items()})
        repairs = list(self_repair.self_repairs(base, nothing, heads, read, answer, foil, everywhere))
        for each in repairs:
            layer, head = each.head
            d_head = base.values[layer, "z"].shape[-1]
            columns = torch.arange(head * d_head, (head + 1) * d_head)
            without = partial(lambda _, args, columns: (args[0].index_fill(-1, columns, 0),), columns=columns)
            with checkpoint.modules[layer].o_proj.register_forward_pre_hook(without):
                logits = checkpoint.whole(ids).logits[0, -1]
            assert float(each.direct) == pytest.approx(effects.heads[each.head], abs=SHARP_32)
            assert float(each.total) == pytest.approx(effects.difference - float(logits[17] - logits[13]), abs=SHARP_32)
            repaired = float(each.norm) + sum(float(change) for change in each.changes.values())
            assert repaired == pytest.approx(float(each.direct - each.total), abs=SHARP_32)
            assert abs(repaired) > 1e-6 or layer == checkpoint.n_layers - 1


def test_a_pass_that_is_not_the_models_is_refused(monkeypatch):
    checkpoint = from_loaded(*next_token_model())
    parameters = checkpoint.architecture.parameters

    def turned(model: Any, layer: int) -> Any:
        found = parameters(model, layer)
        return replace(found, scale=1.1 * found.scale)

    monkeypatch.setattr(checkpoint.architecture, "parameters", turned)
    with pytest.raises(VerificationError):
        logits_along(checkpoint, "L1H1.q")
