"""Whisper: what is read of a sound, what is verified on it, and what every command says of it."""

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor
from typer.testing import CliRunner

import attnviz
import attnviz.inputs.sound
from attnviz.cli.program import app
from attnviz.errors import ArchitectureError, TextError, UsageError
from attnviz.models.checkpoint import from_loaded
from attnviz.run.verify import Verifier
from tests.support.families import checkpoint_of, first_of, padded, verified
from tests.support.models import save_checkpoint
from tests.support.recorded import whole_pattern
from tests.support.sounds import FRAMES, SAID, noise, sharp_whisper, tone, whisper_tokenizer
from tests.support.tolerances import SHARP_32, SUMS_32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = whisper_tokenizer()
    return save_checkpoint(sharp_whisper(tokenizer), tokenizer, tmp_path_factory.mktemp("whisper") / "tiny")


@pytest.mark.parametrize("attention", first_of(["sdpa", "eager"]))
def test_the_decoders_attention_is_the_models_own(attention):
    checkpoint = checkpoint_of("whisper")
    checkpoint.model.set_attn_implementation(attention)
    found = verified(checkpoint)
    checkpoint.model.set_attn_implementation("eager")
    with torch.no_grad():
        own = checkpoint.model(**found.inputs, output_attentions=True, use_cache=False)
    assert [str(check.layer) for check in found.verification.layers] == ["D0", "D1", "D2", "X0", "X1", "X2"]
    theirs = [*own.decoder_attentions, *own.cross_attentions]
    for layer, pattern in zip(checkpoint.layers, theirs, strict=True):
        torch.testing.assert_close(whole_pattern(found, layer), pattern, atol=SHARP_32, rtol=0)
        assert pattern.amax(-1).mean() > 0.3  # far from flat, or nothing could be seen


@pytest.mark.parametrize(
    ("dtype", "left"), first_of([(torch.float32, True), (torch.float64, False), (torch.bfloat16, False)])
)
def test_a_batch_with_padding_verifies(dtype, left):
    checkpoint = checkpoint_of("whisper", dtype)
    given = padded(checkpoint, (12,) if dtype == torch.float64 else (12, 7), left)
    mask = given["decoder_attention_mask"]
    features = noise(checkpoint).features.expand(len(mask), -1, -1)
    inputs = {name: each for name, each in given.items() if name.startswith("decoder_")} | {"input_features": features}
    masks = {"D": mask, "X": mask.new_ones(len(mask), FRAMES)}
    verifier = Verifier(
        checkpoint, inputs, lambda _: None,
        lambda layer: masks[layer.stack.letter], keep=False,
    )  # fmt: skip
    verifier.run()
    verification = verifier.verification()
    assert verification.heads_compared == 24
    assert verification.pattern_error <= verification.pattern_tolerance / 2


def test_a_wav_file_is_read_as_transformers_does(tmp_path):
    config, rate = checkpoint_of("whisper").config, 16_000
    path = tone(tmp_path / "tone.wav", seconds=0.3)
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(-1), "<i2") / 2**15
    extract = WhisperFeatureExtractor(feature_size=8)
    own = extract(samples, sampling_rate=rate, max_length=160 * 2 * FRAMES, return_tensors="np")["input_features"]
    frames = attnviz.inputs.sound.read_sound(path, config, torch.float32)
    np.testing.assert_array_equal(frames.features, own[0])
    both = attnviz.inputs.sound.read_sound(tone(tmp_path / "both.wav", 0.3, channels=2), config, torch.float32)
    torch.testing.assert_close(both.features, frames.features)
    np.save(tmp_path / "features.npy", own[0][:, :32])
    again = attnviz.inputs.sound.read_sound(tmp_path / "features.npy", config, torch.float32)
    assert again.n_heard == frames.n_heard == 16
    assert (again.features[:, 32:] == own[0][:, -1:]).all()
    assert frames.labels[:2] == ("0.00s", "0.02s")
    assert frames.sink == (False,) * 16 + (True,) * (FRAMES - 16)


def test_pictures_sum_the_attention_to_intervals_and_to_all_padding(monkeypatch):
    monkeypatch.setattr("attnviz.inputs.sound._MOST_INTERVALS", 5)
    frames: Any = verified(checkpoint_of("whisper")).tokens
    assert [len(each) for each in frames.intervals.members] == [4, 4, 4, 4, 4, 10]
    assert frames.intervals.labels == ("0.00s", "0.08s", "0.16s", "0.24s", "0.32s", "<padding>")


def test_drawn_patterns_are_those_of_the_frames(folder, tmp_path):
    analysis = attnviz.analyze(audio=tone(tmp_path / "tone.wav"), model=folder, target=SAID)
    across = analysis.parts[-1]
    whole, drawn = across.pattern("X1H2"), across.drawn(drop_special=False).pattern("X1H2")
    assert drawn.shape == (len(across.units), 17)
    torch.testing.assert_close(drawn[:, :16], whole[:, :16])
    torch.testing.assert_close(drawn[:, 16], whole[:, 16:].sum(-1))
    shares = whole[[not sink for sink in across.units.sink], 16:].sum(-1)
    assert across.head("X1H2").statistics["sink"] == pytest.approx(float(shares.mean()), abs=SUMS_32)
    assert across.head("X1H2").alignment == tuple(whole.argmax(-1).tolist())


