"""Kernels compiled ahead: who compiles what, with a stand-in for Triton's autotuner; processes that fail or hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support.kernel_packages import LIGER, write_packages

from sft_cli.kernels.prewarm.parallel import prewarm
from sft_cli.kernels.prewarm.request import DECAY, GATE, HEADS, MOST_SEGMENTS, SUMS, Request, Task
from sft_cli.kernels.prewarm.share import SEGMENT_COUNTS, compile_share, share_tuning
from sft_cli.plan.kernel_shapes import DeltaNetShapes, KernelShapes, PlainLayers

SHAPES = KernelShapes(
    dtype="float32",
    tokens=64,
    hidden=32,
    intermediate=48,
    words=64,
    heads=4,
    key_value_heads=2,
    head_dim=16,
    windows=(None,),
    delta_net=DeltaNetShapes(key_heads=2, value_heads=4, key_head_dim=16, value_head_dim=8, conv_width=4),
)
TUNED = {"linear_attention": "fla", "conv": "fla"}


def request(backends: dict[str, str], tokens: int = 64, other_lengths: tuple[int, ...] = ()) -> Request:
    shapes = SHAPES.model_copy(update={"tokens": tokens})
    return Request(shapes=shapes, backends=backends, other_lengths=other_lengths, gpu="NVIDIA H200, 9.0")


# What is to be done


def test_only_what_compiles_is_asked_for() -> None:
    ready = {"linear_attention": "torch", "conv": "causal_conv1d", "attention": "varlen", "loss": "chunked"}
    assert request(ready).compilers == {}
    assert request(ready).shares(12) == 0
    assert list(request({**ready, "conv": "fla"}).compilers) == ["conv"]


def test_shared_kernels_are_everybodys_and_others_go_round() -> None:
    asked = request({"linear_attention": "flash_qla", "conv": "fla", "norm": "liger", "mlp": "liger", "loss": "torch"})
    slots = [Task(request=asked, share=share, shares=2, device_index=0).parts for share in range(2)]
    assert slots == [["linear_attention", "conv", "norm"], ["linear_attention", "conv", "mlp"]]
    assert asked.shares(12) == 12
    assert request({"norm": "liger", "mlp": "liger"}).shares(12) == 2


def test_what_layers_call_of_ours_besides_goes_round_too() -> None:
    plain = PlainLayers(offset=1.0, weights="float32", head_norms=True, is_gated=True, rotated=8)
    own = {"norm": "sftune", "conv": "sftune", "mlp": "liger"}
    asked = request(own).model_copy(update={"plain": plain})
    assert list(asked.parts) == [SUMS, HEADS, GATE, "conv", DECAY, "mlp"]
    assert asked.shares(12) == 6
    tasks = [Task(request=asked, share=share, shares=4, device_index=0) for share in range(4)]
    assert [task.parts for task in tasks] == [[SUMS, DECAY], [HEADS, "mlp"], [GATE], ["conv"]]
    # Layers of another form call the norm itself; and other backends have nothing besides.
    assert list(request(own).parts) == ["norm", "conv", DECAY, "mlp"]
    assert list(asked.model_copy(update={"backends": {"norm": "liger", "conv": "fla"}}).parts) == ["norm", "conv"]
    ungated = plain.model_copy(update={"is_gated": False})
    assert list(request({"norm": "sftune"}).model_copy(update={"plain": ungated}).parts) == [SUMS, HEADS]


# One process's share


class Config:
    def __init__(self, number: int) -> None:
        self.number = number
        self.pre_hook: Callable[[dict[str, Any]], None] | None = None

    def all_kwargs(self) -> dict[str, int]:
        return {"number": self.number}


class OutOfResources(Exception):
    pass


class PTXASError(Exception):
    pass


class CompileTimeAssertionFailure(Exception):
    pass


class Kernel:
    """Notes what it is compiled for, and what it is launched with."""

    def __init__(self, uncompilable: tuple[int, ...] = (), unlaunchable: tuple[int, ...] = ()) -> None:
        self.uncompilable, self.unlaunchable = uncompilable, unlaunchable
        self.compiled: list[int] = []
        self.launched: list[int] = []

    def run(self, *args: Any, grid: Any, warmup: bool, number: int, **kwargs: Any) -> int:
        if number in self.uncompilable:
            raise PTXASError(number)
        if number not in self.compiled:
            self.compiled.append(number)
        if warmup:
            return -1
        if number in self.unlaunchable:
            raise OutOfResources(number)
        self.launched.append(number)
        return number


def chunk_forward() -> None:
    """Whose name the tuner shows."""


@pytest.fixture
def tuner_class(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """`triton.runtime.autotuner.Autotuner` as in Triton 3.6, as far as `run` and its patch go."""

    class Autotuner:
        def __init__(self, fn: Kernel, configs: int) -> None:
            self.fn, self.base_fn = fn, chunk_forward
            self.arg_names, self.keys = ["x", "T"], ["T"]
            self.configs = [Config(number) for number in range(configs)]
            self.cache: dict[tuple[Any, ...], Config] = {}
            self.nargs: dict[str, Any] | None = None

        def prune_configs(self, kwargs: dict[str, Any]) -> list[Config]:
            assert self.nargs is not None
            return self.configs[: self.nargs["T"]]

        def run(self, *args: Any, **kwargs: Any) -> Any:
            self.nargs = dict(zip(self.arg_names, args, strict=False))
            key = (self.nargs["T"], str(self.nargs["x"].dtype))
            config = self.cache[key] if len(self.configs) > 1 else self.configs[0]
            out = self.fn.run(*args, **kwargs, **config.all_kwargs())
            self.nargs = None
            return out

    faults = {"OutOfResources": OutOfResources, "PTXASError": PTXASError}
    for name, values in {
        "triton.runtime.autotuner": {"Autotuner": Autotuner},
        "triton.runtime.errors": faults,
        "triton.compiler.errors": {"CompileTimeAssertionFailure": CompileTimeAssertionFailure},
    }.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    return Autotuner


def launch(tuner: Any, length: int) -> Any:
    return tuner.run(torch.zeros(1), length, grid=(1,), warmup=False)


@pytest.mark.parametrize("shares", [1, 3, 5, 12])
def test_shares_cover_every_configuration_once(tuner_class: type[Any], shares: int) -> None:
    ordinary = tuner_class.run
    compiled = []
    for share in range(shares):
        tuner_class.run = ordinary
        share_tuning(share, shares, began=lambda name: None)
        kernel = Kernel()
        assert launch(tuner_class(kernel, 7), 7) in kernel.compiled
        assert len(kernel.launched) == 1
        # A process without a configuration of its own compiles one of another's: it needs some output.
        compiled += kernel.compiled if share < 7 else []
    assert sorted(compiled) == list(range(7))


def test_a_tuning_key_is_met_once(tuner_class: type[Any]) -> None:
    began: list[str] = []
    share_tuning(1, 2, began.append)
    kernel = Kernel()
    tuner = tuner_class(kernel, 6)
    assert [launch(tuner, 4), launch(tuner, 4), launch(tuner, 6)] == [1, 1, 1]
    assert tuner.nargs is None  # else tensors would live on
    assert kernel.compiled == [1, 3, 5]
    assert began == ["chunk_forward", "chunk_forward"]


def test_a_kernel_of_one_configuration_is_left_alone(tuner_class: type[Any]) -> None:
    began: list[str] = []
    share_tuning(1, 2, began.append)
    assert launch(tuner_class(Kernel(), 1), 4) == 0
    assert began == []


def test_a_configuration_that_fails_is_left_out_and_another_launched(tuner_class: type[Any]) -> None:
    share_tuning(0, 2, began=lambda name: None)
    kernel = Kernel(uncompilable=(0,), unlaunchable=(2,))
    assert launch(tuner_class(kernel, 6), 6) == 4
    assert kernel.compiled == [2, 4]


def test_a_share_without_a_good_configuration_takes_anothers(tuner_class: type[Any]) -> None:
    share_tuning(0, 3, began=lambda name: None)
    assert launch(tuner_class(Kernel(unlaunchable=(0, 1, 3)), 6), 6) == 2


def test_a_kernel_of_which_nothing_runs_raises(tuner_class: type[Any]) -> None:
    share_tuning(0, 2, began=lambda name: None)
    with pytest.raises(OutOfResources):
        launch(tuner_class(Kernel(unlaunchable=tuple(range(4))), 4), 4)


def test_hooks_of_a_configuration_see_all_arguments(tuner_class: type[Any]) -> None:
    share_tuning(0, 2, began=lambda name: None)
    tuner, seen = tuner_class(Kernel(), 2), []
    tuner.configs[0].pre_hook = seen.append
    launch(tuner, 2)
    assert [(call["T"], call["number"], call["grid"]) for call in seen] == [(2, 0, (1,))]


def test_planned_backends_are_run_forward_and_backward(
    tuner_class: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_packages(tmp_path, LIGER)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    backward = []
    grad = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *arguments: backward.append(grad(*arguments)))
    began: list[str] = []
    asked = request({"norm": "liger", "attention": "sdpa", "mlp": "liger", "loss": "liger"})
    task = Task(request=asked, share=0, shares=2, device_index=0)
    compile_share(task, torch.device("cpu"), began.append)
    assert began == ["liger norm", "liger loss"]
    assert len(backward) == 5  # the norm has four widths and offsets
    assert "run" in vars(tuner_class)
    for module in set(sys.modules) - before:
        if module.partition(".")[0] == "liger_kernel":
            del sys.modules[module]


# The processes

CHILD = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from sft_cli.plan.orphans import die_with_parent

die_with_parent(int(sys.argv[1]))
task = json.load(sys.stdin)
share, folder, habit = task["share"], Path(os.environ["TOLD"]), os.environ["HABIT"]

def say(**what):
    os.write(1, (json.dumps({"share": share, **what}) + "\\n").encode())

grandchild = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
(folder / f"{share}.tmp").write_text(f"{os.getpid()} {grandchild.pid}")
(folder / f"{share}.tmp").replace(folder / f"{share}.pids")
(folder / f"{share}.slots").write_text(" ".join(task["request"]["backends"]))
os.write(1, b"a package greets\\n")
say(began="kernel_a")
say(began=f"kernel_{share}")
if habit == "one dies" and share == 1:
    print("warning\\nRuntimeError: no kernel image", file=sys.stderr)
    sys.exit(3)
if habit == "one is killed" and share == 0:
    os.kill(os.getpid(), signal.SIGKILL)
if habit == "hangs":
    time.sleep(600)
Path(os.environ["TRITON_CACHE_DIR"], f"binary-{share}").write_text("")
say(done=True)
if habit == "crashes after its work":
    os.kill(os.getpid(), signal.SIGSEGV)
grandchild.kill()
"""


