"""Encoder-decoders: the reference against transformers' eager attention, and every wrong variant of it refused."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import NllbTokenizer
from typer.testing import CliRunner, Result

from attnviz import analyze
from attnviz.cli.program import app
from attnviz.commands.heads.page_view import command_options
from attnviz.errors import ArchitectureError, TextError, VerificationError
from attnviz.models.checkpoint import from_loaded
from attnviz.models.families import architecture_of, encoder_decoder
from attnviz.models.opening import open_checkpoint
from attnviz.models.tokens import shifted_right
from attnviz.reference import attention, positions
from attnviz.reference.positions import bucketed_bias, position_buckets
from attnviz.trace.verify import verify_attention
from tests.support.encoder_decoders import FAMILIES, SOURCE, TARGET, drawn_settings, saved, sharp, unigram_tokenizer
from tests.support.models import save_checkpoint
from tests.support.recorded import batch, verified_batch, whole_pattern


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return unigram_tokenizer()


@pytest.fixture(scope="module")
def models(tokenizer) -> dict[str, Any]:
    """Each family, as transformers loads it: with sdpa and its head."""
    return {family: from_loaded(sharp(family, len(tokenizer)), tokenizer) for family in FAMILIES}


def verified(checkpoint: Any, target: str = TARGET) -> Any:
    read = shifted_right(checkpoint.tokenize(target, target=True), 0, "<pad>")
    return verify_attention(checkpoint, checkpoint.tokenize(SOURCE), target=read), read


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_attention_is_the_models_own(models, family):
    checkpoint = models[family]
    attention, read = verified(checkpoint)
    model = checkpoint.model
    model.set_attn_implementation("eager")
    given = {
        "input_ids": torch.tensor([checkpoint.tokenize(SOURCE).ids]),
        "decoder_input_ids": torch.tensor([read.ids]),
    }
    with torch.no_grad():
        own = model(**given, output_attentions=True, use_cache=False)
    theirs = [*own.encoder_attentions, *own.decoder_attentions, *own.cross_attentions]
    names = [f"E{i}" for i in range(2)] + [f"{letter}{i}" for letter in "DX" for i in range(3)]
    assert [str(check.layer) for check in attention.verification.layers] == names
    for layer, pattern in zip(checkpoint.layers, theirs, strict=True):
        torch.testing.assert_close(whole_pattern(attention, layer), pattern, atol=1e-6, rtol=0)
        assert pattern.amax(-1).mean() > 0.3  # far from flat, or nothing could be seen


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["bart", "t5"])
def test_they_verify_in_every_number_format(tokenizer, family, dtype):
    checkpoint = from_loaded(sharp(family, len(tokenizer)).to(dtype), tokenizer)
    attention, _ = verified(checkpoint)
    assert attention.verification.heads_compared == {"bart": 2 * 3 + 6 * 4, "t5": 8 * 4}[family]
    if dtype == torch.float64:
        assert attention.verification.pattern_error < 1e-13


@settings(max_examples=8)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), left=st.booleans())
@pytest.mark.parametrize("family", [family for family in FAMILIES if "t5" not in family])
def test_settings_drawn_at_random_verify_in_padded_batches(tokenizer, family, data, dtype, left):
    checkpoint = from_loaded(sharp(family, len(tokenizer), **data.draw(drawn_settings())).to(dtype), tokenizer)
    inputs = batch(len(tokenizer), (9, 5))
    if left:
        inputs = {name: values.flip(1) for name, values in inputs.items()}
    inputs |= {f"decoder_{name}": values for name, values in inputs.items()}
    verification = verified_batch(checkpoint, inputs)
    assert verification.heads_compared == sum(map(checkpoint.n_heads_of, range(checkpoint.n_layers)))
    assert verification.pattern_error <= (1e-6 if dtype != torch.bfloat16 else 0.02)


@pytest.mark.parametrize("family", ["mbart", "m2m_100", "pegasus"])
def test_norms_of_another_order_fail(models, monkeypatch, family):
    monkeypatch.setattr(type(models[family].architecture), "pre_norm", False)
    with pytest.raises(VerificationError, match="layer E0 of the model ran the norm after its attention without"):
        verified(models[family])


def plain_bucket(ahead: int, n_buckets: int, farthest: int, causal: bool) -> int:
    """As Raffel et al. describe it: half of the buckets for single distances, half growing up to the farthest."""
    own = n_buckets if causal else n_buckets // 2
    distance = max(-ahead, 0) if causal else abs(ahead)
    exact = own // 2
    if distance >= exact:
        distance = min(own - 1, exact + int(math.log(distance / exact) / math.log(farthest / exact) * (own - exact)))
    return distance + (own if ahead > 0 and not causal else 0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n_buckets", "farthest"), [(32, 128), (8, 6), (12, 50)])
def test_buckets_of_distances_are_those_of_a_plain_loop(n_buckets, farthest, causal):
    found = position_buckets(torch.arange(10, 70), 90, n_buckets, farthest, causal)
    expected = [[plain_bucket(k - q, n_buckets, farthest, causal) for k in range(90)] for q in range(10, 70)]
    assert found.tolist() == expected


def test_a_bias_is_the_tables_row_of_the_pairs_bucket():
    table = torch.randn(8, 3)
    bias = bucketed_bias(table, 3, 5, 7, 6, causal=False)
    assert bias.shape == (3, 5, 7)
    assert bias[2, 1, 6] == table[plain_bucket(6 - (3 + 1), 8, 6, causal=False), 2]


def mutated(monkeypatch: pytest.MonkeyPatch, family: str, change: Any) -> None:
    """Let the family's parameters be changed: ``change(parameters, letter)``."""
    kind = {"t5": encoder_decoder.T5, "bart": encoder_decoder.Bart}[family]
    original = kind.parameters

    def wrong(self: Any, model: Any, layer: int) -> Any:
        return change(original(self, model, layer), str(layer)[0])

    monkeypatch.setattr(kind, "parameters", wrong)


