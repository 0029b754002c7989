// What runs from left to right, and which moment each pixel column shows.

/** Events at equal distances: x is a position. */
export class EventAxis {
  constructor(record) {
    this.kind = "event";
    this.end = record.positions;
    this.least = Math.min(4, this.end); // the narrowest view
  }

  x(position) {
    return position;
  }

  /** The first position at or behind x. */
  from(x) {
    return Math.min(Math.max(Math.ceil(x), 0), this.end);
  }
}

/** Time as it passed: x is in seconds after the first event. */
export class TimeAxis {
  constructor(record) {
    this.kind = "time";
    this.time = record.time;
    this.positions = record.positions;
    const last = this.time.length ? this.time[this.time.length - 1] / 1e6 : 0;
    this.end = Math.max(last * 1.0005, 1e-6);
    this.least = Math.min(1e-5, this.end);
  }

  x(position) {
    if (position <= 0) return 0;
    if (position > this.time.length) return this.end;
    return this.time[position - 1] / 1e6;
  }

  from(x) {
    let low = 0;
    let high = this.positions;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.x(middle) < x) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/**
 * The position that each pixel column shows: among those it covers, the one with most live
 * bytes, so that no peak is lost however narrow its column; where it covers none, the state that
 * lasts. Positions never fall from left to right.
 */
export class Sampling {
  constructor(axis, x0, x1, width, peaks) {
    this.width = width;
    this.at = positionsOf(axis, x0, x1, width, peaks);
    this.low = this.at[0];
    this.high = this.at[width - 1];
    this.#fillColumns();
  }

  #fillColumns() {
    this.columns = new Uint16Array(this.high - this.low + 1);
    let from = 0;
    for (let c = 0; c < this.width; c += 1) {
      const to = this.at[c] - this.low + 1;
      if (to > from) this.columns.fill(c, from, to);
      from = Math.max(from, to);
    }
  }

  /** The first column that shows a position at or behind this one; `width` if none does. */
  column(position) {
    if (position <= this.low) return 0;
    if (position > this.high) return this.width;
    return this.columns[position - this.low];
  }
}

/** For each column of a range the position with most of a level, or the last one before it. */
function positionsOf(axis, x0, x1, width, peaks) {
  const at = new Int32Array(width);
  const count = peaks.level.length;
  let next = Math.min(axis.from(x0), count);
  for (let c = 0; c < width; c += 1) {
    const until = Math.min(axis.from(x0 + ((c + 1) * (x1 - x0)) / width), count);
    at[c] = next < until ? peaks.highest(next, until) : Math.max(next - 1, 0);
    next = Math.max(until, next);
  }
  return at;
}

/** The most of a level within each pixel column. */
export function mostPerColumn(axis, x0, x1, width, peaks) {
  return Float64Array.from(positionsOf(axis, x0, x1, width, peaks), (p) => peaks.level[p]);
}
