"""What attnviz uses of transformers beyond its documented surface is there, and stands in one file."""

import re
from pathlib import Path

import pytest
from transformers import GPT2Config
from transformers.masking_utils import AttentionMaskInterface
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention

import attnviz
from tests.support.transformers_names import lacking

PRIVATE = re.compile(
    r"_attn_implementation|_experts_implementation|\.return_dict\b|eager_attention_forward|_reordered_attn"
)


def test_this_version_of_transformers_lacks_nothing():
    assert lacking() == []


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (modeling_gpt2, "eager_attention_forward"),
        (modeling_gpt2.GPT2Attention, "_upcast_and_reordered_attn"),
        (GPTNeoSelfAttention, "_attn"),
    ],
)
def test_what_another_version_lacks_is_named(monkeypatch, owner, name):
    monkeypatch.delattr(owner, name)
    (missing,) = lacking()
    assert name in missing


def test_other_arguments_or_a_look_up_of_its_own_are_named(monkeypatch):
    monkeypatch.setattr(GPTNeoSelfAttention, "_attn", lambda self, key, query, value: None)
    (missing,) = lacking()
    assert "self key query value" in missing
    monkeypatch.undo()
    monkeypatch.setattr(AttentionMaskInterface, "__getitem__", lambda self, name: None, raising=False)
    assert any("AttentionMaskInterface" in each for each in lacking())


def test_settings_of_a_config_are_named(monkeypatch):
    monkeypatch.setattr("tests.support.transformers_names.SETTINGS", ("n_embd", "_no_such_setting"))
    assert hasattr(GPT2Config(), "n_embd")
    (missing,) = lacking()
    assert "_no_such_setting" in missing


def test_private_names_stand_in_one_file_and_where_checkpoints_are_opened():
    root = Path(attnviz.__file__).parent
    files = [path.relative_to(root) for path in root.rglob("*.py") if PRIVATE.search(path.read_text("utf-8"))]
    assert Path("run/transformers_compat.py") in files
    assert {path.parts[0] for path in files if path != Path("run/transformers_compat.py")} <= {"models"}