def heads_swapped(parameters: Any) -> Any:
    order = torch.arange(parameters.n_heads).roll(1)
    return replace(parameters, query=attention.Projection(parameters.query.weight[order],
                   None if parameters.query.bias is None else parameters.query.bias[order]))  # fmt: skip


def without(parameters: Any, name: str) -> Any:
    return replace(parameters, **{name: replace(getattr(parameters, name), bias=None)})


MUTATIONS = {
    "scale": ("bart", "E", lambda p: replace(p, scale=1.0)),
    "scale of T5": ("t5", "E", lambda p: replace(p, scale=8**-0.5)),
    "no causal mask": ("bart", "D", lambda p: replace(p, causal=False)),
    "a causal mask on the encoder": ("t5", "E", lambda p: replace(p, causal=True)),
    "no position bias": ("t5", "E", lambda p: replace(p, position_bias=None)),
    "no position bias in the decoder": ("t5", "D", lambda p: replace(p, position_bias=None)),
    "a position bias in cross-attention": (
        "t5", "X", lambda p: replace(p, position_bias=lambda _, n, m: torch.linspace(-1, 1, m).expand(p.n_heads, n, m)),
    ),
    "no bias of queries": ("bart", "X", lambda p: without(p, "query")),
    "no bias of values": ("bart", "X", lambda p: without(p, "value")),
    "no bias of the output": ("bart", "D", lambda p: replace(p, output_bias=None)),
    "order of heads": ("bart", "X", heads_swapped),
    "order of heads in T5": ("t5", "D", heads_swapped),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_variant_fails_and_is_named_by_its_layer(models, monkeypatch, name):
    family, letter, change = MUTATIONS[name]
    mutated(monkeypatch, family, lambda parameters, at: change(parameters) if at == letter else parameters)
    with pytest.raises(VerificationError, match=rf"do not reproduce the model: \d of 8 .* layer {letter}\d"):
        verified(models[family])


def test_the_wrong_buckets_fail(models, monkeypatch):
    right = positions.position_buckets
    monkeypatch.setattr(positions, "position_buckets", lambda q, k, n, far, causal: right(q, k, n, far, False))
    with pytest.raises(VerificationError, match=r"layer D\d"):
        verified(models["t5"])


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_keys_of_the_target_instead_of_the_source_fail(models, monkeypatch, family):
    checkpoint = models[family]
    right = attention.queries_and_keys

    def of_target(x: Any, source: Any, parameters: Any) -> Any:
        return right(x, x[:, torch.arange(source.shape[1]) % x.shape[1]], parameters)  # as many as there were

    monkeypatch.setattr(attention, "queries_and_keys", of_target)
    where = r"3 of 8 layers differ.*\(X\dH\d\), query \d+ \('.*'\), key .* The keys differ before that"
    with pytest.raises(VerificationError, match=where):
        verified(checkpoint)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_cross_attention_that_reads_other_states_than_the_encoders_fails(models, family):
    checkpoint = models[family]
    wrong = next(layer for layer in checkpoint.layers if str(layer) == "X1")
    attention = checkpoint.architecture.modules(checkpoint.model)[wrong].pattern

    def shuffled(_: Any, args: Any, kwargs: Any) -> Any:
        return args, {**kwargs, "key_value_states": kwargs["key_value_states"].flip(1)}

    with (
        attention.register_forward_pre_hook(shuffled, with_kwargs=True),
        pytest.raises(VerificationError, match=r"layer X1: the states .* are not the encoder's own output"),
    ):
        verified(checkpoint)


def test_a_source_that_is_masked_wrongly_fails(models, monkeypatch):
    right, checkpoint = attention.pattern_of, models["bart"]
    n_source = len(checkpoint.tokenize(SOURCE))

    def shortened(query: Any, key: Any, scoring: Any, allowed: Any, first: int) -> Any:
        if query.shape[-2] != key.shape[-2] == n_source:  # no other layer has as many keys
            allowed = torch.arange(n_source) < n_source - 1
        return right(query, key, scoring, allowed, first)

    monkeypatch.setattr(attention, "pattern_of", shortened)
    with pytest.raises(VerificationError, match=r"3 of 8 layers differ.*key \d+ \('</s>'\)"):
        verified(checkpoint)


def test_a_patterns_rows_and_columns_are_named_by_their_own_texts(models, monkeypatch):
    right, checkpoint = attention.pattern_of, models["t5"]
    n_source = len(checkpoint.tokenize(SOURCE))

    def perturbed(query: Any, key: Any, *more: Any) -> Any:
        pattern = right(query, key, *more)
        if 1 < query.shape[-2] != key.shape[-2] == n_source:
            pattern[0, 1, 2, -2] += 0.5
        return pattern

    monkeypatch.setattr(attention, "pattern_of", perturbed)
    read, key = shifted_right(checkpoint.tokenize(TARGET, target=True), 0, "<pad>"), checkpoint.tokenize(SOURCE)
    where = rf"\(X\dH1\), query 2 \({read.labels[2]!r}\), key {len(key) - 2} \({key.labels[-2]!r}\)"
    with pytest.raises(VerificationError, match=where):
        verified(checkpoint)


@pytest.mark.draws
@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_checkpoint_loads_with_every_weight_and_its_head(tmp_path, family):
    if family == "marian":
        pytest.importorskip("sentencepiece")
    checkpoint, _ = open_checkpoint(str(saved(family, tmp_path)), device="cpu")
    assert checkpoint.language_head is not None
    assert [(stack.letter, stack.n_layers) for stack in checkpoint.stacks] == [("E", 2), ("D", 3), ("X", 3)]
    assert verified(checkpoint)[0].verification.heads_compared == (32 if family in ("t5", "mt5") else 30)


@pytest.mark.parametrize("family", ["bart", "t5", "mt5"])
def test_generation_is_that_of_transformers(models, family):
    model = sharp(family, models[family].config.vocab_size)
    checkpoint = from_loaded(model, models[family].tokenizer)
    found = analyze(SOURCE, checkpoint, max_new_tokens=7)
    given = torch.tensor([checkpoint.tokenize(SOURCE).ids])
    model.generation_config.suppress_tokens = [0]
    expected = model.generate(given, do_sample=False, num_beams=1, max_new_tokens=7, use_cache=False)[0].tolist()
    assert found.target.generated
    assert list(found.target.tokens.ids) == expected[:-1]  # the last token is predicted, not read


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_config_that_asks_for_tuples_generates_the_same(models, family):
    model = sharp(family, models[family].config.vocab_size)
    model.config.return_dict = False
    found = analyze(SOURCE, model, tokenizer=models[family].tokenizer, max_new_tokens=7)
    assert found.target.tokens.ids == analyze(SOURCE, models[family], max_new_tokens=7).target.tokens.ids


def test_targets_begin_with_their_language(tokenizer):
    """As NLLB's do: the source's code before the source, the target's before a target, given or generated."""
    pieces: Any = tokenizer.get_vocab()  # in no order, each with its id
    nllb = NllbTokenizer(vocab=pieces, merges=[], src_lang="eng_Latn", extra_special_tokens=["eng_Latn", "deu_Latn"])
    model = sharp("m2m_100", len(nllb), max_position_embeddings=80)
    model.lm_head.weight.data[nllb.all_special_ids] = 0  # most of its pieces are languages
    checkpoint = from_loaded(model, nllb)
    with pytest.raises(TextError, match=r"begins or ends with its language, .* tokenizer\.tgt_lang = "):
        analyze(SOURCE, checkpoint, target=TARGET)
    nllb.tgt_lang = "deu_Latn"
    for target in (TARGET, None):
        found = analyze(SOURCE, checkpoint, target=target, max_new_tokens=None if target else 4)
        assert (found.tokens.labels[0], found.target.tokens.labels[1]) == ("eng_Latn", "deu_Latn")
        assert found.verification.level == 4
    assert "--source-language eng_Latn --target-language deu_Latn" in " ".join(command_options(found))
    german = nllb.convert_tokens_to_ids("deu_Latn")
    how: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 5, "forced_bos_token_id": german, "suppress_tokens": [2]}
    expected = model.generate(torch.tensor([found.tokens.ids]), do_sample=False, use_cache=False, **how)[0].tolist()
    assert list(found.target.tokens.ids) == expected[:-1]


