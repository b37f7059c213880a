"""torchao's float8 training: linear layers whose three matrix products multiply 8-bit floats. Written against 0.18.

Layers keep their class, their weights and their names: each gets a forward of ours, which calls torchao's product.
torchao's own conversion puts modules of another class in their place, and for a float8 all-gather a tensor subclass in
place of each weight, which the optimizers' kernels, exports and checkpoints would have to know of.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sft_cli.kernels.importing import importing
from sft_cli.plan.float8 import TORCHAO


class Float8:
    """One of torchao's recipes.

    Args:
        recipe: `tensorwise` (one scale a tensor) or `rowwise` (one for each row or column that a product sums over).
        emulate: multiply in float32 what was rounded to float8: for a device without such products.

    Raises:
        KernelError: torchao can't be imported.
    """

    def __init__(self, recipe: str, *, emulate: bool) -> None:
        with importing(TORCHAO, slot="float8", instead="`float8: none`"):
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training
            from torchao.float8.config import e4m3_dtype
            from torchao.float8.float8_linear import matmul_with_hp_or_float8_args
            from torchao.float8.float8_training_tensor import (
                Float8TrainingTensor,
                GemmInputRole,
                LinearMMConfig,
                ScaledMMConfig,
            )
            from torchao.float8.float8_utils import amax_to_scale, to_fp8_saturated
        config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=emulate)
        # Of nothing: for what it repairs in Inductor's code for Triton before any float8 kernel is compiled.
        convert_to_float8_training(torch.nn.Identity(), config=config)
        self.recipe = recipe
        self.matmul = matmul_with_hp_or_float8_args
        """What the model calls."""
        self._tensor: Any = Float8TrainingTensor
        self._weight_role = GemmInputRole.WEIGHT
        self._dtype: torch.dtype = e4m3_dtype
        self._amax_to_scale = amax_to_scale
        self._saturated = to_fp8_saturated
        self._config = config
        products = (config.gemm_config_output, config.gemm_config_grad_input, config.gemm_config_grad_weight)
        self._products = LinearMMConfig(
            *(ScaledMMConfig(emulate, product.use_fast_accum, False, False) for product in products)
        )

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x @ weight.T + bias.

        Args:
            x: (tokens, columns), tokens a multiple of 16; the dtype that is computed in.
            weight: (rows, columns), in any dtype, or cast already (`gathered`).
            bias: (rows,).

        Returns:
            (tokens, rows), in the dtype of `x`.
        """
        out: Tensor = self.matmul.apply(x, weight.t(), self._products, self._config)
        return out if bias is None else out + bias.to(out.dtype)

    def linear_without(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The same, multiplied in the dtype of `x`; of the weight, what is left of it."""
        return F.linear(x, self.restored(weight).to(x.dtype), None if bias is None else bias.to(x.dtype))

    def restored(self, weight: Tensor) -> Tensor:
        """A weight that was cast, in the dtype that it was gathered for; others as they are."""
        return weight.to_original_precision() if isinstance(weight, self._tensor) else weight

    def scales(self, amaxes: Tensor) -> Tensor:
        """float32 (n,): what to multiply n weights with, from the largest absolute value of each."""
        scales: Tensor = self._amax_to_scale(amaxes, self._dtype, self._config.round_scales_to_power_of_2)
        return scales

    def cast(self, weight: Tensor, scale: Tensor) -> Tensor:
        """float8, of the shape of `weight`: that times `scale`."""
        bits: Tensor = self._saturated(weight.float() * scale, self._dtype)
        return bits

    def gathered(self, bits: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        """Cast weights as `linear` takes them.

        Args:
            dtype: what is computed in; the result seems to be of that dtype.
        """
        tensor: Tensor = self._tensor(bits, scale, dtype, self._products, self._weight_role)
        return tensor

    @staticmethod
    def set_scale(tensor: Tensor, scale: Tensor) -> None:
        """Of one that `gathered` made, when its bits were replaced."""
        tensor._scale = scale  # type: ignore[attr-defined]
