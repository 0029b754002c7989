import assert from "node:assert/strict";
import { test } from "node:test";
import { blockInStack } from "../../src/tenure/reports/page/live_chart.js";
import { GROUPINGS } from "../../src/tenure/reports/page/grouping.js";
import {
  largestAt,
  linesAt,
  neighboursOf,
  pinnedAt,
  splitAt,
} from "../../src/tenure/reports/page/moment.js";
import { matchesOf, parseQuery, summarize } from "../../src/tenure/reports/page/search.js";
import { View } from "../../src/tenure/reports/page/view.js";
import { liveSlowly, randomRecording, recordingOf } from "./recordings.mjs";

const LOOK = { matches: null, selected: -1 };

test("reserved bytes are taken apart into parts that add up", () => {
  const record = randomRecording(1);
  for (let p = 0; p < record.positions; p += 11) {
    const { live, pending, whole, pinned, arena, reserved } = splitAt(record, p);
    assert.equal(live + pending + whole + pinned + arena, reserved);
  }
});

test("a segment is pinned by whatever lies in it", () => {
  const rows = [
    { born: 0, freed: 9, done: 9, place: 0, size: 4 },
    { born: 2, freed: 5, done: 7, place: 250, size: 30 },
  ];
  const record = recordingOf(rows, 8);
  assert.deepEqual(
    pinnedAt(record, 1, 9).map((s) => [s.span, s.cached]),
    [[0, 96]],
  );
  assert.deepEqual(
    pinnedAt(record, 6, 9).map((s) => [s.span, s.cached]),
    [
      [0, 96],
      [2, 70],
    ],
  );
  assert.deepEqual(
    pinnedAt(record, 7, 9).map((s) => s.span),
    [0],
  );
});

test("neighbours are blocks, cached bytes or the edge of the segment", () => {
  const row = (place, size) => ({ born: 0, freed: 9, done: 9, place, size });
  const record = recordingOf([row(0, 10), row(10, 10), row(50, 50)], 8);
  const { below, above } = neighboursOf(record, 1, 3);
  assert.deepEqual(below, { kind: "block", allocation: 0, cached: 0 });
  assert.deepEqual(above, { kind: "cached", allocation: 2, cached: 30 });
  assert.equal(neighboursOf(record, 0, 3).below.kind, "edge");
  assert.equal(neighboursOf(record, 2, 3).above.kind, "edge");
});

test("lines and largest blocks of a moment", () => {
  const record = randomRecording(3);
  const live = liveSlowly(record, record.peak);
  const lines = linesAt(record, record.peak, null);
  const total = lines.reduce((sum, line) => sum + line.bytes, 0);
  assert.equal(total, record.live[record.peak]);
  assert.equal(
    lines.reduce((sum, line) => sum + line.blocks, 0),
    live.length,
  );
  const [first] = largestAt(record, record.peak, 1, null);
  assert.equal(record.size[first], Math.max(...live.map((i) => record.size[i])));
});

test("pointing into the stack finds each block once, whatever its size", () => {
  const record = randomRecording(4);
  const grouping = GROUPINGS.category(record);
  for (const bytesPerPixel of [0.5, 5, 100]) {
    const found = new Map();
    for (let at = 0; at < record.live[record.peak]; at += 1) {
      const i = blockInStack(record, record.peak, grouping, LOOK, bytesPerPixel, at + 0.5);
      found.set(i, (found.get(i) ?? 0) + 1);
    }
    const live = liveSlowly(record, record.peak);
    assert.deepEqual(
      [...found.keys()].sort((a, b) => a - b),
      live,
    );
    for (const [i, bytes] of found) assert.equal(bytes, record.size[i]);
    const above = record.live[record.peak] + 1;
    assert.equal(blockInStack(record, record.peak, grouping, LOOK, bytesPerPixel, above), -1);
  }
});

test("queries are words, sizes, addresses and numbers", () => {
  const query = parseQuery("Forward train.py:7 >64MiB <=1GiB 0x7F00 #12 >what");
  assert.deepEqual(query.words, ["forward", "train.py:7"]);
  assert.deepEqual([query.least, query.most], [64 * 2 ** 20, 2 ** 30]);
  assert.deepEqual([query.address, query.number], [0x7f00n, 12]);
  assert.deepEqual(query.broken, [">what"]);
});

test("a search finds what the query says and nothing else", () => {
  const row = (place, size, site, stack) => ({
    born: 0,
    freed: 9,
    done: 9,
    place,
    size,
    site,
    stack,
  });
  const record = recordingOf([row(0, 10, 0, 0), row(10, 3, 2, -1), row(50, 50, 3, -1)], 8);
  const find = (text) => {
    const matches = matchesOf(record, parseQuery(text));
    return matches && [...matches.keys()].filter((i) => matches[i]);
  };
  assert.equal(find("  "), null);
  assert.deepEqual(find("train"), [0]);
  assert.deepEqual(find("forward"), [0]);
  assert.deepEqual(find("train.py:9"), [0]);
  assert.deepEqual(find("train.py:8"), []);
  assert.deepEqual(find("MODEL"), [1]);
  assert.deepEqual(find("activations"), [2]);
  assert.deepEqual(find("default"), [0, 1, 2]);
  assert.deepEqual(find(">9 <20"), [0]);
  assert.deepEqual(find("0x7f000000000c"), [1]);
  assert.deepEqual(find("0x10"), []);
  assert.deepEqual(find("#2"), [2]);
  const { count, live, largest } = summarize(
    record,
    matchesOf(record, parseQuery("default")),
    0,
    2,
  );
  assert.deepEqual([count, live, largest], [3, 63, [2, 0]]);
});

test("zooming keeps what is under the pointer there, within the recording", () => {
  const record = randomRecording(6);
  const view = new View(record, () => {});
  const share = (x) => (x - view.x0) / (view.x1 - view.x0);
  const x = 120;
  const before = share(x);
  view.zoom(0.3, x);
  assert.ok(Math.abs(share(x) - before) < 1e-9);
  for (let k = 0; k < 50; k += 1) view.zoom(0.5, x);
  assert.ok(view.x1 - view.x0 >= view.axis.least);
  for (let k = 0; k < 50; k += 1) view.zoom(2, x);
  assert.deepEqual([view.x0, view.x1], [0, view.axis.end]);
  view.show(50, 60);
  view.pan(-100);
  assert.equal(view.x0, 0);
  view.pan(1e6);
  assert.equal(view.x1, view.axis.end);
  view.goTo(3);
  assert.ok(view.axis.x(3) >= view.x0 && view.axis.x(3) <= view.x1);
});

test("stepping through memory meets every block of the moment in order", () => {
  const record = randomRecording(7);
  const view = new View(record, () => {});
  view.goTo(record.peak);
  const blocks = record.blocksAt(record.peak);
  view.step(1); // the largest
  for (const _ of blocks) view.step(-1);
  const met = [view.selected];
  for (let k = 1; k < blocks.length; k += 1) {
    view.step(1);
    met.push(view.selected);
  }
  assert.deepEqual(met, blocks);
});

test("one group alone, and all of them again", () => {
  const record = randomRecording(8);
  const view = new View(record, () => {});
  view.isolate(1);
  assert.deepEqual(
    view.grouping.groups.map((group) => group.shown),
    [false, true],
  );
  assert.equal(view.look().showsCache, false);
  view.isolate(1);
  assert.ok(view.grouping.groups.every((group) => group.shown));
});
