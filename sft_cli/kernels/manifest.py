"""kernels.json: for every slot the callable that really runs, read off the model; and how it differs from the plan."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, version
from typing import Any

import sft_cli
from sft_cli.errors import KernelError
from sft_cli.kernels import installed
from sft_cli.kernels.install import OWN, Layers
from sft_cli.kernels.installed import Called
from sft_cli.kernels.load import functions

OWN_MODULES = ("norm", "gated_norm", "mlp")
"""Slots whose `torch` is the model's own module."""
COST = {"linear_attention": "many times slower", "conv": "many times slower", "attention": "up to half as fast"}
"""Of a slow stand-in, where it is more than a few percent of a step."""

Found = dict[str, list[Called]]
"""Slot to the distinct functions that its layers call; empty where the model has no such layer."""


def find_kernels(layers: Layers, loss_function: Callable[..., Any]) -> Found:
    """The functions behind each slot, asked of every layer: first the slot's own, if that is called at all."""
    return {
        "linear_attention": _distinct(installed.delta_rules(layers)),
        "conv": _distinct(installed.convolutions(layers)),
        "attention": _distinct(installed.attentions(layers)),
        "norm": _distinct(installed.norms(layers)),
        "gated_norm": _distinct(installed.gated_norms(layers)),
        "mlp": _distinct(installed.products(layers)),
        "loss": [Called(inspect.unwrap(loss_function))],
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
    for slot, called in found.items():
        entry: dict[str, Any] = {"asked": asked[slot], "got": got[slot] if called else None}
        entry |= _describe(called[0] if called else None)
        if len(called) > 1:
            entry["beside"] = [_describe(one) for one in called[1:]]
        if slot == "linear_attention" and got[slot] == "fla":
            entry["inner"] = dict(sorted(inner.items()))  # empty: all steps are its own Triton kernels
        described[slot] = entry
    return described


def differences(found: Found, got: Mapping[str, str], inner: Mapping[str, str]) -> list[str]:
    """In words, each slot whose layers do not call what the plan says; arguments as of `describe_kernels`."""
    told = []
    for slot, called in found.items():
        wrong = dict.fromkeys(one.name for one in called if not _is(one, slot, got[slot]))
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


def _is(called: Called, slot: str, backend: str) -> bool:
    """Whether a function is one that the slot's backend loads, or the model's own where that is asked for."""
    if slot in OWN_MODULES and backend == OWN and called.is_own:
        return True
    return called.name in {Called(inspect.unwrap(function)).name for function in functions(slot, backend)}


def _distinct(functions: Iterable[Called]) -> list[Called]:
    return list(dict.fromkeys(functions))


def describe_function(function: Callable[..., Any]) -> dict[str, str | None]:
    """Its name, and where it comes from."""
    return _describe(Called(inspect.unwrap(function)))


def _describe(called: Called | None) -> dict[str, str | None]:
    if called is None:
        return dict.fromkeys(("callable", "package", "version", "file"))
    package, package_version = _distribution(called.module.partition(".")[0])
    code = getattr(called.function, "__code__", None)
    return {
        "callable": called.name,
        "package": package,
        "version": package_version,
        "file": None if code is None else inspect.getsourcefile(code),
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
