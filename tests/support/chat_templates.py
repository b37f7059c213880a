"""Small chat templates in the styles of the field, without generation markers, and the tokens they need."""

from __future__ import annotations

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
LLAMA3 = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{{ '<s>' }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ '<bos>' }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
VICUNA = (
    "{% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }} {% else %}ASSISTANT: {{ m.content }}</s>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
PLAIN = "{% for m in messages %}### {{ m.role }}\n{{ m.content }}\n\n{% endfor %}"
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>"
    "{{ m.content }}{{ '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
UNENDED = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_SPLIT_THOUGHT = (
    "{% set c = m.content if m.content is string else '' %}{% set r = '' %}"
    "{% if m.reasoning_content is string %}{% set r = m.reasoning_content %}{% elif '</think>' in c %}"
    "{% set r = c.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"
    "{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
)
_QUERY = (
    "{% set ns = namespace(query=messages | length - 1) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.query = loop.index0 %}{% endif %}{% endfor %}"
)
_SYSTEM = (
    "{% if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "# Tools\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools><|im_end|>\n"
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
)
_OTHERS = (
    "{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% elif m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}{% endif %}"
)
_JSON_CALLS = (
    "{% for call in m.tool_calls or [] %}{{ '\n' if c or not loop.first }}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}}\n"
    "</tool_call>{% endfor %}"
)
_XML_CALLS = (
    "{% for call in m.tool_calls or [] %}{{ ('\n\n' if c else '') if loop.first else '\n' }}"
    "<tool_call>\n<function={{ call.function.name }}>\n{% for name, value in call.function.arguments | items %}"
    "<parameter={{ name }}>\n{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}"
)
QWEN3 = (
    _SYSTEM
    + _QUERY
    + "{% for m in messages %}{% if m.role == 'assistant' %}"
    + _SPLIT_THOUGHT
    + "<|im_start|>assistant\n"
    "{% if loop.index0 > ns.query and (loop.last or r) %}<think>\n{{ r.strip('\\n') }}\n</think>\n\n"
    "{{ c.lstrip('\\n') }}{% else %}{{ c }}{% endif %}"
    + _JSON_CALLS
    + "<|im_end|>\n{% else %}"
    + _OTHERS
    + "{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""In Qwen3's style: reasoning before the last user's message is dropped; arguments may be JSON text."""
QWEN3_5 = (
    _SYSTEM
    + _QUERY
    + "{% for m in messages %}{% if m.role == 'assistant' %}"
    + _SPLIT_THOUGHT
    + "<|im_start|>assistant\n"
    "{% if loop.index0 > ns.query %}<think>\n{{ r | trim }}\n</think>\n\n{% endif %}{{ c | trim }}"
    + _XML_CALLS
    + "<|im_end|>\n{% else %}"
    + _OTHERS
    + "{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""In the style of Qwen3.5 and 3.6: the same, with arguments that have to be objects."""
QWEN3_8 = (
    _SYSTEM
    + "{% for m in messages %}{% if m.role == 'assistant' %}{% set c = m.content or '' %}<|im_start|>assistant\n"
    "<think>\n{{ (m.reasoning_content or '') | trim }}\n</think>\n\n{{ c | trim }}"
    + _XML_CALLS
    + "<|im_end|>\n{% else %}"
    + _OTHERS
    + "{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""In Qwen3.8's style: all reasoning is kept, and an inline think block would be written after an empty one."""

SPECIAL_TOKENS = [
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>", "[INST]", "[/INST]",
    "<bos>", "<start_of_turn>", "<end_of_turn>", "<|start|>", "<|channel|>", "<|message|>", "<|return|>", "<|end|>",
    "<|user|>", "<|assistant|>", "<|im_start|>", "<|im_end|>",
]  # fmt: skip

EXPECTED: dict[str, tuple[str, str]] = {
    CHATML: ("One.<|im_end|>", "Two.<|im_end|>"),
    CHATML_THINKING: ("One.<|im_end|>", "<think>\n\n</think>\n\nTwo.<|im_end|>"),
    LLAMA3: ("One.<|eot_id|>", "Two.<|eot_id|>"),
    MISTRAL: (" One.</s>", " Two.</s>"),
    GEMMA: ("One.<end_of_turn>", "Two.<end_of_turn>"),
    VICUNA: (" One.</s>", " Two.</s>"),
    PLAIN: ("One.\n\n", "Two.\n\n"),
    HARMONY: ("<|channel|>final<|message|>One.<|end|>", "<|channel|>final<|message|>Two.<|return|>"),
    UNENDED: ("\nOne.", "\nTwo."),
    QWEN3: ("One.<|im_end|>", "<think>\n\n</think>\n\nTwo.<|im_end|>"),
    QWEN3_5: ("One.<|im_end|>", "<think>\n\n</think>\n\nTwo.<|im_end|>"),
    QWEN3_8: ("<think>\n\n</think>\n\nOne.<|im_end|>", "<think>\n\n</think>\n\nTwo.<|im_end|>"),
}
"""What is supervised of a chat with the answers `One.` and `Two.`."""