class Processes:
    """`prewarm` with stand-ins for the processes that compile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache" / "triton"
        self.cache.mkdir(parents=True)
        (folder / "told").mkdir()
        (folder / "fake_child.py").write_text(CHILD)
        self.progress: list[str] = []
        self.said: list[str] = []

    def environment(self, habit: str) -> dict[str, str]:
        own = {"HABIT": habit, "TOLD": str(self.folder / "told"), "TRITON_CACHE_DIR": str(self.cache)}
        return {**os.environ, **own, "PYTHONPATH": str(self.folder)}

    def prewarm(
        self,
        habit: str = "good",
        *,
        backends: dict[str, str] | None = None,
        tokens: int = 64,
        other_lengths: tuple[int, ...] = (),
        plain: PlainLayers | None = None,
        is_padded: bool = False,
        **options: Any,
    ) -> float:
        asked = request(TUNED if backends is None else backends, tokens, other_lengths)
        asked = asked.model_copy(update={"plain": plain, "is_padded": is_padded})
        return prewarm(
            asked,
            **{
                "device_index": 0,
                "cores": 3,
                "progress": self.progress.append,
                "say": self.said.append,
                "environment": self.environment(habit),
                "module": "fake_child",
                **options,
            },
        )

    def forget(self) -> None:
        for file in (self.folder / "told").iterdir():
            file.unlink()

    def started(self) -> list[int]:
        return [int(pid) for file in (self.folder / "told").glob("*.pids") for pid in file.read_text().split()]

    def slots(self) -> set[str]:
        """That were compiled for."""
        return {slot for file in (self.folder / "told").glob("*.slots") for slot in file.read_text().split()}

    def stamps(self) -> list[Path]:
        return list((self.folder / "cache" / "prewarmed").glob("*"))


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def is_running(pid: int) -> bool:
    """A zombie, which nobody but init can reap, has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_end(pids: list[int]) -> bool:
    """Within seconds: a killed process takes a moment."""
    deadline = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_running, pids))


