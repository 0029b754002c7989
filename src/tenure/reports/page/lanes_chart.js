// One lane for each stream or pool: its live, pending and reserved bytes over time.

/** For each lane and column: live, pending and reserved bytes at the column's moment. */
export function laneLevels(record, scene, kind, lanes) {
  const { sampling } = scene;
  const width = sampling.width + 1;
  const make = () => new Float64Array(lanes * width);
  const levels = { width, live: make(), pending: make(), reserved: make() };
  const of = kind === "stream" ? record.stream : record.pool;
  for (let k = 0; k < scene.length; k += 1) {
    const i = scene.block[k];
    const lane = of[i] * width;
    levels.live[lane + scene.first[k]] += record.size[i];
    levels.live[lane + scene.freed[k]] -= record.size[i];
    levels.pending[lane + scene.freed[k]] += record.size[i];
    levels.pending[lane + scene.gone[k]] -= record.size[i];
  }
  const owner = kind === "stream" ? record.spanStream : record.spanPool;
  for (let s = 0; s < record.spans; s += 1) {
    const lane = owner[s] * width;
    levels.reserved[lane + sampling.column(record.spanBorn[s])] += record.spanSize[s];
    levels.reserved[lane + sampling.column(record.spanDied[s])] -= record.spanSize[s];
  }
  for (const level of [levels.live, levels.pending, levels.reserved]) accumulate(level, width);
  return levels;
}

function accumulate(level, width) {
  for (let at = 1; at < level.length; at += 1) if (at % width) level[at] += level[at - 1];
}

/** Paints the lanes in `order` below one another; each is scaled to its own most bytes. */
export function paintLanes(raster, levels, order, laneHeight, colorOf, palette) {
  raster.clear(palette.ground);
  const tall = Math.round(laneHeight * raster.ratio);
  const gap = Math.round(6 * raster.ratio);
  const most = [];
  order.forEach((lane, at) => {
    const from = lane * levels.width;
    let top = 1;
    for (let c = 0; c < raster.width; c += 1) {
      const active = levels.live[from + c] + levels.pending[from + c];
      top = Math.max(top, levels.reserved[from + c], active);
    }
    most.push(top);
    const foot = (at + 1) * tall - gap;
    const scale = (tall - gap * 2) / top;
    const group = colorOf(lane);
    const row = (bytes) => foot - Math.round(Math.max(bytes, 0) * scale);
    for (let c = 0; c < raster.width; c += 1) {
      const live = row(levels.live[from + c]);
      const active = row(levels.live[from + c] + levels.pending[from + c]);
      raster.column(c, row(levels.reserved[from + c]), active, palette.whole);
      if (active < live) {
        raster.hatch(c, active, c + 1, live, palette.pending, palette.pendingGround);
      }
      raster.column(c, live, foot, group.tones[0]);
    }
    raster.fill(0, foot, raster.width, foot + 1, palette.wholeEdge);
  });
  raster.show();
  return most;
}
