"""Encoder-decoders: the reference against transformers' eager attention, and every wrong variant of it refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import NllbTokenizer, T5EncoderModel
from typer.testing import CliRunner, Result

from attnviz import analyze
from attnviz.cli.program import app
from attnviz.errors import ArchitectureError, TextError
from attnviz.inputs.prompt import shifted_right
from attnviz.inputs.text import tokenize
from attnviz.models.checkpoint import from_loaded
from attnviz.reference.positions import position_buckets
from attnviz.run.verify import verify_attention
from tests.support.encoder_decoders import FAMILIES, SOURCE, TARGET, sharp, unigram_tokenizer
from tests.support.families import first_of
from tests.support.models import save_checkpoint
from tests.support.recorded import whole_pattern
from tests.support.tolerances import SUMS_32


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return unigram_tokenizer()


@pytest.fixture(scope="module")
def models(tokenizer) -> dict[str, Any]:
    return {family: from_loaded(sharp(family, len(tokenizer)), tokenizer) for family in FAMILIES}


def verified(checkpoint: Any, target: str = TARGET) -> Any:
    read = shifted_right(tokenize(checkpoint, target, target=True), 0, "<pad>")
    return verify_attention(checkpoint, tokenize(checkpoint, SOURCE), target=read), read


@pytest.mark.parametrize("family", first_of(FAMILIES, "bart", "t5"))
def test_every_kind_of_attention_is_the_models_own(models, family):
    checkpoint = models[family]
    model = checkpoint.model
    model.set_attn_implementation("eager")
    attention, read = verified(checkpoint)
    given = {
        "input_ids": torch.tensor([tokenize(checkpoint, SOURCE).ids]),
        "decoder_input_ids": torch.tensor([read.ids]),
    }
    with torch.no_grad():
        own = model(**given, output_attentions=True, use_cache=False)
    theirs = [*own.encoder_attentions, *own.decoder_attentions, *own.cross_attentions]
    names = [f"E{i}" for i in range(2)] + [f"{letter}{i}" for letter in "DX" for i in range(3)]
    assert [str(check.layer) for check in attention.verification.layers] == names
    for layer, pattern in zip(checkpoint.layers, theirs, strict=True):
        torch.testing.assert_close(whole_pattern(attention, layer), pattern, atol=SUMS_32, rtol=0)
        assert pattern.amax(-1).mean() > 0.3  # far from flat, or nothing could be seen


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


@pytest.mark.parametrize("family", first_of(["bart", "t5"]))
def test_generation_is_that_of_transformers_also_where_the_config_asks_for_tuples(models, family):
    model, tokenizer = sharp(family, models[family].config.vocab_size), models[family].tokenizer
    found = analyze(SOURCE, from_loaded(model, tokenizer), max_new_tokens=7)
    model.generation_config.suppress_tokens = [0]
    how: Any = {"do_sample": False, "num_beams": 1, "max_new_tokens": 7, "use_cache": False}
    expected = model.generate(torch.tensor([found.tokens.ids]), **how)[0].tolist()
    assert found.target.generated
    assert list(found.target.tokens.ids) == expected[:-1]  # the last token is predicted, not read
    model.config.return_dict = False
    assert analyze(SOURCE, model, tokenizer=tokenizer, max_new_tokens=7).target.tokens == found.target.tokens


def test_targets_begin_with_their_language(tokenizer):
    pieces: Any = tokenizer.get_vocab()  # in no order, each with its id
    nllb = NllbTokenizer(vocab=pieces, merges=[], src_lang="eng_Latn", extra_special_tokens=["eng_Latn", "deu_Latn"])
    model = sharp("m2m_100", len(nllb), max_position_embeddings=80)
    model.lm_head.weight.data[nllb.all_special_ids] = 0  # most of its pieces are languages
    checkpoint = from_loaded(model, nllb)
    with pytest.raises(TextError, match="tgt_lang"):
        analyze(SOURCE, checkpoint, target=TARGET)
    nllb.tgt_lang = "deu_Latn"
    for target in (TARGET, None):
        found = analyze(SOURCE, checkpoint, target=target, max_new_tokens=None if target else 4)
        assert (found.tokens.labels[0], found.target.tokens.labels[1]) == ("eng_Latn", "deu_Latn")
        assert found.verification.level == 4
    german = nllb.convert_tokens_to_ids("deu_Latn")
    how: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 5, "forced_bos_token_id": german, "suppress_tokens": [2]}
    expected = model.generate(torch.tensor([found.tokens.ids]), do_sample=False, use_cache=False, **how)[0].tolist()
    assert list(found.target.tokens.ids) == expected[:-1]


@pytest.mark.thorough
def test_languages_are_options_of_a_tokenizer_that_has_them(tokenizer, tmp_path, bert_folder):
    codes = ["eng_Latn", "deu_Latn", "fra_Latn"]
    nllb = NllbTokenizer(vocab=tokenizer.get_vocab(), merges=[], src_lang="eng_Latn", extra_special_tokens=codes)
    model = sharp("m2m_100", len(nllb), max_position_embeddings=80)
    model.lm_head.weight.data[nllb.all_special_ids] = 0
    folder = save_checkpoint(model, nllb, tmp_path / "nllb")

    def run(command: str, model: Path, *words: str) -> Result:
        return CliRunner().invoke(app, [command, SOURCE, "-m", str(model), *words, "--figures", "none", "--json"])

    into = ("--source-language", "fra_Latn", "--target-language", "deu_Latn")
    found = [run("heads", folder, *into, *target) for target in (("--target", TARGET), ("--max-new-tokens", "4"))]
    for document in (json.loads(each.stdout) for each in found):
        assert (document["tokens"][0]["text"], document["target_tokens"][1]["text"]) == ("fra_Latn", "deu_Latn")
    for command, target in (("outputs", ("--target", TARGET)), ("ablate", ("--max-new-tokens", "4"))):
        assert run(command, folder, *into, *target).exit_code == 0
    for model, words, named in (
        (folder, ("--target", TARGET), "--target-language"),
        (folder, ("--target-language", "deu"), "--target-language"),
        (folder, ("--source-language", "<pad>"), "--source-language"),
        (bert_folder, into, "tokenizer"),
    ):
        refused = run("heads", model, *words)
        assert (refused.exit_code in (1, 2), named in refused.stderr) == (True, True)


def test_a_model_without_a_head_says_that_it_needs_a_target(tokenizer):
    bare = from_loaded(sharp("bart", len(tokenizer)).model, tokenizer)
    with pytest.raises(TextError, match="--target"):
        analyze(SOURCE, bare)
    assert analyze(SOURCE, bare, target=TARGET).target.text == TARGET


def test_an_encoder_alone_is_refused(tokenizer):
    model = T5EncoderModel(sharp("t5", len(tokenizer)).config)
    with pytest.raises(ArchitectureError, match="is_encoder_decoder"):
        from_loaded(model, tokenizer)
