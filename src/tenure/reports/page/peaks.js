// Where a level is highest within any range of positions, without looking at each of them.

const GROUP = 64; // positions that share an entry

/** A level with the position of the most of every group of positions. */
export class Peaks {
  constructor(level) {
    this.level = level;
    this.best = new Uint32Array(Math.ceil(level.length / GROUP));
    for (let g = 0; g < this.best.length; g += 1) {
      this.best[g] = this.#scan(g * GROUP, Math.min((g + 1) * GROUP, level.length));
    }
  }

  #scan(from, to) {
    const { level } = this;
    let best = from;
    for (let p = from + 1; p < to; p += 1) if (level[p] > level[best]) best = p;
    return best;
  }

  /** The first position in [from, to) with most of the level; the range must hold one. */
  highest(from, to) {
    const { level, best } = this;
    const first = Math.ceil(from / GROUP);
    const last = Math.floor(to / GROUP);
    if (first >= last) return this.#scan(from, to);
    let found = from < first * GROUP ? this.#scan(from, first * GROUP) : best[first];
    for (let g = first; g < last; g += 1) if (level[best[g]] > level[found]) found = best[g];
    if (last * GROUP < to) {
      const rest = this.#scan(last * GROUP, to);
      if (level[rest] > level[found]) found = rest;
    }
    return found;
  }
}
