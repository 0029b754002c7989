"""The allocator's settings are read exactly as PyTorch reads them, and written back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import BadInputError, UsageError
from tenure.settings import (
    AllocatorSettings,
    from_snapshot_settings,
    known_clashes,
    parse_alloc_conf,
    to_conf,
)
from tenure.units import GIB, MIB

DEFAULT = AllocatorSettings()


def test_no_text_is_pytorchs_default() -> None:
    assert parse_alloc_conf("") == DEFAULT
    assert DEFAULT.max_split_size == -1
    assert DEFAULT.large_segment_size == DEFAULT.max_non_split_rounding == 20 * MIB


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("expandable_segments:True", {"expandable_segments": True}),
        ("expandable_segments:False", {}),
        (" expandable_segments : True ,\n", {"expandable_segments": True}),
        ("max_split_size_mb:20", {"max_split_size": 20 * MIB}),
        ("max_split_size_mb:128,max_split_size_mb:256", {"max_split_size": 256 * MIB}),
        ("max_non_split_rounding_mb:64", {"max_non_split_rounding": 64 * MIB}),
        ("garbage_collection_threshold:0.8", {"garbage_collection_threshold": 0.8}),
        ("garbage_collection_threshold:5e-1", {"garbage_collection_threshold": 0.5}),
        (
            "large_segment_size_mb:11",
            {"large_segment_size": 11 * MIB, "max_non_split_rounding": 11 * MIB},
        ),
        (
            "large_segment_size_mb:64,max_split_size_mb:64",
            {
                "large_segment_size": 64 * MIB,
                "max_non_split_rounding": 64 * MIB,
                "max_split_size": 64 * MIB,
            },
        ),
        (
            "max_split_size_mb:24,large_segment_size_mb:32",
            {
                "large_segment_size": 32 * MIB,
                "max_non_split_rounding": 32 * MIB,
                "max_split_size": 24 * MIB,
            },
        ),
        ("roundup_power2_divisions:4", {"roundup_power2_divisions": (4,) * 16}),
        ("roundup_power2_divisions:1", {"roundup_power2_divisions": (1,) * 16}),
        (
            "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
            {"roundup_power2_divisions": (1,) * 9 + (2, 4) + (8,) * 5},
        ),
        ("roundup_power2_divisions:[1:2,4:8]", {"roundup_power2_divisions": (2, 0, 8) + (0,) * 13}),
        (
            "roundup_power2_divisions:[64:8,65536:2]",
            {"roundup_power2_divisions": (8,) * 7 + (0,) * 8 + (2,)},
        ),
        (
            "per_process_memory_fraction:0.5",
            {"limit": DEFAULT.device_memory // 2},
        ),
        ("per_process_memory_fraction:1.0", {}),
        ("backend:native", {"ignored": ("backend:native",)}),
        (
            "pinned_num_register_threads:8,release_lock_on_cudamalloc:True",
            {"ignored": ("pinned_num_register_threads:8", "release_lock_on_cudamalloc:True")},
        ),
    ],
)
def test_each_setting_is_read(text: str, changed: dict[str, object]) -> None:
    settings = parse_alloc_conf(text)
    assert settings == replace(DEFAULT, **changed)  # type: ignore[arg-type]
    assert settings.conf == text


def test_up_to_torch_2_8_the_rest_began_at_the_last_interval_named() -> None:
    text = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
    old = parse_alloc_conf(text, torch_version=(2, 8))
    assert old.roundup_power2_divisions == (1,) * 9 + (2,) + (8,) * 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expandable_segments:true", "True or False"),
        ("expandable_segment:True", "nearest is expandable_segments"),
        ("max_split_size:128", "nearest is max_split_size_mb"),
        ("foo:1", "no such setting"),
        ("max_split_size_mb:19", "at least 20"),
        ("large_segment_size_mb:32,max_split_size_mb:24", "at least 32"),
        ("max_non_split_rounding_mb:10", "at least 20"),
        ("large_segment_size_mb:10", "at least 11"),
        ("max_split_size_mb:128MB", "whole number"),
        ("max_split_size_mb:-1", "whole number"),
        ("garbage_collection_threshold:0", "between 0 and 1"),
        ("garbage_collection_threshold:1", "between 0 and 1"),
        ("garbage_collection_threshold:nan", "between 0 and 1"),
        ("garbage_collection_threshold:high", "expected a number"),
        ("per_process_memory_fraction:1.5", "from 0 to 1"),
        ("roundup_power2_divisions:3", "power of two"),
        ("roundup_power2_divisions:0", "power of two"),
        ("roundup_power2_divisions:[3:4]", "not a power of two"),
        ("roundup_power2_divisions:[4:3]", "power of two"),
        ("roundup_power2_divisions:[4]", "expected MiB:divisions"),
        ("roundup_power2_divisions:[4:2", "cannot read"),
        ("expandable_segments", "cannot read"),
        ("expandable_segments=True", "cannot read"),
        (",expandable_segments:True", "cannot read"),
        ("max_split_size_mb:", "cannot read"),
        ("backend:cudaMallocAsync", "another allocator"),
        ("backend:best", "native or cudaMallocAsync"),
    ],
)
def test_what_pytorch_refuses_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_alloc_conf(text)


def test_an_old_torch_does_not_know_newer_settings() -> None:
    with pytest.raises(UsageError, match=r"torch 2\.6 does not know"):
        parse_alloc_conf("large_segment_size_mb:32", torch_version=(2, 6))


def test_a_later_string_resets_some_settings_and_keeps_others() -> None:
    first = parse_alloc_conf(
        "large_segment_size_mb:32,expandable_segments:True,max_split_size_mb:64,"
        "garbage_collection_threshold:0.5,roundup_power2_divisions:8",
        torch_version=(2, 13),
        base=replace(DEFAULT, limit=GIB, device_memory=8 * GIB),
    )
    later = parse_alloc_conf("", base=first)
    assert later == AllocatorSettings(
        torch_version=(2, 13),
        expandable_segments=True,
        large_segment_size=32 * MIB,
        max_non_split_rounding=32 * MIB,
        limit=GIB,
        device_memory=8 * GIB,
    )
    with pytest.raises(UsageError, match="at least 32"):
        parse_alloc_conf("max_split_size_mb:24", base=first)


DIVISIONS = st.lists(st.sampled_from([0, 0, 1, 2, 4, 8, 64]), min_size=16, max_size=16)
# Long runs of equal entries are what the text form shortens.
RUNS = st.tuples(st.integers(0, 16), st.integers(0, 16), *[st.sampled_from([0, 1, 2, 4])] * 3).map(
    lambda run: ([run[2]] * run[0] + [run[3]] * run[1] + [run[4]] * 16)[:16]
)


@st.composite
def settings_that_text_can_say(draw: st.DrawFn) -> AllocatorSettings:
    large = draw(st.integers(11, 100))
    return AllocatorSettings(
        torch_version=draw(st.sampled_from([(2, 8), (2, 11), (2, 12), (2, 13)])),
        expandable_segments=draw(st.booleans()),
        max_split_size=draw(st.just(-1) | st.integers(max(20, large), 4096).map(lambda n: n * MIB)),
        max_non_split_rounding=(large + draw(st.just(0) | st.integers(0, 100))) * MIB,
        large_segment_size=large * MIB,
        roundup_power2_divisions=tuple(draw(DIVISIONS | RUNS)),
        garbage_collection_threshold=draw(
            st.just(0.0) | st.floats(0, 1, exclude_min=True, exclude_max=True)
        ),
        ignored=draw(st.sampled_from([(), ("pinned_use_background_threads:True",)])),
    )


@given(settings_that_text_can_say())
def test_text_says_the_settings_it_was_made_from(settings: AllocatorSettings) -> None:
    assert parse_alloc_conf(to_conf(settings), torch_version=settings.torch_version) == settings


@pytest.mark.parametrize(
    "text",
    [
        "",
        "expandable_segments:True",
        "max_split_size_mb:24,large_segment_size_mb:32",
        "large_segment_size_mb:32,max_split_size_mb:64",
        "roundup_power2_divisions:[1:0,2:4,4:8,>:8]",
        "roundup_power2_divisions:[256:1,512:2,1024:4,2048:8,>:8]",
        "garbage_collection_threshold:0.6,expandable_segments:True,pinned_num_register_threads:4",
    ],
)
def test_text_in_canonical_form_comes_back_as_it_was(text: str) -> None:
    assert to_conf(parse_alloc_conf(text)) == text


def test_bytes_that_text_cannot_say_are_refused() -> None:
    with pytest.raises(UsageError, match="whole number of MiB"):
        to_conf(replace(DEFAULT, max_split_size=64 * MIB + 512))


def test_a_snapshot_gives_its_settings() -> None:
    recorded = {
        "PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:32, max_split_size_mb:128",
        "max_split_size": 128 * MIB,
        "garbage_collection_threshold": 0.5,
        "expandable_segments": False,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "graph_capture_record_stream_reuse": True,
        "roundup_power2_divisions": {str(1 << i): 8 if i == 3 else 0 for i in range(16)},
    }
    settings = from_snapshot_settings(recorded, torch_version=(2, 12))
    assert settings == AllocatorSettings(
        torch_version=(2, 12),
        max_split_size=128 * MIB,
        max_non_split_rounding=32 * MIB,
        large_segment_size=32 * MIB,
        roundup_power2_divisions=(0, 0, 0, 8) + (0,) * 12,
        garbage_collection_threshold=0.5,
        ignored=("graph_capture_record_stream_reuse:True",),
    )
    assert settings.conf == recorded["PYTORCH_CUDA_ALLOC_CONF"]


def test_a_snapshot_without_settings_has_the_defaults() -> None:
    assert from_snapshot_settings({}) == DEFAULT


@pytest.mark.parametrize(
    "recorded",
    [
        {"max_split_size": "128"},
        {"max_split_size": True},
        {"expandable_segments": 1},
        {"garbage_collection_threshold": None},
        {"roundup_power2_divisions": [4] * 16},
        {"roundup_power2_divisions": {"1": "4"}},
        {"PYTORCH_CUDA_ALLOC_CONF": b"expandable_segments:True"},
    ],
)
def test_a_snapshot_with_settings_of_another_kind_is_bad_input(recorded: dict[str, object]) -> None:
    with pytest.raises(BadInputError, match="PyTorch never writes"):
        from_snapshot_settings(recorded)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_split_size_mb:128,expandable_segments:True", "pytorch#193400"),
        ("garbage_collection_threshold:0.8", "does nothing without a memory fraction"),
        ("garbage_collection_threshold:0.8,expandable_segments:True", "skips"),
        ("max_non_split_rounding_mb:64", "does nothing without max_split_size_mb"),
        ("max_split_size_mb:24,large_segment_size_mb:32", "below large_segment_size_mb"),
        ("throw_on_cudamalloc_oom:True", "not part of the replay"),
    ],
)
def test_clashes_are_named(text: str, words: str) -> None:
    assert any(words in sentence for sentence in known_clashes(parse_alloc_conf(text)))


@pytest.mark.parametrize(
    "text", ["", "expandable_segments:True", "throw_on_cudamalloc_oom:False", "backend:native"]
)
def test_settings_that_get_along_have_no_clash(text: str) -> None:
    assert known_clashes(parse_alloc_conf(text)) == []
