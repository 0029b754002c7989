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
  constructor(axis, x0, x1, width, live) {
    this.width = width;
    this.at = new Int32Array(width);
    let next = axis.from(x0);
    for (let c = 0; c < width; c += 1) {
      const until = axis.from(x0 + ((c + 1) * (x1 - x0)) / width);
      let best = Math.max(Math.min(next, live.length) - 1, 0);
      if (next < until) {
        best = next;
        for (let p = next + 1; p < until && p < live.length; p += 1) {
          if (live[p] > live[best]) best = p;
        }
        best = Math.min(best, live.length - 1);
      }
      this.at[c] = best;
      next = Math.max(until, next);
    }
    this.low = this.at[0];
    this.high = this.at[width - 1];
    this.#fillColumns();
  }

  #fillColumns() {
    this.columns = new Uint16Array(this.high - this.low + 1);
    let p = this.low;
    for (let c = 0; c < this.width; c += 1) {
      for (; p <= this.at[c]; p += 1) this.columns[p - this.low] = c;
    }
  }

  /** The first column that shows a position at or behind this one; `width` if none does. */
  column(position) {
    if (position <= this.low) return 0;
    if (position > this.high) return this.width;
    return this.columns[position - this.low];
  }
}

/** The most of a level within each pixel column, and what it was before the first. */
export function mostPerColumn(axis, x0, x1, width, level) {
  const most = new Float64Array(width);
  let next = axis.from(x0);
  for (let c = 0; c < width; c += 1) {
    const until = Math.min(axis.from(x0 + ((c + 1) * (x1 - x0)) / width), level.length);
    let value = level[Math.max(Math.min(next, level.length) - 1, 0)];
    if (next < until) {
      value = level[next];
      for (let p = next + 1; p < until; p += 1) if (level[p] > value) value = level[p];
    }
    most[c] = value;
    next = Math.max(until, next);
  }
  return most;
}
