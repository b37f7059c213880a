"""kernels.json: for every slot the callable that really runs, read off the model; and how it differs from the plan."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, version
from types import MethodType
from typing import Any

from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import sft_cli
from sft_cli.errors import KernelError
from sft_cli.kernels.install import OWN, Layers
from sft_cli.kernels.load import LOAD
from sft_cli.plan.backends import PACKAGES

OWN_MODULES = ("norm", "gated_norm", "mlp")
"""Slots whose `torch` is the model's own module."""
COST = {"linear_attention": "many times slower", "conv": "many times slower", "attention": "up to half as fast"}
"""Of a slow stand-in, where it is more than a few percent of a step."""

_KERNEL_MODULES = {package.module.partition(".")[0] for package in PACKAGES}

Found = dict[str, list[Callable[..., Any]]]
"""Slot to the distinct functions that its layers call; empty where the model has no such layer."""


def find_kernels(layers: Layers, loss_function: Callable[..., Any]) -> Found:
    """The functions behind each slot, asked of every layer."""
    return {
        "linear_attention": _distinct(_installed(block, "delta_rule") for block in layers.delta_net),
        "conv": _distinct(_installed(block, "causal_conv") for block in layers.delta_net),
        "attention": [ALL_ATTENTION_FUNCTIONS[layers.config._attn_implementation]],
        "norm": _distinct(_installed(module, "norm") for module in layers.norms),
        "gated_norm": _distinct(_installed(module, "gated_norm") for module in layers.gated_norms),
        "mlp": _distinct(_installed(module, "silu_mul") for module in layers.swiglu),
        "loss": [loss_function],
    }


def describe_kernels(
    found: Found, asked: Mapping[str, str], got: Mapping[str, str], inner: Mapping[str, str]
) -> dict[str, Any]:
    """The content of kernels.json.

    Args:
        found: from `find_kernels`.
        asked: for each slot the word in the recipe.
        got: for each slot what the plan made of it.
        inner: steps of flash-linear-attention's delta rule that another package took; see `fla.InnerBackends`.
    """
    described = {}
    for slot, functions in found.items():
        entry: dict[str, Any] = {"asked": asked[slot], "got": got[slot] if functions else None}
        entry |= describe_function(functions[0] if functions else None)
        if slot == "linear_attention" and got[slot] == "fla":
            entry["inner"] = dict(sorted(inner.items()))  # empty: all steps are its own Triton kernels
        described[slot] = entry
    return described


def differences(found: Found, got: Mapping[str, str], inner: Mapping[str, str]) -> list[str]:
    """In words, each slot whose layers do not call what the plan says; arguments as of `describe_kernels`."""
    told = []
    for slot, functions in found.items():
        wrong = dict.fromkeys(_name(function) for function in functions if not _is(function, slot, got[slot]))
        if wrong:
            told.append(f"{slot}: the plan says {got[slot]}, and the model calls {' and '.join(wrong)}")
    if got["linear_attention"] == "fla" and found["linear_attention"]:
        told += [
            f"linear_attention: the plan says fla, and flash-qla took its {step}"
            for step, backend in inner.items()
            if backend == "flash_qla"
        ]
    return told


def refusal(told: Sequence[str]) -> KernelError:
    """The error that says so."""
    return KernelError(
        f"the model does not run the kernels of the plan. {'; '.join(told)}",
        where="kernels",
        fix="Something replaced them: look for code of the model's own, or a package that patches transformers. "
        f"`kernels: {{strict: false}}` trains all the same; expect {cost(told)}.",
    )


def cost(told: Sequence[str]) -> str:
    """What running other kernels than planned may cost."""
    costs = dict.fromkeys(COST.get(line.partition(":")[0], "a few percent of speed") for line in told)
    return " and ".join(costs)


def _is(function: Callable[..., Any], slot: str, backend: str) -> bool:
    """Whether a function is the one that the slot's backend loads, or one of the model's own."""
    if slot in OWN_MODULES and backend == OWN:
        return inspect.unwrap(function).__module__.partition(".")[0] not in _KERNEL_MODULES
    return _name(function) == _name(LOAD[slot][backend]())


def _installed(module: nn.Module, name: str) -> Callable[..., Any]:
    """What sftune put on a module; else the forward that it has: its class's, or what somebody put on the instance."""
    forward = module.forward
    if isinstance(forward, partial) and name in forward.keywords:
        installed: Callable[..., Any] = forward.keywords[name]
        return installed
    return forward.__func__ if isinstance(forward, MethodType) else forward


def _distinct(functions: Iterable[Callable[..., Any]]) -> list[Callable[..., Any]]:
    return list(dict.fromkeys(functions))


def _name(function: Callable[..., Any]) -> str:
    function = inspect.unwrap(function)
    return f"{function.__module__}.{function.__qualname__}"


def describe_function(function: Callable[..., Any] | None) -> dict[str, str | None]:
    """Its name, and where it comes from."""
    if function is None:
        return dict.fromkeys(("callable", "package", "version", "file"))
    unwrapped = inspect.unwrap(function)
    package, package_version = _distribution(unwrapped.__module__.partition(".")[0])
    return {
        "callable": _name(function),
        "package": package,
        "version": package_version,
        "file": inspect.getsourcefile(unwrapped),
    }


def _distribution(module: str) -> tuple[str, str | None]:
    """What a top-level module is installed as (`fla` comes with `fla-core`), and its version.

    No version where it is not installed: code that came with a model.
    """
    if module == "sft_cli":
        return "sftune", sft_cli.__version__
    try:
        found = distribution(module)
    except PackageNotFoundError:
        # Under another name: only the files of everything that is installed know, and reading them takes a while.
        names = packages_distributions().get(module)
        return (names[0], version(names[0])) if names else (module, None)
    return found.name, found.version
