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
# How templates write calls of tools, and what these answer: as Qwen 2.5, Llama 3.1, Hermes and GLM 4.5 do.
QWEN_TOOLS = (
    "{% for m in messages %}{% if m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user"
    "{% endif %}\n<tool_response>\n{{ m.content }}\n</tool_response>{% if loop.last or messages[loop.index0 + 1].role "
    "!= 'tool' %}<|im_end|>\n{% endif %}{% else %}<|im_start|>{{ m.role }}"
    "{% if m.content %}\n{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls %}{% set call = call.function or call %}\n<tool_call>\n"
    '{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n'
    "{% endif %}{% endfor %}"
)
LLAMA_TOOLS = (
    "{% for m in messages %}<|im_start|>{% if 'tool_calls' in m %}{% if m.tool_calls | length > 1 %}"
    "{{ raise_exception('one call at once') }}{% endif %}{% set call = m.tool_calls[0].function %}assistant\n\n"
    '{"name": "{{ call.name | trim }}", "parameters": {{ call.arguments | tojson }}}'
    "{% elif m.role == 'tool' %}ipython\n\n"
    "{{ {'output': m.content} | tojson }}{% elif m.content is string %}{{ m.role }}\n\n{{ m.content | trim }}{% else %}"
    "{{ m.role }}\n\n{% for part in m.content if part.type == 'text' %}{{ part.text | trim }}{% endfor %}{% endif %}"
    "<|im_end|>{% endfor %}"
)
HERMES_TOOLS = QWEN_TOOLS.replace(
    '"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}',
    ' "arguments": {{ call.arguments | tojson }}, "name": "{{ call.name }}"}',
)
GLM_TOOLS = QWEN_TOOLS.replace(
    '{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}',
    "{{ call.name }}\n{% for k, v in call.arguments.items() %}<arg_key>{{ k }}</arg_key>\n<arg_value>"
    "{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}",
)

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
