// The blocks that any pixel column shows, found once a frame for all charts.

/**
 * Blocks that are live or pending at the sampled position of at least one column, oldest first:
 * `block`, and the columns at which it comes, is freed, and is gone. Whatever lives and dies
 * between two samples is left out, so the list is about as long as the screen is wide.
 */
export class Scene {
  constructor(record, sampling) {
    this.sampling = sampling;
    this.block = [];
    this.first = [];
    this.freed = [];
    this.gone = [];
    const { low, high, columns, width } = sampling;
    const { born, freed, done } = record;
    for (const [from, to] of record.stretchesBetween(low, high)) {
      for (let i = from; i < to; i += 1) {
        const begin = born[i];
        const end = done[i];
        if (begin > high || end <= low) continue;
        const first = begin <= low ? 0 : columns[begin - low];
        const gone = end > high ? width : columns[end - low];
        if (first >= gone) continue;
        this.block.push(i);
        this.first.push(first);
        this.freed.push(sampling.column(freed[i]));
        this.gone.push(gone);
      }
    }
  }

  get length() {
    return this.block.length;
  }
}
