"""A small chat model: GPT-2 with the control tokens of a chat, and templates as models have them."""

from typing import Any

from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from tests.support.models import gpt2_tokenizer, sharp_gpt2

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMED = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] | trim }}<|im_end|>{% endfor %}"
)
SYSTEM_IN_USER = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n\n' %}"
    "{% set rest = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for message in rest %}"
    "{% if message['role'] == 'user' %}[INST] {{ (system if loop.last else '') + message['content'] }} [/INST]"
    "{% else %} {{ message['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)
WITHOUT_THOUGHTS = CHATML.replace("message['content']", "message['content'].split('</think>')[-1]")
ALTERNATING = "{{ raise_exception('Conversation roles must alternate') }}"

MESSAGES = [
    {"role": "system", "content": "in one word"},
    {"role": "user", "content": "the cat saw the dog"},
    {"role": "assistant", "content": "it ran away"},
]


def chat_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    tokenizer = gpt2_tokenizer()
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
    tokenizer.chat_template = template
    return tokenizer


def chat_model(**changes: Any) -> Any:
    sizes = {"n_positions": 96, "vocab_size": len(chat_tokenizer()), **changes}
    model = sharp_gpt2(model_class=GPT2LMHeadModel, **sizes)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    return model
