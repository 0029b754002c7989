import assert from "node:assert/strict";
import { test } from "node:test";
import {
  EventAxis,
  Sampling,
  TimeAxis,
  mostPerColumn,
} from "../../src/tenure/reports/page/axis.js";
import { Peaks } from "../../src/tenure/reports/page/peaks.js";
import { Scene } from "../../src/tenure/reports/page/scene.js";
import { dice, liveSlowly, randomRecording } from "./recordings.mjs";

function axesOf(record, seed) {
  const roll = dice(seed);
  let at = 0;
  record.time = Float64Array.from({ length: record.positions - 1 }, () => (at += roll(5) * 1000));
  return [new EventAxis(record), new TimeAxis(record)];
}

function* views(seed) {
  const roll = dice(seed);
  for (let k = 0; k < 20; k += 1) {
    const record = randomRecording(seed * 100 + k);
    for (const axis of axesOf(record, k)) {
      const from = (roll(1000) / 1000) * axis.end;
      const to = from + (axis.end - from) * ((1 + roll(1000)) / 1000);
      yield { record, axis, x0: from, x1: to, width: 1 + roll(200) };
      yield { record, axis, x0: 0, x1: axis.end, width: 1 + roll(60) };
    }
  }
}

test("each column shows the most live position of those it covers", () => {
  for (const { record, axis, x0, x1, width } of views(1)) {
    const sampling = new Sampling(axis, x0, x1, width, record.livePeaks);
    for (let c = 0; c < width; c += 1) {
      const edge = (k) => x0 + (k * (x1 - x0)) / width;
      const covered = [];
      for (let p = 0; p < record.positions; p += 1) {
        if (axis.x(p) >= edge(c) && axis.x(p) < edge(c + 1)) covered.push(p);
      }
      const shown = sampling.at[c];
      if (covered.length) {
        assert.ok(covered.includes(shown));
        assert.equal(record.live[shown], Math.max(...covered.map((p) => record.live[p])));
      } else {
        assert.ok(shown === 0 || axis.x(shown) < edge(c));
        assert.ok(shown + 1 >= record.positions || axis.x(shown + 1) >= edge(c));
      }
    }
  }
});

test("the column of a position is the first that shows it or a later one", () => {
  for (const { record, axis, x0, x1, width } of views(2)) {
    const sampling = new Sampling(axis, x0, x1, width, record.livePeaks);
    for (let p = 0; p <= record.positions; p += 7) {
      const first = sampling.at.findIndex((shown) => shown >= p);
      assert.equal(sampling.column(p), first < 0 ? width : first);
    }
  }
});

test("the scene holds exactly what the samples show", () => {
  for (const { record, axis, x0, x1, width } of views(3)) {
    const sampling = new Sampling(axis, x0, x1, width, record.livePeaks);
    const scene = new Scene(record, sampling);
    for (let c = 0; c < width; c += 3) {
      const live = [];
      for (let k = 0; k < scene.length; k += 1) {
        if (scene.first[k] <= c && c < scene.freed[k]) live.push(scene.block[k]);
      }
      assert.deepEqual(live, liveSlowly(record, sampling.at[c]));
    }
  }
});

test("levels are the sums of what lives", () => {
  const record = randomRecording(9);
  for (let p = 0; p < record.positions; p += 1) {
    const sum = liveSlowly(record, p).reduce((bytes, i) => bytes + record.size[i], 0);
    assert.equal(record.live[p], sum);
    assert.deepEqual(record.liveAt(p), liveSlowly(record, p));
  }
});

test("the highest of any range is found", () => {
  const roll = dice(5);
  const level = Float64Array.from({ length: 1000 }, () => roll(50));
  const peaks = new Peaks(level);
  for (let k = 0; k < 500; k += 1) {
    const from = roll(999);
    const to = from + 1 + roll(1000 - from);
    const slice = level.subarray(from, to);
    assert.equal(peaks.highest(from, to), from + slice.indexOf(Math.max(...slice)));
  }
});

test("the line of a level never misses its most", () => {
  const record = randomRecording(4);
  const axis = new EventAxis(record);
  const most = mostPerColumn(axis, 0, axis.end, 10, record.livePeaks);
  assert.equal(Math.max(...most), Math.max(...record.live));
});
