"""Templates that reach for more than a chat: they end in a clear error, and nothing else happens."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
from support import chat_templates as templates

from sft_cli.data import render_limits
from sft_cli.data.prepare import prepare
from sft_cli.errors import DataError, ModelError

BUILTIN = Path(__file__).parents[3] / "sft_cli" / "data" / "builtin" / "tiny-hybrid"
GOOD = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]}

ATTACKS = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__['__builtins__']['open']('HARM', 'w') }}",
    "init of a global": "{{ cycler.__init__.__globals__.os.system('touch HARM') }}",
    "attribute filter": "{{ (''|attr('__class__')).__mro__ }}",
    "format": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "format by map": "{{ ('{0.__class__}',)|map('format', messages)|list }}",
    "writing to the chat": "{{ messages.append({'role': 'user', 'content': 'x'}) }}",
    "writing to a message": "{{ messages[0].update({'content': 'x'}) }}",
    "a file": "{% include '/etc/passwd' %}",
    "a module": "{% import 'os' as os %}",
    "a huge range": "{% for i in range(1000000000) %}{% endfor %}",
    "memory": "{{ 'a' * 100000000000 }}",
    "a text to tokenise for hours": "{{ 'ab ' * 7000000 }}",
    "power": "{{ 'a' * (10 ** 11) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}


def tokenizer_with(folder: Path, template: str, *, inside_config: bool) -> Path:
    """The tiny tokenizer with a template of its own, in a file or inside tokenizer_config.json."""
    shutil.copytree(BUILTIN, folder)
    (folder / "chat_template.jinja").unlink()
    if inside_config:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    else:
        (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_an_error_of_the_template(
    make_plan, write_rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tokenizer_with(tmp_path / "t", ATTACKS[attack] + templates.CHATML, inside_config=True)
    plan = make_plan(data={"train": str(write_rows([GOOD]))}, tokenizer=folder)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises((DataError, ModelError), match="the chat template can't render a plain chat") as caught:
        prepare(plan, progress=False)
    assert caught.value.exit_code in (2, 3)
    assert str(folder) in str(caught.value.where)
    assert caught.value.fix
    assert not (tmp_path / "HARM").exists()
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


@pytest.mark.parametrize("inside_config", [True, False])
def test_wherever_the_template_stands_it_runs_in_the_sandbox(
    make_plan, write_rows, tmp_path: Path, inside_config: bool
) -> None:
    folder = tokenizer_with(tmp_path / "t", ATTACKS["class"] + templates.CHATML, inside_config=inside_config)
    with pytest.raises(DataError, match="is unsafe"):
        prepare(make_plan(data={"train": str(write_rows([GOOD]))}, tokenizer=folder), progress=False)


def test_a_loop_without_end_is_ended(make_plan, write_rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_limits, "SECONDS", 0.2)
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    folder = tokenizer_with(tmp_path / "t", loop + templates.CHATML, inside_config=True)
    handler, began = signal.getsignal(signal.SIGALRM), time.monotonic()
    with pytest.raises(DataError, match=r"it takes more than 0\.2 seconds"):
        prepare(make_plan(data={"train": str(write_rows([GOOD]))}, tokenizer=folder), progress=False)
    assert time.monotonic() - began < 3
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("harm", ["{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
                                  "{{ 'a' * 100000000000 }}"])  # fmt: skip
def test_a_template_that_waits_for_its_row(
    make_plan, write_rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    monkeypatch.setattr(render_limits, "SECONDS", 0.2)
    waiting = "{% if messages[0].content == 'now' %}" + harm + "{% endif %}"
    folder = tokenizer_with(tmp_path / "t", waiting + templates.CHATML, inside_config=True)
    file = write_rows([GOOD, {"messages": [{"role": "user", "content": "now"}, GOOD["messages"][1]]}])
    with pytest.raises(DataError, match="the chat template raises: it takes more than") as caught:
        prepare(make_plan(data={"train": str(file)}, tokenizer=folder), progress=False)
    assert caught.value.where == f"{file}:2"
