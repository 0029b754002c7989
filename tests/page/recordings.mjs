// Small recordings made at random, and slow and obvious ways to ask about them.
import { Recording } from "../../src/tenure/reports/page/record.js";

/** Numbers below n that look random and are the same every time. */
export function dice(seed) {
  let state = seed;
  return (n) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
  };
}

/** Segments of 100 bytes with blocks of at most 10, in slots so that none overlap. */
export function randomRecording(seed, events = 300, allocations = 120) {
  const roll = dice(seed);
  const rows = [];
  const busy = new Map(); // slot -> position at which it is free
  for (let i = 0; i < allocations; i += 1) {
    const born = i < 5 ? 0 : 1 + Math.floor((i * (events - 1)) / allocations);
    const freed = Math.min(born + 1 + roll(roll(4) ? 8 : events), events + 1);
    const done = roll(6) ? freed : Math.min(freed + roll(12), events + 1);
    let slot = roll(40);
    while ((busy.get(slot) ?? 0) > born) slot = (slot + 1) % 400;
    busy.set(slot, done);
    rows.push({ born, freed, done, place: slot * 10, size: 1 + roll(10), site: roll(4) });
  }
  return recordingOf(rows, events);
}

export function recordingOf(rows, events, more = {}) {
  const column = (read) => rows.map(read);
  const segments = 40;
  const columns = {
    born: Uint32Array.from(column((row) => row.born)),
    life: Uint32Array.from(column((row) => row.freed - row.born)),
    wait: Uint32Array.from(column((row) => row.done - row.freed)),
    served: new Uint8Array(rows.length),
    place: Float64Array.from(column((row) => row.place)),
    home: Int32Array.from(column((row) => Math.floor(row.place / 100))),
    shape: Uint32Array.from(rows.keys()),
    shape_size: Uint32Array.from(column((row) => row.size)),
    shape_requested: Uint32Array.from(column((row) => row.size)),
    stack: Int32Array.from(column((row) => row.stack ?? -1)),
    site: Uint8Array.from(column((row) => row.site ?? 0)),
    category: Uint8Array.from(column((row) => (row.site ?? 0) % 2)),
    stream: Uint8Array.from(column(() => 0)),
    pool: Uint8Array.from(column(() => 0)),
    span_place: Uint32Array.from({ length: segments }, (_, s) => s * 100),
    span_size: new Uint32Array(segments).fill(100),
    span_born: new Uint32Array(segments),
    span_died: new Uint32Array(segments).fill(events + 1),
    span_stream: new Uint8Array(segments),
    span_pool: new Uint8Array(segments),
    span_small: new Uint8Array(segments),
    span_arena: new Uint8Array(segments),
    stretch_place: Uint32Array.of(0),
    stretch_size: Uint32Array.of(segments * 100),
    stack_length: Uint32Array.of(2),
    stack_frame: Uint32Array.of(0, 1),
    frame_file: Uint32Array.of(0, 0),
    frame_name: Uint32Array.of(1, 2),
    frame_line: Uint32Array.of(7, 9),
    steps: new Uint32Array(0),
    ...more,
  };
  const live = new Array(events + 1).fill(0);
  for (const row of rows) for (let p = row.born; p < row.freed; p += 1) live[p] += row.size;
  const peak = live.indexOf(Math.max(...live));
  const head = {
    events,
    allocations: rows.length,
    marks: [{ kind: "peak", position: peak, bytes: live[peak] }],
    sites: ["train.py:1 a", "train.py:2 b", "model.py:3 c", "(no Python frames)"],
    categories: ["parameters", "activations"],
    streams: ["default"],
    pools: ["default pool"],
    strings: ["/app/train.py", "forward", "main"],
    stretches: ["0x7f0000000000"],
  };
  return new Recording(head, columns);
}

/** Numbers of the rows that are live at a position, by looking at every one. */
export function liveSlowly(record, position) {
  return [...record.born.keys()].filter(
    (i) => record.born[i] <= position && position < record.freed[i],
  );
}
