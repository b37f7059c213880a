"""One block on stderr and the right exit code, whatever happens inside."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from sft_cli.cli.errors import reporting_errors
from sft_cli.errors import BY_EXIT_CODE, DataError, SftError


def code_of(error: BaseException, debug: bool = False) -> int:
    with pytest.raises(SystemExit) as caught, reporting_errors(debug):
        raise error
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_an_error_of_the_user_is_one_block(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(DataError("no `messages`", where="chat.jsonl:104", fix="name the column")) == 3
    output = capsys.readouterr()
    assert output.err == "error: chat.jsonl:104: no `messages`\n  name the column\n"
    assert output.out == ""


@pytest.mark.parametrize("code", sorted(BY_EXIT_CODE))
def test_every_class_ends_with_its_code(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(BY_EXIT_CODE[code]("x")) == code


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code_of(SftError("x"), debug=True)
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: x\n")


def test_a_bug_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(KeyError("batch")) == 1
    err = capsys.readouterr().err
    assert "this is a bug in sftune: KeyError: 'batch' (test_errors.py:" in err
    assert "--debug" in err
    assert "Traceback" not in err
    code_of(KeyError("batch"), debug=True)
    assert "Traceback" in capsys.readouterr().err


SECRETS = ("hf_AbCdEfGhIjKlMnOpQrStUvWxYz12345678", "me:pass", "not_like_a_token")


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("kind", [SftError, RuntimeError])
def test_secrets_are_hidden(
    kind: type[Exception], debug: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRETS[2])
    text = f"Bearer {SECRETS[0]}, http://me:pass@proxy:80 and {SECRETS[2]}"
    cause = ConnectionError(f"caused by {text}")
    error = kind(text)
    error.__cause__ = cause
    error.add_note(f"on rank 0: {text}")
    code_of(error, debug)
    output = capsys.readouterr()
    assert "proxy:80" in output.err
    assert ("caused by" in output.err) == debug
    assert not any(secret in output.err + output.out for secret in SECRETS)


def test_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == ""


def test_no_error_no_exit() -> None:
    with reporting_errors(debug=False):
        pass


def test_colour_only_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code_of(SftError("x"))
    assert capsys.readouterr().err.startswith("\x1b[")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    code_of(SftError("x"))
    assert "\x1b" not in capsys.readouterr().err


def test_a_reader_that_has_enough_ends_it_quietly(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    script = (
        "import os, sys\n"
        "read, write = os.pipe(); os.close(read); os.dup2(write, 1)\n"
        "from sft_cli.cli.errors import reporting_errors\n"
        "with reporting_errors(debug=False): print('x' * 100_000)\n"
    )
    ended = python("-c", script)
    assert ended.returncode == 1
    assert ended.stderr == ""
