"""Why a GPU's clocks are not higher, as the driver's bits have it, and which of that is worth a word."""

from __future__ import annotations

LIMITS = {
    0x1: "idle",
    0x2: "clocks_set",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
    0x100: "display",
    0x200: "board_limit",
    0x400: "reliability",
}
"""`nvmlClocksEventReasons` by bit, as metrics.jsonl names them."""

_SETTING, _BY_HARDWARE, _HEAT_OR_BRAKE = 0x2, 0x8, 0x40 | 0x80
_LOW_CLOCK_SHARE = 0.95

TOLD = {
    _SETTING: "is held below its highest clock by a setting (`nvidia-smi -rac` and `-rgc` undo one that someone made)",
    _BY_HARDWARE: "is slowed down by its hardware, for heat or for power",
    0x20: "is slowed down because it is too hot (thermal slowdown by software): look at its cooling",
    0x40: "is slowed down because it is too hot (thermal slowdown by hardware): look at its cooling",
    0x80: "is slowed down by a power brake: its machine asks it to take less power",
}
"""What a user is told, by bit. Not the software's power cap, under which every busy data-centre GPU is all the time."""


def told(bits: int, sm_clock_mhz: int | None, highest_mhz: int | None) -> int:
    """Those of the bits that a user is told. A setting that is the highest clock there is slows nothing down."""
    if sm_clock_mhz is None or highest_mhz is None or sm_clock_mhz >= _LOW_CLOCK_SHARE * highest_mhz:
        bits &= ~_SETTING
    if bits & _HEAT_OR_BRAKE:
        bits &= ~_BY_HARDWARE  # says no more than they do
    return bits & sum(TOLD)


def names(bits: int) -> list[str]:
    """Names of the bits that are set; those that only a newer driver knows are left out."""
    return [name for bit, name in LIMITS.items() if bits & bit]