def test_every_kernel_is_told_once(processes: Processes) -> None:
    assert processes.prewarm() > 0
    assert sorted(processes.progress) == [f"compiling kernel_{name}" for name in "012a"]
    assert processes.said == []
    assert len(processes.started()) == 6
    assert all_end(processes.started())


def test_a_machine_that_is_warm_starts_nothing(processes: Processes) -> None:
    processes.prewarm()
    assert processes.slots() == set(TUNED)
    processes.forget()
    assert processes.prewarm() == 0.0
    assert processes.started() == []


def test_only_what_another_recipe_has_besides_is_compiled(processes: Processes) -> None:
    processes.prewarm()
    processes.forget()
    assert processes.prewarm(backends={"conv": "fla"}) == 0.0
    assert processes.prewarm(backends={**TUNED, "gated_norm": "fla", "norm": "torch"}) > 0
    assert processes.slots() == {"gated_norm"}
    assert len(processes.stamps()) == 3


def test_longer_packs_run_the_same_kernels_and_short_ones_have_fewer_segments(processes: Processes) -> None:
    assert SEGMENT_COUNTS[-1] == MOST_SEGMENTS
    assert processes.prewarm(tokens=128) > 0
    assert processes.prewarm(tokens=2048) > 0
    assert processes.prewarm(tokens=16384) == 0.0
    assert processes.prewarm(tokens=16384, other_lengths=(4096, 8192)) == 0.0  # of padded rows