def test_a_target_begins_with_the_language_that_the_model_hears(tmp_path):
    tokenizer, path = whisper_tokenizer(), tone(tmp_path / "tone.wav")
    model = sharp_whisper(tokenizer)
    german = tokenizer.convert_tokens_to_ids("<|de|>")
    plain = attnviz.analyze(audio=path, model=model, tokenizer=tokenizer, target=SAID)
    assert plain.target.tokens.labels[:3] == ("<|startoftranscript|>", "<|notimestamps|>", "␣")
    states = model.model(**plain.verified.inputs).last_hidden_state[0, 0].detach()
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight[german] = 9 * states / states.norm()
    heard = attnviz.analyze(audio=path, model=model, tokenizer=tokenizer, target=SAID)
    begin = ("<|startoftranscript|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>", "␣")
    assert heard.target.tokens.labels[:5] == begin
    assert heard.target.text == plain.target.text == SAID
    assert tokenizer.language is None


def test_generation_is_that_of_transformers(tmp_path):
    tokenizer = whisper_tokenizer(language="en", task="transcribe")
    model = sharp_whisper(tokenizer)
    found = attnviz.analyze(audio=tone(tmp_path / "a.wav"), model=model, tokenizer=tokenizer, max_new_tokens=9)
    features = found.verified.inputs["input_features"]
    how: dict[str, Any] = {"language": "en", "task": "transcribe", "do_sample": False, "num_beams": 1}
    own = model.generate(features, max_new_tokens=9, **how)[0].tolist()
    assert found.target.generated
    assert found.target.tokens.ids == (*tokenizer.prefix_tokens, *own[:8])


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda at: tone(at / "a.wav", rate=8000), "8,?000"),
        (lambda at: tone(at / "a.wav", width=1), "8 bits"),
        (lambda at: tone(at / "a.wav", seconds=0.7), "0.6 seconds"),
        (lambda at: tone(at / "a.wav", seconds=0), "0 samples"),
        (lambda at: cut(tone(at / "a.wav")), "4800"),
        (lambda at: at / "missing.mp3", "missing.mp3"),
        (lambda at: Path(__file__), "test_sound"),
        (lambda at: saved(at / "a.npy", np.zeros((7, 20))), r"\[8, 60\]"),
        (lambda at: saved(at / "a.npy", np.zeros((8, 61))), r"\[8, 61\]"),
        (lambda at: saved(at / "a.npy", np.full((8, 20), np.nan)), "finite"),
        (lambda at: saved(at / "a.npy", np.full((8, 20), 1e300)), "finite"),
        (lambda at: saved(at / "a.npy", np.full((8, 20), "a")), "numbers"),
        (lambda at: saved(at / "a.npy", np.full((8, 20), 1j)), "complex"),
    ],
)
def test_what_is_no_sound_of_this_model_is_refused(make, word, folder, tmp_path):
    with pytest.raises(TextError, match=word):
        attnviz.analyze(audio=make(tmp_path), model=folder, target=SAID)


def saved(path: Path, features: Any) -> Path:
    np.save(path, features)
    return path


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-1001])
    return path


def test_sound_is_for_whisper_and_whisper_for_sound(folder, bert_folder, tmp_path):
    path = tone(tmp_path / "a.wav")
    for given in ({"text": "a dog", "model": folder}, {"audio": path, "model": bert_folder}):
        with pytest.raises(ArchitectureError, match="sound"):
            attnviz.analyze(**given)
    for ignored in ({"pair": "a dog"}, {"parser": "en_core_web_sm"}):
        with pytest.raises(UsageError):
            attnviz.analyze(audio=path, model=folder, target=SAID, **ignored)
    bare = from_loaded(sharp_whisper(whisper_tokenizer()).model, whisper_tokenizer())
    with pytest.raises(TextError, match="--target"):
        attnviz.analyze(audio=path, model=bare)


@pytest.mark.thorough
def test_commands_of_sound(folder, tmp_path):
    run, path = CliRunner().invoke, tone(tmp_path / "a.wav")
    for line in ("outputs a -m", "compare a b -m", "ablate a -m", "explain a -m", "why a --head X0H0 -m"):
        assert run(app, [*line.split(), str(folder)]).exit_code == 1
    document = json.loads(run(app, ["models", str(folder), "--verify", "--json"]).stdout)
    assert document["models"][0]["level"] == 4
    found = run(app, ["heads", "--audio", str(path), "-m", str(folder), "--target", SAID, "--figures", "none"])
    assert found.exit_code == 0, found.output