def test_languages_are_options_of_a_tokenizer_that_has_them(tokenizer, tmp_path, bert_folder, monkeypatch):
    pieces: Any = tokenizer.get_vocab()
    codes = ["eng_Latn", "deu_Latn", "fra_Latn"]
    nllb = NllbTokenizer(vocab=pieces, merges=[], src_lang="eng_Latn", extra_special_tokens=codes)
    model = sharp("m2m_100", len(nllb), max_position_embeddings=80)
    model.lm_head.weight.data[nllb.all_special_ids] = 0
    folder = save_checkpoint(model, nllb, tmp_path / "nllb")
    monkeypatch.chdir(tmp_path)

    def run(command: str, model: Path, *words: str) -> Result:
        quiet = ("--figures", "none", "--json", "--device", "cpu")
        return CliRunner().invoke(app, [command, SOURCE, "-m", str(model), *words, *quiet])

    into = ("--source-language", "fra_Latn", "--target-language", "deu_Latn")
    for command, target in itertools.product(
        ("heads", "outputs", "ablate"), (("--target", TARGET), ("--max-new-tokens", "4"))
    ):
        found = run(command, folder, *into, *target)
        assert found.exit_code == 0, found.output
        if command == "heads":
            document = json.loads(found.stdout)
            labels = document["tokens"][0]["text"], document["target_tokens"][1]["text"]
            assert labels == ("fra_Latn", "deu_Latn")
    for model, words, message in (
        (folder, ("--target", TARGET), "its language, which this tokenizer does not know; expected --target-language"),
        (
            folder,
            ("--target-language", "deu"),
            "unknown language --target-language deu: expected one of eng_Latn, deu_",
        ),
        (folder, ("--source-language", "<pad>"), "unknown language --source-language <pad>: expected one of eng_Latn"),
        (bert_folder, into, "unknown language --source-language fra_Latn: expected none, as this tokenizer has none"),
    ):
        refused = run("heads", model, *words)
        assert refused.exit_code in (1, 2)
        assert message in " ".join(refused.stderr.split())


