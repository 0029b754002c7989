// PyTorch's rules as tables: sizes in, sizes out. The figures were read off real releases.
#include "engine/torch_rules.hpp"

#include "engine/tests/check.hpp"

using namespace tenure;
using namespace tenure::torch_rules;

namespace {

Settings with_divisions(std::array<int, 16> divisions) {
    Settings settings;
    settings.roundup_power2_divisions = divisions;
    return settings;
}

Settings with_divisions(int everywhere) {
    std::array<int, 16> divisions{};
    divisions.fill(everywhere);
    return with_divisions(divisions);
}

void test_plain_rounding() {
    const Settings settings;
    const struct {
        Bytes requested, rounded;
    } table[] = {{1, 512},
                 {511, 512},
                 {512, 512},
                 {513, 1024},
                 {1024, 1024},
                 {1'000'000, 1'000'448},
                 {MiB, MiB},
                 {MiB + 1, MiB + 512},
                 {10 * MiB - 1, 10 * MiB},
                 {GiB + 7, GiB + 512}};
    for (const auto& row : table) CHECK_EQUAL(round_size(settings, row.requested), row.rounded);
}

void test_rounding_to_divisions() {
    const Settings four = with_divisions(4);
    const struct {
        Bytes requested, rounded;
    } table[] = {
        {2048, 2048},                // not above 512 * 4: plain
        {2049, 2560},                // above it: steps of 2048 / 4
        {1200 * KiB, 1280 * KiB},    // steps of 1 MiB / 4
        {1280 * KiB, 1280 * KiB},    // on a step already
        {1281 * KiB, 1536 * KiB},    //
        {2 * MiB, 2 * MiB},          // powers of two stay
        {2 * MiB + 1, 2560 * KiB},   //
        {7 * MiB + 1, 8 * MiB},      // the last step ends at the next power of two
        {GiB + 1, GiB + 256 * MiB},  //
        {100 * GiB, 112 * GiB},      // steps of 64 GiB / 4; beyond the last entry
    };
    for (const auto& row : table) CHECK_EQUAL(round_size(four, row.requested), row.rounded);
    for (const int off : {0, 1})
        CHECK_EQUAL(round_size(with_divisions(off), 1200 * KiB), 1200 * KiB);
}

// roundup_power2_divisions:[256:1,512:2,1024:4,>:8], one entry a power of two from 1 MiB.
void test_division_lists() {
    const Settings list = with_divisions({1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8});
    const struct {
        Bytes requested, rounded;
    } table[] = {
        {700'000, 700'416},        // below 1 MiB the first entry serves: off
        {300 * MiB, 300 * MiB},    // entry 8 (256 MiB): off
        {600 * MiB, 768 * MiB},    // entry 9: halves
        {1100 * MiB, 1280 * MiB},  // entry 10: quarters
        {2100 * MiB, 2304 * MiB},  // entry 11: eighths
        {40 * GiB + 1, 44 * GiB},  // entry 15 serves all from 32 GiB
    };
    for (const auto& row : table) CHECK_EQUAL(round_size(list, row.requested), row.rounded);

    // [1:2,4:8]: entries between two named ones stay off.
    const Settings gap = with_divisions({2, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
    CHECK_EQUAL(round_size(gap, 1100 * KiB), 1536 * KiB);
    CHECK_EQUAL(round_size(gap, 2100 * KiB), 2100 * KiB);
    CHECK_EQUAL(round_size(gap, 4100 * KiB), 4608 * KiB);
    CHECK_EQUAL(round_size(gap, 600 * KiB), 768 * KiB);  // the first entry, below 1 MiB too
}

void test_segment_sizes() {
    Settings settings;
    CHECK(is_small(MiB));
    CHECK(!is_small(MiB + 512));
    CHECK_EQUAL(segment_size(settings, 512), 2 * MiB);
    CHECK_EQUAL(segment_size(settings, MiB), 2 * MiB);
    CHECK_EQUAL(segment_size(settings, MiB + 512), 20 * MiB);
    CHECK_EQUAL(segment_size(settings, 10 * MiB - 512), 20 * MiB);
    CHECK_EQUAL(segment_size(settings, 10 * MiB), 10 * MiB);
    CHECK_EQUAL(segment_size(settings, 10 * MiB + 512), 12 * MiB);
    CHECK_EQUAL(segment_size(settings, 33 * MiB), 34 * MiB);
    settings.large_segment_size = 64 * MiB;
    CHECK_EQUAL(segment_size(settings, 3 * MiB), 64 * MiB);
    CHECK_EQUAL(segment_size(settings, 12 * MiB), 12 * MiB);
    CHECK_EQUAL(granule(settings, true), 2 * MiB);
    CHECK_EQUAL(granule(settings, false), 64 * MiB);
}

void test_arena_sizes() {
    Settings settings;
    settings.device_memory = 150'109'880'320;
    CHECK_EQUAL(arena_size(settings, 2 * MiB), round_up(168'873'615'360, 2 * MiB));
    CHECK_EQUAL(arena_size(settings, 20 * MiB) % (20 * MiB), 0);
    settings.device_memory = 80 * GiB;
    CHECK_EQUAL(arena_size(settings, 2 * MiB), 90 * GiB);
}

void test_split_rules() {
    Settings settings;
    CHECK(should_split(settings, true, 512, 1024));
    CHECK(!should_split(settings, true, 1024, 1024));
    CHECK(!should_split(settings, false, 2 * MiB, 3 * MiB));  // 1 MiB left is not more than 1 MiB
    CHECK(should_split(settings, false, 2 * MiB, 3 * MiB + 512));
    settings.max_split_size = 128 * MiB;
    CHECK(should_split(settings, false, 128 * MiB - 512, 200 * MiB));
    CHECK(!should_split(settings, false, 128 * MiB, 200 * MiB));
    settings.expandable_segments = true;  // then 512 bytes decide in large pools, oversize or not
    CHECK(should_split(settings, false, 128 * MiB, 128 * MiB + 512));
    CHECK(!should_split(settings, false, 128 * MiB, 128 * MiB));
}

void test_oversize_rules() {
    Settings settings;
    CHECK(!is_oversize(settings, 100 * GiB));
    CHECK(may_serve(settings, 2 * MiB, 100 * GiB));
    settings.max_split_size = 128 * MiB;
    CHECK(!is_oversize(settings, 128 * MiB - 512));
    CHECK(is_oversize(settings, 128 * MiB));
    CHECK(may_serve(settings, 2 * MiB, 128 * MiB - 512));
    CHECK(!may_serve(settings, 2 * MiB, 128 * MiB));
    CHECK(may_serve(settings, 130 * MiB, 150 * MiB - 512));
    CHECK(!may_serve(settings, 130 * MiB, 150 * MiB));  // 20 MiB more than asked for
    settings.max_non_split_rounding = 64 * MiB;
    CHECK(may_serve(settings, 130 * MiB, 150 * MiB));
}

void test_versions() {
    CHECK(tie_rule({2, 0}) == TieRule::address);
    CHECK(tie_rule({2, 11}) == TieRule::address);
    CHECK(tie_rule({2, 12}) == TieRule::block_counter);
    CHECK(tie_rule({2, 13}) == TieRule::segment_counter);
    CHECK(tie_rule({3, 0}) == TieRule::segment_counter);
}

}  // namespace

int main() {
    test_plain_rounding();
    test_rounding_to_divisions();
    test_division_lists();
    test_segment_sizes();
    test_arena_sizes();
    test_split_rules();
    test_oversize_rules();
    test_versions();
    return testing::result();
}
