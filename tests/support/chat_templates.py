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
}
"""What is supervised of a chat with the answers `One.` and `Two.`."""
