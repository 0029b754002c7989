// The blocks that any pixel column shows, found once a frame for all charts.

/**
 * Blocks that are live or pending at the sampled position of at least one column, oldest first:
 * `block`, and the columns at which it comes, is freed, and is gone. Whatever lives and dies
 * between two samples is left out, so the list is about as long as the screen is wide.
 */
export class Scene {
  constructor(record, sampling) {
    this.sampling = sampling;
    this.length = 0;
    // The columns are as long as the recording and used for every frame: the last scene is lost.
    record.scratch ??= Array.from({ length: 4 }, () => new Uint32Array(record.count));
    [this.block, this.first, this.freed, this.gone] = record.scratch;
    for (const [from, to] of record.stretchesBetween(sampling.low, sampling.high)) {
      this.#take(record, from, to);
    }
  }

  #take(record, from, to) {
    const { born, freed, done } = record;
    const { low, high, columns, width } = this.sampling;
    let length = this.length;
    for (let i = from; i < to; i += 1) {
      const begin = born[i];
      const end = done[i];
      if (begin > high || end <= low) continue;
      const first = begin <= low ? 0 : columns[begin - low];
      const gone = end > high ? width : columns[end - low];
      if (first >= gone) continue;
      this.block[length] = i;
      this.first[length] = first;
      this.freed[length] = end === freed[i] ? gone : this.sampling.column(freed[i]);
      this.gone[length] = gone;
      length += 1;
    }
    this.length = length;
  }
}
