"""`sftune data`: what it says of rows that one can count, in text, JSON and as a page."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.command_line import ROOT, Ended
from support.no_network import python_path

from sft_cli.data.pieces import Decoder, Piece

Sftune = Callable[..., Ended]

HOSTILE = '\x1b]0;owned\x07\x1b[2J\x1b[31m</pre><script>alert(1)</script><img src=x onerror="alert(2)">\r[[fake]]\u202e'


def chat(question: str, answer: str) -> str:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": messages}) + "\n"


GOOD = chat("Why?", "So.")
ONLY_USER = json.dumps({"messages": [{"role": "user", "content": "Why?"}]}) + "\n"
BROKEN = '{"messages": [\n'
LONG = chat("Why?", "so " * 900)


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def recipe(folder: Path) -> Callable[..., str]:
    """recipe(rows, "data.bad_rows: skip") -> the name of a recipe that trains on these lines."""

    def write(rows: str, data: str = "bad_rows: skip", rest: str = "", eval_rows: str | None = None) -> str:
        (folder / "chat.jsonl").write_text(rows, encoding="utf-8")
        evaluation = ""
        if eval_rows is not None:
            (folder / "eval.jsonl").write_text(eval_rows, encoding="utf-8")
            evaluation = ", eval: eval.jsonl"
        sources = f"train: chat.jsonl{evaluation}, {data}"
        text = f"model: {{path: builtin:tiny-hybrid}}\ndata: {{{sources}}}\nbatching: {{tokens: 512}}\n{rest}\n"
        (folder / "r.yaml").write_text(text, encoding="utf-8")
        return "r.yaml"

    return write


def document(ended: Ended) -> dict[str, Any]:
    assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


def test_json_has_the_names_of_the_interface(sftune: Sftune, recipe: Callable[..., str], folder: Path) -> None:
    file = recipe(GOOD * 3 + BROKEN + ONLY_USER + LONG, eval_rows=GOOD)
    found = document(sftune("data", file, "--json"))
    (source,) = found["sources"]
    assert (source["path"], source["format"]) == (str(folder / "chat.jsonl"), "messages")
    assert (source["rows_in"], source["rows_out"]) == (6, 4)
    assert sum(source["dropped"].values()) == 2
    assert source["dropped"]["not JSON"] == 1
    assert found["rows"] == 4
    assert set(found["tokens"]) == {"total", "mean", "p50", "p90", "p99", "max"}
    assert found["tokens"]["max"] == 512
    assert found["tokens"]["total"] == source["tokens"] == 512 + 3 * round(found["tokens"]["p50"])
    assert found["supervised_tokens"] == source["supervised_tokens"]
    ways = [(way["mode"], way["order"]) for way in found["batching"]]
    assert ways == [("padding", "shuffled"), ("padding", "length_grouped"), ("packing", "shuffled")]
    for way in found["batching"]:
        assert {"mode", "order", "real_share", "micro_batches", "examples_per_micro_batch"} <= set(way)
        assert 0 < way["real_share"] <= 1
    ends = source["turn_ends"]
    assert (ends["rows"], ends["rows_supervised"], ends["cut"]) == (4, 3, 1)
    assert ends["supervised"] == {"<|im_end|>": 3}
    assert [of["rows_out"] for of in found["eval"]] == [1]
    assert "row" not in found


def test_text_says_what_was_left_out_and_whether_turns_end(sftune: Sftune, recipe: Callable[..., str]) -> None:
    ended = sftune("data", recipe(GOOD * 3 + BROKEN + LONG, eval_rows=GOOD * 2))
    assert ended.code == 0, ended.err
    assert "note  train chat.jsonl: 1 row left out: not JSON\n" in ended.out
    assert "note  train chat.jsonl: the turn's end <|im_end|> is supervised in 3 of 4 rows\n" in ended.out
    assert "note  train chat.jsonl: 1 turn cut off at max_length\n" in ended.out
    assert "ok    eval eval.jsonl: the turn's end <|im_end|> is supervised in 2 of 2 rows\n" in ended.out
    assert "  | [[So.<|im_end|>]]\n" in ended.out
    assert re.search(r"^packing +shuffled .* < this recipe$", ended.out, re.MULTILINE)
    assert ended.out.isascii()


def test_a_template_that_leaves_the_turns_end_out_is_told(sftune: Sftune, recipe: Callable[..., str]) -> None:
    """Its markers enclose the content alone, the fault of most templates that have markers."""
    Path("t.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    )
    ended = sftune("data", recipe(GOOD * 2), "--set", "model.chat_template=t.jinja")
    assert "LOOK  train chat.jsonl: the turn's end <|im_end|> is supervised in 0 of 2 rows\n" in ended.out
    assert "LOOK  train chat.jsonl: 2 turns with an unsupervised end: the model won't learn to stop\n" in ended.out
    assert "  | [[So.]]<|im_end|>\n" in ended.out


def test_every_token_supervised(sftune: Sftune, recipe: Callable[..., str]) -> None:
    file = recipe(GOOD, data="supervise: all")
    assert "every token is supervised" in sftune("data", file).out
    found = document(sftune("data", file, "--json", "--row", "0"))
    assert found["sources"][0]["turn_ends"] is None
    assert set(found["row"]["supervised"]) == {1}
    # A row's first token is predicted by nothing, and so not counted.
    assert sum(found["row"]["supervised"]) == found["supervised_tokens"] + 1


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_rows_says_how_many_are_shown(sftune: Sftune, recipe: Callable[..., str], rows: int) -> None:
    ended = sftune("data", recipe(GOOD * 5), "--rows", str(rows))
    assert ended.out.count("of the 5 that are left") == rows


def test_row_counts_before_any_is_left_out(sftune: Sftune, recipe: Callable[..., str], folder: Path) -> None:
    file = recipe(BROKEN + "\n" + chat("Who?", "Ada.") + ONLY_USER + chat("Where?", "Here."))
    found = document(sftune("data", file, "--row", "1", "--json"))
    row = found["row"]
    assert set(row) == {"text", "token_ids", "supervised"}
    assert row["text"] == "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nAda.<|im_end|>\n"
    assert len(row["token_ids"]) == len(row["supervised"])
    assert set(row["supervised"]) == {0, 1}
    ended = sftune("data", file, "--row", "3")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"row 3, {folder}/chat.jsonl:5: ")
    assert "[[Here.<|im_end|>]]" in ended.out


@pytest.mark.parametrize(
    ("options", "number", "line", "reason"),
    [
        ([], 1, 2, "not JSON"),
        ([], 2, 3, "assistant"),
        (["--set", "data.overlong=drop"], 3, 4, "max_length"),
    ],
)
def test_a_row_that_is_left_out_says_why(
    sftune: Sftune, recipe: Callable[..., str], folder: Path, options: list[str], number: int, line: int, reason: str
) -> None:
    file = recipe(GOOD + BROKEN + ONLY_USER + LONG)
    for as_json in ([], ["--json"]):
        ended = sftune("data", file, "--row", str(number), *options, *as_json)
        assert ended.code == 3
        assert ended.out == ""
        assert f"{folder}/chat.jsonl:{line}: " in ended.err
        assert reason in ended.err


def test_a_row_past_the_end(sftune: Sftune, recipe: Callable[..., str]) -> None:
    ended = sftune("data", recipe(GOOD + BROKEN), "--row", "2")
    assert ended.code == 2
    assert "there is no row 2: the data has 2" in ended.err
    assert sftune("data", "r.yaml", "--row", "-1").code == 2


def test_rows_of_several_sources_run_through(sftune: Sftune, recipe: Callable[..., str], folder: Path) -> None:
    file = recipe(GOOD * 2)
    (folder / "more.jsonl").write_text(chat("Who?", "Ben."))
    sources = f"data.train=[{folder}/chat.jsonl, {folder}/more.jsonl]"
    assert "more.jsonl:1: " in sftune("data", file, "--set", sources, "--row", "2").out
    assert len(document(sftune("data", file, "--set", sources, "--json"))["sources"]) == 2


def test_one_row_is_shown_where_another_is_bad(sftune: Sftune, recipe: Callable[..., str]) -> None:
    file = recipe(GOOD + BROKEN, data="bad_rows: error")
    assert sftune("data", file).code == 3
    assert sftune("data", file, "--row", "0").code == 0


def test_errors_keep_their_codes(sftune: Sftune, recipe: Callable[..., str]) -> None:
    file = recipe(GOOD)
    assert sftune("data", file, "--set", "data.train=gone.jsonl").code == 3
    assert sftune("data", file, "--set", "data.trian=gone.jsonl").code == 2
    assert sftune("data", file, "--set", "model.tokenizer=./gone").code == 2
    assert sftune("data", recipe(""), "--json").code == 3
    assert sftune("data", recipe(GOOD, rest="launch: {gpus: 8}")).code == 0  # needs no GPU, and shows what 8 would get


class Page(HTMLParser):
    """The tags of a page, and the text outside its style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_text_is_inert_in_a_page(
    sftune: Sftune, recipe: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In rows (as one piece, since tokens cut tags to bits), in names of files, and in reasons."""

    def whole(self: Decoder, token_ids: list[int], supervised: list[int]) -> list[Piece]:
        return [Piece(self.text(token_ids), tuple(token_ids), supervised=True, special=False)]

    monkeypatch.setattr(Decoder, "pieces", whole)
    recipe(chat(HOSTILE, HOSTILE) + chat("<script>", "x"))
    (folder / "t.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if messages[0].content == '<script>' %}{{ raise_exception(messages[0].content) }}{% endif %}"
    )
    source = folder / "<img src=x onerror=x>.jsonl"
    (folder / "chat.jsonl").rename(source)
    file = folder / "<script>r.yaml"
    (folder / "r.yaml").rename(file)
    settings = (f"data.train=[{{path: '{source}'}}]", "model.chat_template=t.jinja")
    ended = sftune("data", str(file), "--html", "page.html", "--set", settings[0], "--set", settings[1])
    assert ended.code == 0, ended.err
    text = (folder / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    allowed = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "b", "section", "table", "tr"}
    allowed |= {"th", "td", "ul", "li", "span", "i", "svg", "rect", "line", "text", "pre"}
    assert {tag for tag, _ in page.tags} <= allowed
    assert not any(name.startswith("on") or name in ("src", "href") for _, marks in page.tags for name in marks)
    for shown in ("<script>alert(1)</script>", "<img src=x onerror=x>.jsonl", "<script>r.yaml", "raises: <script>"):
        assert shown in page.text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "http" not in text.replace("http-equiv", "")


def test_a_page_shows_tokens_and_marks_the_supervised(sftune: Sftune, recipe: Callable[..., str]) -> None:
    assert sftune("data", recipe(GOOD), "--html", "page.html", "--json", "--row", "0").code == 0
    row = document(sftune("data", "r.yaml", "--json", "--row", "0"))["row"]
    page = Page(Path("page.html").read_text(encoding="utf-8"))
    tokens = [marks for tag, marks in page.tags if tag == "span" and "title" in marks]
    tokens = tokens[: len(row["token_ids"])]  # the row that was asked for, before the first rows
    assert [int(marks["title"] or "") for marks in tokens] == row["token_ids"]
    assert [int("s" in (marks.get("class") or "").split()) for marks in tokens] == row["supervised"]
    assert row["text"] in page.text


def test_a_page_never_costs_another_file(sftune: Sftune, recipe: Callable[..., str], folder: Path) -> None:
    file = recipe(GOOD)
    refused = sftune("data", file, "--html", "chat.jsonl")
    assert refused.code == 2
    assert "is no page of `sftune data`" in refused.err
    assert (folder / "chat.jsonl").read_text() == GOOD
    assert sftune("data", file, "--html", str(folder)).code == 2
    assert sftune("data", file, "--html", "gone/page.html").code == 2
    for _ in range(2):
        assert sftune("data", file, "--html", "page.html").code == 0


def test_hostile_text_is_inert_where_there_is_no_terminal(sftune: Sftune, recipe: Callable[..., str]) -> None:
    row = json.loads(chat(HOSTILE, HOSTILE))
    bad = json.dumps({"conversations": [{"from": "\x1b[31m", "value": "x"}]}) + "\n"
    unknown = json.dumps({"\x1b[2Jcolumn": 1}) + "\n"
    for arguments in (["data", recipe(json.dumps(row) + "\n" + bad + unknown)], ["data", "r.yaml", "--row", "0"]):
        ended = sftune(*arguments)
        assert ended.code == 0, ended.err
        assert r"\x1b]0;owned\x07\x1b[2J" in ended.out
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", ended.out + ended.err)
        assert all(line.startswith("  | ") for line in ended.out.splitlines() if "owned" in line)
    for number in ("1", "2"):
        ended = sftune("data", "r.yaml", "--row", number)
        assert ended.code == 3
        assert "\x1b" not in ended.err


TERMINAL = {"COLUMNS": "100", "TERM": "xterm-256color"}


@pytest.fixture
def process_on_a_terminal(folder: Path) -> Callable[..., str]:
    """Runs a command whose stdout is a terminal of 100 columns; what that would show."""

    def run(*arguments: str) -> str:
        controller, terminal = pty.openpty()
        environment = {**os.environ, **TERMINAL, "PYTHONPATH": python_path(ROOT)}
        environment.pop("NO_COLOR", None)
        command = [sys.executable, "-m", "sft_cli", *arguments]
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=terminal, stderr=subprocess.PIPE
        ) as process:
            os.close(terminal)
            shown = b"".join(_read(controller))
            assert process.stderr is not None
            errors = process.stderr.read().decode()
        os.close(controller)
        assert process.returncode == 0, errors
        return shown.decode()

    return run


@pytest.fixture
def on_a_terminal(sftune: Sftune, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The same in this process, which needs no import of what tokenises."""

    def run(*arguments: str, encoding: str = "utf-8", **variables: str) -> str:
        controller, terminal = pty.openpty()
        with ThreadPoolExecutor(1) as reader, monkeypatch.context() as patched:
            shown = reader.submit(lambda: b"".join(_read(controller)))
            patched.delenv("NO_COLOR", raising=False)
            for name, value in {**TERMINAL, **variables}.items():
                patched.setenv(name, value)
            with open(terminal, "w", encoding=encoding) as stdout:
                patched.setattr(sys, "stdout", stdout)
                ended = sftune(*arguments)
        os.close(controller)
        assert ended.code == 0, ended.err
        return shown.result().decode()

    return run


def _read(controller: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(controller, 65536)
        except OSError:  # how Linux tells the end of a terminal
            return
        if not chunk:
            return
        yield chunk


def test_a_terminal_gets_colours_and_the_data_none_of_its_own(
    process_on_a_terminal: Callable[..., str], recipe: Callable[..., str]
) -> None:
    shown = process_on_a_terminal("data", recipe(chat(HOSTILE, HOSTILE)))
    assert "\x1b[1;32m" in shown  # supervised: bold green
    colours = re.compile(r"\x1b\[[0-9;]*m")
    assert colours.search(shown)
    plain = colours.sub("", shown)
    assert not re.search(r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", plain), "nothing but colours moves a terminal"
    assert "\x1b[31m" not in shown
    assert r"\x1b]0;owned" in plain
    assert "█" in plain
    assert max(map(len, plain.splitlines())) <= 100


def test_no_colour_where_none_is_wanted(on_a_terminal: Callable[..., str], recipe: Callable[..., str]) -> None:
    file = recipe(GOOD)
    assert "\x1b[1;32m" in on_a_terminal("data", file)
    assert "\x1b[1;32m" not in on_a_terminal("data", file, NO_COLOR="1")
    assert "\x1b" not in on_a_terminal("data", file, TERM="dumb")


def test_a_terminal_without_unicode_gets_ascii(on_a_terminal: Callable[..., str], recipe: Callable[..., str]) -> None:
    shown = on_a_terminal("data", recipe(chat("Grüße?", "世界")), encoding="ascii")
    assert shown.isascii()
    assert r"Gr\xfc\xdfe" in shown


def test_of_a_stream_the_first_rows_are_looked_at(sftune: Sftune, recipe: Callable[..., str], monkeypatch) -> None:
    monkeypatch.setattr("sft_cli.data.stream.look.FIRST_ROWS", 64)
    rows = "".join(chat("Which?", f"Number {number}.") for number in range(100))
    name = recipe(rows + BROKEN, "streaming: true", "train: {max_steps: 5}")
    ended = sftune("data", name)
    assert ended.code == 0, ended.err
    assert "the first 64 rows of a stream, the rest not read" in ended.out
    assert "these rows, micro-batches of up to 512 slots" in ended.out
    found = json.loads(sftune("data", name, "--json").out)
    assert (found["rows"], found["is_whole"]) == (64, False)
    ended = sftune("data", name, "--row", "99")
    assert "Number 99." in ended.out
    assert sftune("data", name, "--row", "100").code == 3