def test_norms_that_are_compiled_anew_for_every_65536_heads_are(processes: Processes) -> None:
    """flash-linear-attention's; its convolution isn't, nor are kernels of our own."""
    backends = {**TUNED, "gated_norm": "fla"}
    processes.prewarm(backends=backends, tokens=16384)
    processes.forget()
    assert processes.prewarm(backends=backends, tokens=16385) > 0
    assert processes.slots() == {"linear_attention", "gated_norm"}
    assert processes.prewarm(backends=backends, tokens=16385, other_lengths=(65536,)) > 0
    own = {"conv": "sftune", "norm": "sftune"}
    assert processes.prewarm(backends=own, tokens=16384) > 0
    assert processes.prewarm(backends=own, tokens=65536) == 0.0


def test_what_only_kernels_of_ours_depend_on_leaves_the_others_as_they_are(processes: Processes) -> None:
    plain = PlainLayers(offset=1.0, weights="float32", head_norms=True, is_gated=True, rotated=8)
    backends = {**TUNED, "conv": "sftune", "norm": "sftune"}

    def compiled(**changes: Any) -> set[str]:
        processes.forget()
        processes.prewarm(backends=backends, **changes)
        return processes.slots()

    assert compiled(plain=plain) == set(backends)
    assert compiled(plain=plain) == set()
    assert compiled(plain=plain.model_copy(update={"weights": "bfloat16"})) == {"norm"}
    assert compiled(plain=plain, is_padded=True) == {"conv"}


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_stamp_without_its_binaries_is_not_trusted(processes: Processes, is_missing: bool) -> None:
    processes.prewarm()
    for file in processes.cache.iterdir():
        file.unlink()
    if is_missing:
        processes.cache.rmdir()
    processes.forget()
    assert processes.prewarm() > 0
    assert len(processes.started()) == 6


def test_the_other_compilers_folder_counts_too(processes: Processes) -> None:
    mixed = {"linear_attention": "flash_qla", "conv": "fla"}
    processes.prewarm(backends=mixed)
    assert processes.prewarm(backends=mixed) > 0
    tilelang = processes.folder / "tilelang"
    tilelang.mkdir()
    (tilelang / "binary").touch()
    environment = {**processes.environment("good"), "TILELANG_CACHE_DIR": str(tilelang)}
    assert processes.prewarm(backends=mixed, environment=environment) == 0.0