def test_a_model_without_a_head_says_that_it_needs_a_target(tokenizer):
    bare = from_loaded(sharp("bart", len(tokenizer)).model, tokenizer)
    with pytest.raises(TextError, match=r"no language-modelling head.*give one: --target"):
        analyze(SOURCE, bare)
    assert analyze(SOURCE, bare, target=TARGET).target.text == TARGET


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("bart", {"is_encoder_decoder": False}, "bart has is_encoder_decoder=False"),
        ("t5", {"decoder_start_token_id": None}, "t5 has decoder_start_token_id=None"),
        ("t5", {"relative_attention_num_buckets": 7}, "relative_attention_num_buckets=7"),
        ("m2m_100", {"pad_token_id": None}, "m2m_100 has pad_token_id=None"),
        ("bart", {"decoder_layers": 0}, "0 layers of 4 heads in its decoder"),
    ],
)
def test_a_setting_that_is_not_reproduced_is_refused_by_name(family, changes, message):
    config_class, _, settings = FAMILIES[family]
    with pytest.raises(ArchitectureError, match=message):
        architecture_of(config_class(**{**settings, **changes}), torch.float32)


def test_an_encoder_alone_is_refused(tokenizer):
    from transformers import T5EncoderModel

    model = T5EncoderModel(sharp("t5", len(tokenizer)).config)
    with pytest.raises(ArchitectureError, match="this t5 has is_encoder_decoder=False"):
        from_loaded(model, tokenizer)


def test_a_notebook_shows_the_page_and_the_tables(models):
    shown = analyze(SOURCE, models["bart"], target=TARGET, syntax=False)._repr_html_()
    assert "<iframe" in shown
    assert "Cross-attention (X)" in shown
