"""TensorBoard: event files in `trackers/tensorboard` of the run folder (`tensorboard --logdir runs`)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from sft_cli.telemetry.trackers.tracker import End, Opening, Point, Tracker

_SECONDS_BETWEEN_FLUSHES = 10


def open_tracker(opening: Opening) -> Tracker:
    return TensorBoard(opening)


class TensorBoard(Tracker):
    """Its own writer: torch's would import torch."""

    replaces_steps = True

    def __init__(self, opening: Opening) -> None:
        self.run_id = "tensorboard"
        self._writer = EventFileWriter(str(opening.folder / self.run_id), flush_secs=_SECONDS_BETWEEN_FLUSHES)
        self._add(Event(file_version="brain.Event:2"))
        # TensorBoard forgets what other files of the folder have of this step and later ones: of a run that was ended
        # after its last checkpoint, or that failed before its first.
        first_step = opening.resumed_at + 1 if opening.resumed_at else 0
        self._add(Event(session_log=SessionLog(status=SessionLog.START), step=first_step))
        self._add(Event(summary=_table("recipe", opening.config), step=opening.resumed_at))

    def log(self, points: Sequence[Point]) -> None:
        for point in points:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            self._add(Event(summary=Summary(value=values), step=point.step))

    def finish(self, end: End) -> None:
        self._writer.close()

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._writer.add_event(event)


def _table(tag: str, config: Mapping[str, object]) -> Summary:
    """For the page of texts, which shows Markdown."""
    rows = "".join(f"| {key} | `{value}` |\n" for key, value in config.items())
    text = TensorProto(
        dtype=DT_STRING,
        string_val=[f"| key | value |\n|---|---|\n{rows}".encode()],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
    )
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=text)])