@pytest.mark.parametrize(
    ("habit", "why"),
    [("one dies", "exit code 3, RuntimeError: no kernel image"), ("one is killed", "killed by SIGKILL")],
)
def test_a_process_that_dies_is_told_and_stops_no_other(processes: Processes, habit: str, why: str) -> None:
    assert processes.prewarm(habit) > 0
    assert processes.said == [
        f"1 of 3 processes that compile kernels ahead failed: {why}; what is missing is compiled when it is needed"
    ]
    assert len(list(processes.cache.iterdir())) == 2
    assert processes.stamps() == []
    assert all_end(processes.started())


def test_a_crash_after_the_work_is_none(processes: Processes) -> None:
    processes.prewarm("crashes after its work")
    assert processes.said == []
    assert len(processes.stamps()) == 2


def test_a_process_that_can_not_be_started_is_told(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = subprocess.Popen, []

    def refuse(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(start(*arguments, **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", refuse)
    processes.prewarm("hangs")
    assert processes.said[0].startswith("a process to compile kernels ahead could not be started: [Errno 11] Resource")
    assert started[0].returncode == -signal.SIGKILL


def test_the_limit_ends_everything(processes: Processes) -> None:
    begin = time.monotonic()
    processes.prewarm("hangs", limit_seconds=3)
    assert time.monotonic() - begin < 20
    assert processes.said[0].startswith("compiling kernels ahead took more than 3 s and was stopped")
    assert processes.stamps() == []
    assert all_end(processes.started())


def test_a_stop_ends_everything(processes: Processes) -> None:
    """A signal's handler has set a flag: nobody waits for minutes of compiling."""
    begin = time.monotonic()
    processes.prewarm("hangs", is_stopped=lambda: len(processes.started()) == 6)
    assert time.monotonic() - begin < 20
    assert processes.said == ["compiling kernels ahead was stopped; what is missing is compiled when it is needed"]
    assert processes.stamps() == []
    assert all_end(processes.started())


def test_an_exception_ends_everything(processes: Processes) -> None:
    def stop(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        processes.prewarm("hangs", progress=stop)
    assert processes.started()
    assert all_end(processes.started())


def test_processes_die_with_the_one_that_waits_for_them(processes: Processes) -> None:
    code = (
        "from sft_cli.kernels.prewarm.parallel import prewarm\n"
        "from sft_cli.kernels.prewarm.request import Request\n"
        f"request = Request.model_validate_json({request(TUNED).model_dump_json()!r})\n"
        "prewarm(request, device_index=0, cores=2, progress=print, say=print, module='fake_child')\n"
    )
    path = os.pathsep.join([str(processes.folder), str(Path(__file__).parents[3])])
    environment = {**processes.environment("hangs"), "PYTHONPATH": path}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.DEVNULL) as waiting:
        deadline = time.monotonic() + 30
        while len(processes.started()) < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        waiting.kill()
    pids = [file.read_text().split() for file in (processes.folder / "told").glob("*.pids")]
    assert len(pids) == 2
    try:
        assert all_end([int(child) for child, _ in pids])
    finally:
        for _, grandchild in pids:
            os.kill(int(grandchild), signal.SIGKILL)


@pytest.mark.parametrize(
    ("backends", "cores"),
    [({"conv": "torch", "attention": "varlen"}, 8), ({"norm": "liger"}, 8), (TUNED, 1)],
    ids=["nothing compiles", "one process's work", "one core"],
)
def test_what_would_save_no_time_starts_nothing(processes: Processes, backends: dict[str, str], cores: int) -> None:
    assert processes.prewarm(backends=backends, cores=cores) == 0.0
    assert processes.started() == []


def test_a_folder_that_can_not_be_written_is_told(processes: Processes) -> None:
    (processes.folder / "cache" / "prewarmed").write_text("not a folder")
    assert processes.prewarm() > 0
    assert "kernels will be compiled ahead again next time" in processes.said[0]


def test_the_program_itself_ends_when_nobody_waits_for_it() -> None:
    command = [sys.executable, "-m", "sft_cli.kernels.prewarm", "1"]
    assert subprocess.run(command, input="", text=True, timeout=60, check=False).returncode == 1
