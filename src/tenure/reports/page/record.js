// The recording as the charts ask about it: allocations, segments and levels by position.
// A position counts events: the state at position p is the state after the first p of them.
import { Peaks } from "./peaks.js";

const CHUNK = 512; // allocations that share an entry of the coarse index

/** Every allocation and segment of one device, with an index for looking at a part of them. */
export class Recording {
  constructor(head, columns) {
    this.head = head;
    this.count = head.allocations;
    this.positions = head.events + 1;
    this.born = columns.born;
    this.served = columns.served; // positions from there to the end of its own event
    this.place = columns.place;
    this.home = columns.home;
    this.stack = columns.stack;
    this.site = columns.site;
    this.category = columns.category;
    this.stream = columns.stream;
    this.pool = columns.pool;
    this.steps = columns.steps;
    this.time = columns.time ?? null; // microseconds after the first event
    this.#takeLives(columns);
    this.#takeSpans(columns);
    this.#takeStacks(columns);
    this.#index();
    this.#findHeld();
    this.live = this.#level(this.born, this.freed, this.size);
    this.pending = this.#level(this.freed, this.done, this.size);
    this.reserved = this.#level(this.spanBorn, this.spanDied, this.spanSize);
    this.livePeaks = new Peaks(this.live);
    this.reservedPeaks = new Peaks(this.reserved);
    this.peak = head.marks.find((mark) => mark.kind === "peak").position;
  }

