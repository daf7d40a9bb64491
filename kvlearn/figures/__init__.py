"""Pictures of attention, masks and caches: pure functions that return a matplotlib `Figure`.

    from kvlearn import figures
    figures.show(figures.mask_map(kvlearn.causal_mask(4)))

Each function takes tensors, arrays or lists, draws what it is given, and returns a `Picture`: a `Figure`
with a caption and alt text. As the last line of a cell a picture shows itself; `show` takes your own words.
"""

from kvlearn.figures.cache import cache_frame, cache_frames
from kvlearn.figures.classroom import exercise_outcomes, frequent_mistakes
from kvlearn.figures.decoder import decoder_map, turned_pairs, work_area
from kvlearn.figures.diagrams import heads_diagram, rope_clock, score_by_distance
from kvlearn.figures.intensity import intensity_bars
from kvlearn.figures.matrices import attention_map, mask_compare, mask_map, tensor_diff
from kvlearn.figures.plots import bars, memory_timeline, time_per_token
from kvlearn.figures.quantization import magnitude_map, window_map
from kvlearn.figures.recall import recall_by_length, recall_by_pairs
from kvlearn.figures.ring import ring_frames, window_reach
from kvlearn.figures.sizing import memory_stack, step_reads
from kvlearn.figures.style import Picture, show
from kvlearn.figures.whiteboard import arrows, course_path, split_heads_map

__all__ = [
    "Picture",
    "arrows",
    "attention_map",
    "bars",
    "cache_frame",
    "cache_frames",
    "course_path",
    "decoder_map",
    "exercise_outcomes",
    "frequent_mistakes",
    "heads_diagram",
    "intensity_bars",
    "magnitude_map",
    "mask_compare",
    "mask_map",
    "memory_stack",
    "memory_timeline",
    "recall_by_length",
    "recall_by_pairs",
    "ring_frames",
    "rope_clock",
    "score_by_distance",
    "show",
    "split_heads_map",
    "step_reads",
    "tensor_diff",
    "time_per_token",
    "turned_pairs",
    "window_map",
    "window_reach",
    "work_area",
]
