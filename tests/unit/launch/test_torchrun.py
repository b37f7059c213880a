from __future__ import annotations

from pathlib import Path

from sft_cli.launch.nodes import Nodes
from sft_cli.launch.torchrun import agent_command, worker_arguments

PLAN, CONTROL, LOGS = Path("/run/plan.json"), Path("/tmp/control"), Path("/run/logs")


def test_worker_arguments() -> None:
    launched = ["--plan", "/run/plan.json", "--logs", "/run/logs", "--control", "/tmp/control"]
    assert worker_arguments(PLAN, control=CONTROL, logs=LOGS, dry_run=False) == launched
    assert worker_arguments(PLAN, control=None, logs=LOGS, dry_run=True) == [*launched[:4], "--dry-run"]


def test_torchrun_reads_the_command_as_it_is_meant() -> None:
    from torch.distributed.run import parse_args

    arguments = worker_arguments(PLAN, control=CONTROL, logs=LOGS, dry_run=True)
    command = agent_command(42, control=CONTROL, ranks=3, module="sft_cli.worker", arguments=arguments)
    assert command[1:5] == ["-m", "sft_cli.launch.agent", "42", "/tmp/control"]
    parsed = parse_args(command[5:])
    assert parsed.standalone
    assert parsed.nproc_per_node == "3"
    assert parsed.max_restarts == 0
    assert parsed.module
    assert parsed.training_script == "sft_cli.worker"
    assert parsed.training_script_args == arguments


def test_several_machines_meet_where_the_recipe_says() -> None:
    from torch.distributed.run import config_from_args, parse_args

    nodes = Nodes(3, 2, "gpu01", 29500)
    command = agent_command(42, control=CONTROL, ranks=8, module="sft_cli.worker", arguments=[], nodes=nodes)
    config, _, _ = config_from_args(parse_args(command[5:]))
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (3, 3, 8)
    assert (config.rdzv_backend, config.rdzv_endpoint, config.rdzv_configs["rank"]) == ("static", "gpu01:29500", 2)