  #takeLives(columns) {
    const n = this.count;
    this.freed = new Uint32Array(n);
    this.done = new Uint32Array(n);
    this.size = new Float64Array(n);
    this.requested = new Float64Array(n);
    for (let i = 0; i < n; i += 1) {
      this.freed[i] = this.born[i] + columns.life[i];
      this.done[i] = this.freed[i] + columns.wait[i];
      this.size[i] = columns.shape_size[columns.shape[i]];
      this.requested[i] = columns.shape_requested[columns.shape[i]];
    }
  }

  #takeSpans(columns) {
    this.spanPlace = columns.span_place;
    this.spanSize = columns.span_size;
    this.spanBorn = columns.span_born;
    this.spanDied = columns.span_died;
    this.spanStream = columns.span_stream;
    this.spanPool = columns.span_pool;
    this.spanSmall = columns.span_small;
    this.spanArena = columns.span_arena;
    this.spans = this.spanPlace.length;
    this.stretchPlace = columns.stretch_place;
    this.stretchSize = columns.stretch_size;
    const last = this.stretchPlace.length - 1;
    this.height = last < 0 ? 0 : this.stretchPlace[last] + this.stretchSize[last]; // bytes
  }

  #takeStacks(columns) {
    const lengths = columns.stack_length;
    this.stackOffset = new Uint32Array(lengths.length + 1);
    for (let i = 0; i < lengths.length; i += 1) {
      this.stackOffset[i + 1] = this.stackOffset[i] + lengths[i];
    }
    this.stackFrame = columns.stack_frame;
    this.frameFile = columns.frame_file;
    this.frameName = columns.frame_name;
    this.frameLine = columns.frame_line;
  }

  /** For each chunk of allocations the last position at which any of them has its block. */
  #index() {
    this.latest = new Uint32Array(Math.ceil(this.count / CHUNK));
    for (let i = 0; i < this.count; i += 1) {
      const chunk = (i / CHUNK) | 0;
      if (this.done[i] > this.latest[chunk]) this.latest[chunk] = this.done[i];
    }
  }

  /** For each span the ranges of positions in which it holds any block; none for arenas. */
  #findHeld() {
    const ranges = Array.from({ length: this.spans }, () => []);
    for (let i = 0; i < this.count; i += 1) {
      const mine = this.home[i] < 0 ? null : ranges[this.home[i]];
      if (!mine) continue;
      // by ascending birth: a block either lengthens the last range or begins one
      if (mine.length && this.born[i] <= mine[mine.length - 1]) {
        mine[mine.length - 1] = Math.max(mine[mine.length - 1], this.done[i]);
      } else mine.push(this.born[i], this.done[i]);
    }
    this.held = ranges.map((range) => Uint32Array.from(range));
  }

  /** Index in `held[span]` of the first range that reaches beyond a position. */
  firstHeld(span, position) {
    const held = this.held[span];
    let from = 0;
    let to = held.length / 2;
    while (from < to) {
      const middle = (from + to) >> 1;
      if (held[middle * 2 + 1] <= position) from = middle + 1;
      else to = middle;
    }
    return from * 2;
  }

  #level(begin, end, weight) {
    const level = new Float64Array(this.positions + 1);
    for (let i = 0; i < begin.length; i += 1) {
      level[begin[i]] += weight[i];
      level[end[i]] -= weight[i];
    }
    for (let p = 1; p < level.length; p += 1) level[p] += level[p - 1];
    return level.subarray(0, this.positions);
  }

  /**
   * Ranges [from, to) of allocations that hold every one with its block anywhere in the
   * positions [low, high]; others may be among them.
   */
  *stretchesBetween(low, high) {
    let from = -1;
    for (let chunk = 0; chunk < this.latest.length; chunk += 1) {
      const begin = chunk * CHUNK;
      if (this.born[begin] > high) break;
      if (this.latest[chunk] > low) {
        if (from < 0) from = begin;
      } else if (from >= 0) {
        yield [from, begin];
        from = -1;
      }
      if (from >= 0 && begin - from >= 64 * CHUNK) {
        yield [from, begin];
        from = begin;
      }
    }
    if (from >= 0) yield [from, this.#bornUntil(high)];
  }

  /** The number of allocations born at or before a position. */
  #bornUntil(position) {
    let low = 0;
    let high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.born[middle] <= position) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Allocations that are live at a position, oldest first. */
  liveAt(position) {
    const found = [];
    for (const [from, to] of this.stretchesBetween(position, position)) {
      for (let i = from; i < to; i += 1) {
        if (this.born[i] <= position && position < this.freed[i]) found.push(i);
      }
    }
    return found;
  }

  /** Allocations whose block is live or pending at a position, by ascending place. */
  blocksAt(position) {
    const found = [];
    for (const [from, to] of this.stretchesBetween(position, position)) {
      for (let i = from; i < to; i += 1) {
        if (this.born[i] <= position && position < this.done[i]) found.push(i);
      }
    }
    return found.sort((a, b) => this.place[a] - this.place[b]);
  }

  /** The allocation whose block covers a place at a position; -1 if none does. */
  blockAt(place, position) {
    for (const [from, to] of this.stretchesBetween(position, position)) {
      for (let i = from; i < to; i += 1) {
        const inside = this.place[i] <= place && place < this.place[i] + this.size[i];
        if (inside && this.born[i] <= position && position < this.done[i]) return i;
      }
    }
    return -1;
  }

  /** The spans that the driver had given at a position, by ascending place. */
  spansAt(position) {
    const found = [];
    for (let s = 0; s < this.spans; s += 1) {
      if (this.spanBorn[s] <= position && position < this.spanDied[s]) found.push(s);
    }
    return found;
  }

  /** The span that covers a place at a position; -1 if none does. */
  spanAt(place, position) {
    return (
      this.spansAt(position).find(
        (s) => this.spanPlace[s] <= place && place < this.spanPlace[s] + this.spanSize[s],
      ) ?? -1
    );
  }

  /** The address of a place, as text: addresses have more bits than a number is exact for. */
  address(place) {
    if (place < 0) return "not in any known segment";
    let stretch = this.stretchPlace.length - 1;
    while (stretch > 0 && this.stretchPlace[stretch] > place) stretch -= 1;
    const into = BigInt(place - this.stretchPlace[stretch]);
    return `0x${(BigInt(this.head.stretches[stretch]) + into).toString(16)}`;
  }

  /** The place of an address; -1 if it was never reserved. */
  placeOf(address) {
    for (let s = 0; s < this.stretchPlace.length; s += 1) {
      const into = address - BigInt(this.head.stretches[s]);
      if (into >= 0n && into < BigInt(this.stretchSize[s])) {
        return this.stretchPlace[s] + Number(into);
      }
    }
    return -1;
  }

  /** The frames of an allocation's stack, innermost first. */
  framesOf(allocation) {
    const stack = this.stack[allocation];
    if (stack < 0) return [];
    const frames = [];
    for (let at = this.stackOffset[stack]; at < this.stackOffset[stack + 1]; at += 1) {
      const frame = this.stackFrame[at];
      frames.push({
        file: this.head.strings[this.frameFile[frame]],
        name: this.head.strings[this.frameName[frame]],
        line: this.frameLine[frame],
      });
    }
    return frames;
  }

  /** Seconds after the first event at which a position begins; null without times. */
  secondsAt(position) {
    if (!this.time || !this.time.length) return null;
    return position > 0 ? this.time[Math.min(position, this.time.length) - 1] / 1e6 : 0;
  }
}
