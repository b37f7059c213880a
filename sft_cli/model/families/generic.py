"""Whatever passes the checks of `worker/generic_probe.py`: a decoder of transformers that needs nothing of ours."""

from __future__ import annotations

from sft_cli.model.families.family import Family

FAMILY = Family()
