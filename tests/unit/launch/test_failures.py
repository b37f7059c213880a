from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sft_cli.errors import BY_EXIT_CODE, DataError, ModelError, SftError, UsageError
from sft_cli.launch.control import Failure, Outcome
from sft_cli.launch.failures import describe_failure, first_error, launcher_error, stopped_by, vanished_error

LOGS = Path("/run/logs")


class DistError(RuntimeError):
    """Named as torch's."""


class DistBackendError(DistError):
    pass


def failure(error: Exception, rank: int, time: float) -> Failure:
    try:
        raise error
    except type(error) as raised:
        return replace(describe_failure(raised, rank), time=time)


def first(*failures: Failure, silent: dict[int, int | None] | None = None, ranks: int = 4, logs: Path = LOGS) -> str:
    error = first_error({one.rank: one for one in failures}, silent or {}, ranks=ranks, logs=logs)
    assert error is not None
    return str(error)


def test_users_error_keeps_its_class_place_and_remedy_and_gets_its_rank() -> None:
    written = failure(DataError("not a row", where="chat.jsonl:104", fix="mend it"), rank=2, time=1)
    error = first_error({2: written}, {}, ranks=4, logs=LOGS)
    assert type(error) is DataError
    assert str(error) == "chat.jsonl:104: not a row (rank 2)\n  mend it"
    assert "Traceback" in error.__notes__[0]


def test_lone_rank_has_no_number() -> None:
    assert first(failure(DataError("not a row"), 0, 1), ranks=1) == "not a row"


def test_every_exit_code_survives() -> None:
    for code, kind in BY_EXIT_CODE.items():
        error = first_error({0: failure(kind("x"), 0, 1)}, {}, ranks=1, logs=LOGS)
        assert error is not None
        assert error.exit_code == code
    model_error = first_error({0: failure(ModelError("x"), 0, 1)}, {}, ranks=1, logs=LOGS)
    assert type(model_error) is UsageError


def test_bug_is_named_with_its_type_and_the_place_of_its_traceback() -> None:
    error = first_error({1: failure(ValueError("bad\nvalue"), 1, 1)}, {}, ranks=1, logs=LOGS)
    assert type(error) is SftError
    assert str(error) == "rank 1 failed: ValueError: bad\nvalue\n  The traceback is in /run/logs/rank-1.log."


def test_earliest_wins() -> None:
    assert "second" in first(failure(ValueError("first"), 0, 2.0), failure(ValueError("second"), 1, 1.0))


def test_lost_peer_is_never_the_cause_where_there_is_another() -> None:
    lost = failure(RuntimeError("[/pytorch/gloo/transport/tcp/pair.cc:1] Connection closed by peer [::1]"), 0, 1.0)
    assert "the cause" in first(lost, failure(ValueError("the cause"), 1, 2.0))
    assert "rank 1 was killed by SIGSEGV" in first(lost, silent={1: -11})
    assert "Connection closed by peer" in first(lost)
    assert "rank 1 was" in first(failure(DistBackendError("NCCL"), 0, 1.0), silent={1: -11})
    assert "rank 1 was" in first(failure(ConnectionResetError(), 0, 1.0), silent={1: -11})


def test_said_error_comes_before_a_silent_death() -> None:
    """NCCL aborts a rank whose peer has raised."""
    assert "the cause" in first(failure(ValueError("the cause"), 0, 1.0), silent={1: -6})


def test_the_rank_that_was_waited_for_is_named() -> None:
    """gloo times out where ranks wait; NCCL's watchdog aborts them."""
    text = "[/pytorch/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 120000ms for recv operation"
    lost = failure(RuntimeError(text), 0, 1.0)
    hanging = first_error({0: lost}, {2: -6}, ranks=4, logs=LOGS, hanging=[1, 3])
    assert "rank 1, 3 hangs" in str(hanging)
    assert "rank 2 was killed by SIGKILL" in str(first_error({0: lost}, {2: -9}, ranks=4, logs=LOGS, hanging=[1]))
    cause = failure(ValueError("the cause"), 2, 2.0)
    assert "the cause" in str(first_error({0: lost, 2: cause}, {}, ranks=4, logs=LOGS, hanging=[1]))


def test_silent_death_tells_the_signal_and_the_last_words(tmp_path: Path) -> None:
    (tmp_path / "rank-3.log").write_text("".join(f"line {number}\n\n" for number in range(9)))
    text = first(silent={3: -9}, logs=tmp_path)
    assert text.startswith("rank 3 was killed by SIGKILL\n")
    assert "out of memory" in text
    assert text.endswith("line 4\n    line 5\n    line 6\n    line 7\n    line 8")


def test_silent_exit_and_unknown_signal() -> None:
    assert "rank 0 exited with code 7 without an error" in first(silent={0: 7})
    assert "rank 0 was killed by signal 99" in first(silent={0: -99})
    assert "rank 0 died without a word" in first(silent={0: None})


def test_worker_without_a_log_of_its_own_has_spoken_into_the_launchers(tmp_path: Path) -> None:
    (tmp_path / "launcher.log").write_text("ModuleNotFoundError: no torch\n")
    assert "no torch" in first(silent={0: 1}, logs=tmp_path)
    assert "no torch" in str(vanished_error([0, 2], logs=tmp_path))
    assert "rank 0, 2 left" in str(vanished_error([0, 2], logs=tmp_path))
    assert "torchrun could not start the workers" in str(launcher_error(1, log=tmp_path / "launcher.log"))
    assert "torchrun was killed by SIGKILL" in str(launcher_error(-9, log=tmp_path / "launcher.log"))


def test_no_failure() -> None:
    assert first_error({}, {}, ranks=2, logs=LOGS) is None


def test_stopped_by() -> None:
    assert stopped_by({}) == 0
    assert stopped_by({0: Outcome(0, 0), 1: Outcome(1, 0)}) == 0
    assert stopped_by({0: Outcome(0, 15), 1: Outcome(1, 15)}) == 15


def test_a_token_in_a_workers_error_is_written_nowhere() -> None:
    token = "hf_" + "aB3" * 10
    failure = describe_failure(RuntimeError(f"401 for https://me:{token}@example.org"), 0)
    assert token not in failure.what + failure.traceback
    assert "401 for https:" in failure.what
