"""Loading: every weight accounted for, whatever the head; everything else an error that helps."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from attnviz.errors import ArchitectureError, CheckpointError
from attnviz.models.checkpoint import Checkpoint, from_loaded, load_checkpoint
from attnviz.models.families import ARCHITECTURES, architecture_of
from attnviz.models.sources import find_checkpoint
from tests.conftest import SENTENCE
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2

CPU = torch.device("cpu")
BERT_CLASSES = [
    "BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification",
    "BertForTokenClassification", "BertForQuestionAnswering", "BertForNextSentencePrediction", "BertForMultipleChoice",
]  # fmt: skip
GPT2_CLASSES = [
    "GPT2Model", "GPT2LMHeadModel", "GPT2DoubleHeadsModel", "GPT2ForSequenceClassification",
    "GPT2ForTokenClassification", "GPT2ForQuestionAnswering",
]  # fmt: skip
Weights = dict[str, Tensor]


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Checkpoint:
    return load_checkpoint(find_checkpoint(str(folder)), CPU, dtype)


@pytest.fixture
def bert(bert_folder: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(bert_folder, tmp_path / "bert"))


@pytest.fixture
def gpt2(gpt2_folder: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(gpt2_folder, tmp_path / "gpt2"))


def change_weights(folder: Path, change: Callable[[Weights], Weights]) -> None:
    weights = change(load_file(folder / "model.safetensors"))
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def without(*names: str) -> Callable[[Weights], Weights]:
    return lambda weights: {name: tensor for name, tensor in weights.items() if name not in names}


def assert_same_parameters(checkpoint: Checkpoint, expected: Weights) -> None:
    """Every weight of the loaded model, apart from a pooler that the checkpoint may lack."""
    loaded = checkpoint.model.state_dict()
    assert set(expected) - {name for name in expected if name.startswith("pooler")} <= set(loaded)
    for name, tensor in loaded.items():
        if name in expected or not name.startswith("pooler"):
            assert torch.equal(tensor, expected[name]), name


# --- what loads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BERT_CLASSES + GPT2_CLASSES)
def test_checkpoint_with_any_usual_head_loads_with_the_saved_weights_and_so_it_does_from_memory(tmp_path, name):
    model_class = getattr(transformers, name)
    is_bert = name in BERT_CLASSES
    model = sharp_bert(3, model_class) if is_bert else sharp_gpt2(3, model_class)
    tokenizer = bert_tokenizer() if is_bert else gpt2_tokenizer()
    base = getattr(model, model.base_model_prefix, model)
    checkpoint = load(save_checkpoint(model, tokenizer, tmp_path))
    assert type(checkpoint.model).__name__ == ("BertModel" if is_bert else "GPT2Model")
    assert_same_parameters(checkpoint, base.state_dict())
    in_memory = from_loaded(model.double(), tokenizer)
    assert in_memory.model is base  # not copied
    assert (in_memory.name, in_memory.revision, in_memory.dtype) == (name, None, torch.float64)


def test_loaded_checkpoint_describes_itself(bert_folder, gpt2_folder):
    for folder, name in ((bert_folder, "bert"), (gpt2_folder, "gpt2")):
        checkpoint = load(folder, torch.float64)
        assert checkpoint.architecture is ARCHITECTURES[name]
        assert checkpoint.name == str(folder)
        assert checkpoint.revision is None
        assert (checkpoint.n_layers, checkpoint.n_heads, checkpoint.d_model, checkpoint.d_head) == (3, 4, 32, 8)
        assert checkpoint.dtype == torch.float64
        assert checkpoint.device == CPU
        assert not any(module.training for module in checkpoint.model.modules())
        assert checkpoint.config._attn_implementation == "eager"
        assert len(checkpoint.tokenize(SENTENCE)) == 9


def test_hub_style_bert_with_old_layer_norm_names_and_position_ids_loads(bert):
    """As bert-base-uncased and all-MiniLM-L6-v2 lie on the hub."""
    expected = load_file(bert / "model.safetensors")

    def old(weights: Weights) -> Weights:
        renamed = {
            "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
            for name, t in weights.items()
        }
        return renamed | {
            "bert.embeddings.position_ids": torch.arange(40)[None],
            "cls.predictions.bias": torch.zeros(61),
            "cls.predictions.transform.LayerNorm.gamma": torch.ones(32),
            "cls.seq_relationship.weight": torch.zeros(2, 32),
        }

    change_weights(bert, old)
    assert_same_parameters(load(bert), expected)


@pytest.mark.parametrize("prefix", ["", "transformer."])
@pytest.mark.parametrize(
    ("buffer", "value"),
    [("bias", torch.ones(1, 1, 40, 40)), ("masked_bias", torch.tensor(-1e4))],
    ids=["bias", "masked"],
)
def test_gpt2_with_mask_buffers_of_older_versions_loads(gpt2, prefix, buffer, value):
    """As many a GPT-2 on the hub was saved; the buffers hold nothing that was learned."""

    def old(weights: Weights) -> Weights:
        return {prefix + name: tensor for name, tensor in weights.items()} | {
            f"{prefix}h.{layer}.attn.{buffer}": value.clone() for layer in range(3)
        }

    expected = load_file(gpt2 / "model.safetensors")
    change_weights(gpt2, old)
    assert_same_parameters(load(gpt2), expected)


def test_bert_without_pooler_loads(bert):
    expected = load_file(bert / "model.safetensors")
    change_weights(bert, without("pooler.dense.weight", "pooler.dense.bias"))
    assert_same_parameters(load(bert), without("pooler.dense.weight", "pooler.dense.bias")(expected))


def test_sharded_checkpoint_loads(tmp_path):
    model = sharp_bert(4)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    bert_tokenizer().save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert not (tmp_path / "model.safetensors").exists()
    assert_same_parameters(load(tmp_path), model.state_dict())


def test_good_pickle_loads_where_there_is_no_safetensors(bert):
    expected = load_file(bert / "model.safetensors")
    torch.save(expected, bert / "pytorch_model.bin")
    (bert / "model.safetensors").unlink()
    assert_same_parameters(load(bert), expected)


def test_safetensors_are_read_and_a_pickle_beside_them_is_not(bert):
    (bert / "pytorch_model.bin").write_bytes(b"never read")
    assert load(bert).n_layers == 3


def test_code_beside_the_checkpoint_is_never_run(bert):
    witness = bert / "executed"
    (bert / "modeling_evil.py").write_text(f"open({str(witness)!r}, 'w').close()\nclass Evil: pass\n")
    change_config(bert, auto_map={"AutoModel": "modeling_evil.Evil", "AutoConfig": "modeling_evil.Evil"})
    path = bert / "tokenizer_config.json"
    tokenizer_config = json.loads(path.read_text())
    path.write_text(json.dumps({**tokenizer_config, "auto_map": {"AutoTokenizer": ["modeling_evil.Evil", None]}}))
    assert type(load(bert).model).__name__ == "BertModel"
    assert not witness.exists()


@pytest.mark.parametrize("bars", [True, False])
def test_loading_is_silent_and_leaves_transformers_settings(bert_folder, capfd, bars):
    from transformers.utils import logging

    def show(wanted: bool) -> None:
        (logging.enable_progress_bar if wanted else logging.disable_progress_bar)()

    verbosity, progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        logging.set_verbosity_warning()
        show(bars)
        load(bert_folder)
        assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (logging.WARNING, bars)
    finally:
        logging.set_verbosity(verbosity)
        show(progress)
    assert capfd.readouterr() == ("", "")


# --- weights that do not fit ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["encoder.layer.1.attention.self.query.weight", "embeddings.word_embeddings.weight"])
def test_missing_weight_is_named(bert, name):
    change_weights(bert, without(name))
    with pytest.raises(CheckpointError, match=rf"do not fit its config\.json \(bert\): 1 missing \({name}\)"):
        load(bert)


def test_missing_weight_of_gpt2_is_named(gpt2):
    change_weights(gpt2, lambda w: {n: t for n, t in w.items() if not n.endswith("h.1.attn.c_attn.weight")})
    with pytest.raises(CheckpointError, match=r"\(gpt2\): 1 missing \(h\.1\.attn\.c_attn\.weight\)"):
        load(gpt2)


@pytest.mark.parametrize("name", ["foo.bar", "encoder.layer.9.attention.self.query.weight", "encoder.classifier"])
def test_unexpected_weight_is_named(bert, name):
    change_weights(bert, lambda weights: weights | {name: torch.zeros(2)})
    with pytest.raises(CheckpointError, match=rf"\(bert\): 1 unexpected \({name}\)"):
        load(bert)


def test_unexpected_weight_beside_a_head_is_named(tmp_path):
    save_checkpoint(sharp_bert(0, transformers.BertForMaskedLM), bert_tokenizer(), tmp_path)
    change_weights(tmp_path, lambda weights: weights | {"bert.encoder.layer.9.output.dense.bias": torch.zeros(32)})
    with pytest.raises(CheckpointError, match=r"1 unexpected \((bert\.)?encoder\.layer\.9\.output\.dense\.bias\)"):
        load(tmp_path)


def test_weight_of_the_wrong_shape_is_named_with_both_shapes(bert):
    name = "encoder.layer.0.attention.self.query.weight"
    change_weights(bert, lambda weights: weights | {name: torch.zeros(16, 32)})
    with pytest.raises(CheckpointError, match=rf"1 of the wrong shape \({name} \[16, 32\], expected \[32, 32\]\)"):
        load(bert)


def test_all_faults_are_told_at_once_and_long_lists_are_cut(bert):
    def spoil(weights: Weights) -> Weights:
        weights = {name: tensor for name, tensor in weights.items() if ".layer.1." not in name}
        return weights | {"foo.bar": torch.zeros(1), "pooler.dense.bias": torch.zeros(3)}

    change_weights(bert, spoil)
    with pytest.raises(CheckpointError, match=r"16 missing \(.*, …\); 1 unexpected \(foo\.bar\); 1 of the wrong shape"):
        load(bert)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"num_hidden_layers": 2}, "16 unexpected"),
        ({"num_hidden_layers": 4}, "16 missing"),
        ({"hidden_size": 64}, "of the wrong shape"),
        ({"vocab_size": 10}, r"word_embeddings\.weight \[61, 32\], expected \[10, 32\]"),
        ({"max_position_embeddings": 10}, r"position_embeddings\.weight \[40, 32\], expected \[10, 32\]"),
        ({"model_type": "gpt2"}, r"\(gpt2\): 40 missing"),
    ],
)
def test_config_that_does_not_fit_the_weights_is_an_error(bert, changes, found):
    change_config(bert, **changes)
    with pytest.raises(CheckpointError, match=rf"do not fit its config\.json .*{found}"):
        load(bert)


def test_config_without_layers_is_refused_before_the_weights_are_read(bert):
    change_config(bert, num_hidden_layers=0)
    with pytest.raises(
        ArchitectureError, match=r"config\.json: the config has num_hidden_layers=0; expected .* layers"
    ):
        load(bert)


# --- files that cannot be read --------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 8, 100, -1])
def test_truncated_safetensors_is_an_error_with_its_size(bert, keep):
    path = bert / "model.safetensors"
    data = path.read_bytes()[:keep]
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors is truncated or corrupt .*{len(data)} bytes found"):
        load(bert)


@pytest.mark.parametrize("data", [b"garbage" * 100, b"\x02\0\0\0\0\0\0\0{}extra", b"<html>404</html>"])
def test_corrupt_safetensors_is_an_error(bert, data):
    (bert / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or corrupt"):
        load(bert)


def shard(folder: Path) -> list[Path]:
    sharp_bert().save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    return sorted(folder.glob("model-*.safetensors"))


def test_missing_and_corrupt_shards_are_named(bert):
    first, second, *_ = shard(bert)
    first.write_bytes(first.read_bytes()[:50])
    with pytest.raises(CheckpointError, match=rf"{first.name} is truncated or corrupt"):
        load(bert)
    second.unlink()
    with pytest.raises(CheckpointError, match=rf"names weights that are not there: {second.name}\."):
        load(bert)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ('{"weight_map": {}}', "names weights that are not there: none"),
        ("[]", "expected a JSON object, found list"),
        ('{"weight_map": []}', "expected a weight_map from names of weights to names of files"),
        ('{"weight_map": {"a": 3}}', "expected a weight_map"),
    ],
)
def test_broken_index_of_shards_is_an_error(bert, index, message):
    (bert / "model.safetensors").unlink()
    (bert / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=message):
        load(bert)


class Malicious:
    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.witness), "w")


@pytest.mark.parametrize("plain", [True, False])
def test_malicious_pickle_is_refused_and_not_run(bert, plain):
    witness = bert / "executed"
    weights = {**load_file(bert / "model.safetensors"), "foo": Malicious(witness)}
    (bert / "model.safetensors").unlink()
    if plain:
        (bert / "pytorch_model.bin").write_bytes(pickle.dumps({"foo": Malicious(witness)}, protocol=2))
    else:
        torch.save(weights, bert / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"would run code; expected model\.safetensors"):
        load(bert)
    assert not witness.exists()


@pytest.mark.parametrize("data", [b"", b"garbage", b"PK\x03\x04 not a zip", None])
def test_corrupt_pickle_is_an_error(bert, data):
    path = bert / "pytorch_model.bin"
    torch.save(load_file(bert / "model.safetensors"), path)
    (bert / "model.safetensors").unlink()
    path.write_bytes(path.read_bytes()[:-2000] if data is None else data)
    with pytest.raises(CheckpointError, match=str(bert)):
        load(bert)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"not json", "cannot read .*config.json"), (b"[1]", "expected a JSON object, found list"), (b"", "cannot read"),
     (b"\xff\xfe", "cannot read .*utf-8")],
)  # fmt: skip
def test_config_that_is_no_json_object_is_an_error(bert, content, message):
    (bert / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        find_checkpoint(str(bert))


# --- architectures and settings that are not reproduced -----------------------------------------------------------


@pytest.mark.parametrize("model_type", ["opt", None, ["bert"]])
def test_unknown_architecture_is_refused_before_any_weight_is_read_with_those_that_are_known(bert, model_type):
    change_config(bert, model_type=model_type)
    (bert / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(ArchitectureError, match=r"model_type .*expected one of: bart, bert, "):
        load(bert)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("bert", {"is_decoder": True, "add_cross_attention": True}, "is_decoder=True"),
        ("bert", {"add_cross_attention": True}, "add_cross_attention=True"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention=True"),
    ],
)
def test_settings_that_are_not_reproduced_are_named(request, family, changes, message):
    folder = request.getfixturevalue(family)
    change_config(folder, **changes)
    with pytest.raises(ArchitectureError, match=message):
        load(folder)


def test_absolute_positions_written_out_are_fine(bert):
    change_config(bert, position_embedding_type="absolute")
    assert load(bert).n_layers == 3


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *(("bert", {"num_attention_heads": value}) for value in (0, -1, 3, "four", None, 4.5)),
        *(("bert", {"hidden_size": value}) for value in (0, -32)),
        ("bert", {"num_hidden_layers": "x"}),
        ("bert", {"hidden_act": "foo"}),
        ("bert", {"vocab_size": 0}),
        ("bert", {"pad_token_id": 9999}),
        ("bert", {"layer_norm_eps": "x"}),
        ("bert", {"id2label": 3}),
        ("bert", {"dtype": "float99"}),
        ("bert", {"quantization_config": 3}),
        *(("gpt2", {"n_head": value}) for value in (0, 3)),
        ("gpt2", {"activation_function": "foo"}),
    ],
    ids=str,
)
def test_nonsense_in_the_config_is_an_error_that_names_the_folder(request, family, changes):
    folder = request.getfixturevalue(family)
    change_config(folder, **changes)
    with pytest.raises(CheckpointError, match=str(folder)) as caught:
        load(folder)
    if "four" in changes.values():
        assert "num_attention_heads" in str(caught.value)  # transformers' reason is passed on


# --- tokenizers ---------------------------------------------------------------------------------------------------


def test_folder_without_tokenizer_is_an_error_with_the_command_that_makes_one(bert):
    for path in bert.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer: expected one of tokenizer\.json, .*save_pretrained"):
        load(bert)


@pytest.mark.parametrize("content", ["not json", '{"version": "1.0", "model": {"type": "Nonsense"}}'])
def test_broken_tokenizer_is_an_error(bert, content):
    (bert / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"cannot read .*tokenizer"):
        load(bert)


def test_tokenizer_of_another_model_is_an_error(bert):
    gpt2_tokenizer().save_pretrained(bert)
    with pytest.raises(CheckpointError, match=r"vocabulary ends at 60: this tokenizer does not belong to this model"):
        load(bert).tokenize(SENTENCE)


def test_slow_tokenizer_is_refused():
    from transformers import CanineTokenizer

    slow = CanineTokenizer()
    assert not slow.is_fast
    with pytest.raises(CheckpointError, match=r"expected a fast tokenizer .*found CanineTokenizer"):
        from_loaded(sharp_bert(), slow).tokenize(SENTENCE)


# --- models in memory ----------------------------------------------------------------------------------------------


def test_loaded_model_keeps_the_name_that_it_was_loaded_by(bert_folder):
    model = transformers.BertModel.from_pretrained(bert_folder)
    assert from_loaded(model, bert_tokenizer()).name == str(bert_folder)


@pytest.mark.parametrize(("name", "model", "tokenizer"), [
    ("bert", sharp_bert, bert_tokenizer), ("transformer", sharp_gpt2, gpt2_tokenizer),
])  # fmt: skip
def test_a_model_is_found_in_a_class_of_the_users_own_that_does_not_name_it(name, model, tokenizer):
    own = torch.nn.Module()
    own.config, inner = model().config, model()
    setattr(own, name, inner)
    assert from_loaded(own, tokenizer()).model is inner


def test_loaded_model_without_tokenizer_is_an_error():
    with pytest.raises(CheckpointError, match="a loaded model needs its tokenizer"):
        from_loaded(sharp_bert(), None)


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), torch.nn.Identity()])  # with and without parameters
def test_module_that_is_no_transformers_model_is_refused(model):
    with pytest.raises(ArchitectureError, match="architecture None; expected one of: bart, bert, "):
        from_loaded(model, bert_tokenizer())


def test_loaded_model_with_refused_settings_is_refused():
    with pytest.raises(ArchitectureError, match="is_decoder=True"):
        from_loaded(sharp_bert(is_decoder=True), bert_tokenizer())


def test_architecture_of_another_config_is_refused():
    with pytest.raises(ArchitectureError, match="'mpnet'"):
        architecture_of(transformers.MPNetConfig(), torch.float32)
