"""Parts of a layer that work token by token and may run as one: compiled, in float8, or both.

A region is a function of tensors, not a module: compiled once for each shape, whatever layer calls it, and told of
weights only what they are. Nothing of torch.compile enters names, and nothing is guarded but dtypes and shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sft_cli.errors import KernelError
from sft_cli.kernels.float8 import Float8
from sft_cli.kernels.keeping import keeping_products
from sft_cli.plan.float8 import SMALLEST_SIDE, STEP


@dataclass(frozen=True)
class Rows:
    """An argument with a row for each token: (tokens, width)."""

    width: int
    are_heads: bool = False
    """Or several rows: as many as there are heads, which differs from caller to caller."""


@dataclass(frozen=True)
class Weight:
    """An argument that is a parameter."""

    shape: tuple[int, ...]
    is_float8: bool = False
    """Multiplied in float8."""
    dtype: torch.dtype | None = None
    """Where it is not that of the other weights."""


Argument = Rows | Weight | None


class Region:
    """One function, as a run calls it."""

    def __init__(
        self,
        regions: Regions,
        name: str,
        function: Callable[..., Any],
        plain: Callable[..., Any],
        arguments: Sequence[Argument],
        called: Callable[..., Any],
        multiplies: bool,
    ) -> None:
        update_wrapper(self, called)
        self.name = name
        self.arguments = tuple(arguments)
        self._regions = regions
        self._plain = plain
        self._uncompiled = function
        self._varies = regions.lengths_vary or any(isinstance(a, Rows) and a.are_heads for a in arguments)
        self._run = function
        if regions.compiles:
            self._run = regions.compiled(function, varies=self._varies, multiplies=multiplies)
        self._step = STEP if any(isinstance(a, Weight) and a.is_float8 for a in arguments) else 1

    def __call__(self, *tensors: Tensor | None) -> Any:
        """The function, of arguments as `arguments` says."""
        if self._regions.is_plain:
            return self._plain(*tensors)
        if self._varies and self._run is not self._uncompiled:
            for tensor, argument in zip(tensors, self.arguments, strict=True):
                if tensor is not None and isinstance(argument, Rows):
                    torch._dynamo.maybe_mark_dynamic(tensor, 0)
        try:
            return self._run(*tensors)
        except self._regions.failures as error:
            self.give_up(error)
            return self._run(*tensors)

    def described(self) -> dict[str, Any]:
        """For kernels.json."""
        weights = [list(argument.shape) for argument in self.arguments if isinstance(argument, Weight)]
        is_compiled = self._run is not self._uncompiled
        return {"name": self.name, "weights": weights, "compiled": is_compiled, "float8": self._step > 1}

    def over_tokens(self, x: Tensor, *others: Tensor | None) -> Tensor:
        """The function, of x (..., width) and what goes with it."""
        if self._step > 1 and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        rows = x.flatten(0, -2)
        # A product that sums over tokens needs a multiple, too: in the weight's gradient.
        lacking = -rows.shape[0] % self._step
        if lacking:
            rows = F.pad(rows, (0, 0, 0, lacking))
        out: Tensor = self(rows, *others)
        return (out[: out.shape[0] - lacking] if lacking else out).unflatten(0, x.shape[:-1])

    def give_up(self, error: Exception) -> None:
        """Runs uncompiled from now on.

        Raises:
            KernelError: `kernels.strict` is on.
        """
        # The first line says who failed, the second with what.
        said = " ".join(str(error).split("\n")[:2]).strip()
        what = f"torch.compile can't compile {self.name}: {type(error).__name__}: {said}"
        if self._regions.strict:
            fix = "Write `compile: false`; or `strict: false`, which runs that part uncompiled."
            raise KernelError(what, where="kernels.compile", fix=fix) from error
        self._run = self._uncompiled
        self._regions.warn(f"WARNING: {what}. It runs uncompiled, and slower")


class Regions:
    """All of one model.

    Args:
        compiles: make one kernel of each.
        float8: None multiplies in the compute dtype.
        strict: a region that can't be compiled ends the run.
        lengths_vary: micro-batches are not all of one length.
        warn: told once of each region that can't be compiled.
        backend: of torch.compile.
        smallest_side: see `plan/float8.py`; a test's weights are smaller.
    """

    def __init__(
        self,
        *,
        compiles: bool = False,
        float8: Float8 | None = None,
        strict: bool = True,
        lengths_vary: bool = False,
        warn: Callable[[str], None] = print,
        backend: str = "inductor",
        smallest_side: int = SMALLEST_SIDE,
    ) -> None:
        self.compiles = compiles
        self.float8 = float8
        self.strict = strict
        self.lengths_vary = lengths_vary
        self.warn = warn
        self.smallest_side = smallest_side
        self.is_plain = False
        self.by_key: dict[tuple[Any, ...], Region] = {}
        self.failures = _failures() if compiles else ()
        """What torch.compile raises when it can't."""
        self._backend = backend

    def region(
        self,
        name: str,
        function: Callable[..., Any],
        plain: Callable[..., Any],
        arguments: Sequence[Argument],
        *constants: Any,
        called: Callable[..., Any] | None = None,
        multiplies: bool = False,
    ) -> Region:
        """The one region for this function and these shapes.

        Args:
            name: of `plan/compiling.py`'s table.
            function: what is compiled; in float8 if that is asked for.
            plain: the same, operator by operator in the compute dtype.
            constants: what else `function` depends on.
            called: what kernels.json says that the layers call; `plain`, unless another one says more.
            multiplies: it has matrix products; see `keeping.py`.
        """
        key = (name, *arguments, *constants)
        if key not in self.by_key:
            self.by_key[key] = Region(self, name, function, plain, arguments, called or plain, multiplies)
        return self.by_key[key]

    def compiled(self, function: Callable[..., Any], *, varies: bool, multiplies: bool) -> Callable[..., Any]:
        """torch.compile, with variants of its own: dynamo counts those of all functions that share their code.

        Args:
            varies: how many rows there are; else each number has a variant.
            multiplies: see `region`.
        """
        function = keeping_products(function) if multiplies else function
        assert isinstance(function, FunctionType)
        code = function.__code__.replace()
        own = FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)
        dynamic = None if varies else False
        compiled: Callable[..., Any] = torch.compile(own, fullgraph=True, dynamic=dynamic, backend=self._backend)
        return compiled

    @contextmanager
    def plainly(self) -> Iterator[None]:
        """Inside, every region runs uncompiled and multiplies in the compute dtype."""
        self.is_plain = True
        try:
            yield
        finally:
            self.is_plain = False

    def try_out(
        self,
        tokens: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        weight_dtype: torch.dtype,
        gathers_float8: bool,
        also_without_gradient: bool,
    ) -> int:
        """Compiles every region, forward and backward, on numbers that nobody needs; returns how many there are.

        So what can't be compiled is found before the model is there, where nothing is half done, and no step waits.

        Args:
            tokens: of a micro-batch.
            dtype: of activations.
            weight_dtype: of the parameters that layers see.
            gathers_float8: those that are multiplied in float8 come cast.
            also_without_gradient: evaluation calls them, too.

        Raises:
            KernelError: one can't be compiled, and `kernels.strict` is on.
        """
        if not self.compiles:
            return 0
        for region in self.by_key.values():
            arguments = [
                self._example(argument, tokens, device, dtype, weight_dtype, gathers_float8)
                for argument in region.arguments
            ]
            made = region(*arguments)
            outputs = made if isinstance(made, tuple) else (made,)
            needed = [x for x in arguments if x is not None]
            try:
                torch.autograd.grad(outputs, needed, [torch.ones_like(out) for out in outputs])
            except self.failures as error:
                region.give_up(error)
            if also_without_gradient:
                seen = [
                    x.detach() if x is not None and isinstance(argument, Rows) else x
                    for x, argument in zip(arguments, region.arguments, strict=True)
                ]
                with torch.no_grad():
                    region(*seen)
        return len(self.by_key)

    def _example(
        self,
        argument: Argument,
        tokens: int,
        device: torch.device,
        dtype: torch.dtype,
        weight_dtype: torch.dtype,
        gathers_float8: bool,
    ) -> Tensor | None:
        if argument is None:
            return None
        if isinstance(argument, Rows):
            count = tokens + (-tokens % STEP if self.float8 is not None else 0)
            return torch.ones(count, argument.width, dtype=dtype, device=device, requires_grad=True)
        weight = torch.ones(argument.shape, dtype=argument.dtype or weight_dtype, device=device)
        if argument.is_float8 and gathers_float8:
            assert self.float8 is not None
            scale = self.float8.scales(weight.amax())
            weight = self.float8.gathered(self.float8.cast(weight, scale), scale, dtype)
        return nn.Parameter(weight)


def _failures() -> tuple[type[Exception], ...]:
    # Here and not above: it takes a second, and most runs compile nothing.
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    return TorchDynamoException, FailOnRecompileLimitHit  # Inductor's errors are among the first
