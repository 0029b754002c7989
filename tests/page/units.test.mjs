import assert from "node:assert/strict";
import { test } from "node:test";
import {
  byteTicks,
  formatBytes,
  formatCount,
  formatSeconds,
  momentName,
  parseBytes,
  plainTicks,
  visible,
} from "../../src/tenure/reports/page/units.js";

test("sizes read as tenure writes them elsewhere", () => {
  assert.equal(formatBytes(512), "512 B");
  assert.equal(formatBytes(1024), "1.00 KiB");
  assert.equal(formatBytes(22_055_747_584), "20.54 GiB");
  assert.equal(formatBytes(1023.999 * 2 ** 20), "1.00 GiB");
});

test("counts and durations", () => {
  assert.equal(formatCount(525407), "525,407");
  assert.equal(formatCount(7), "7");
  assert.equal(formatSeconds(125), "2 min 5 s");
  assert.equal(formatSeconds(0.00312), "3.12 ms");
  assert.equal(formatSeconds(0.0000123), "12 µs");
});

test("a position is named by its last event", () => {
  assert.equal(momentName(0), "before the first event");
  assert.equal(momentName(39956), "after event 39,955");
});

test("sizes are understood as people type them", () => {
  assert.equal(parseBytes("64MiB"), 64 * 2 ** 20);
  assert.equal(parseBytes("1.5 gb"), 1.5 * 2 ** 30);
  assert.equal(parseBytes("512"), 512);
  assert.ok(Number.isNaN(parseBytes("much")));
});

test("ticks are round and in one unit", () => {
  assert.deepEqual(
    byteTicks(20 * 2 ** 30, 5).map((tick) => tick.label),
    ["0 GiB", "5 GiB", "10 GiB", "15 GiB", "20 GiB"],
  );
  assert.ok(byteTicks(1, 5).length <= 2);
  assert.deepEqual(plainTicks(0, 10, 5, 1), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(plainTicks(3, 4, 5, 1), [3, 4]);
});

test("control and direction characters are spelled out, all else stays", () => {
  assert.equal(visible("a\u0000b\u202ec\n"), "a\\u0000b\\u202ec\\u000a");
  assert.equal(visible("<b>\"&' ü 漢 😀"), "<b>\"&' ü 漢 😀");
  assert.equal(visible("\ud800"), "\\ud800");
});
