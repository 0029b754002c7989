// Live bytes over time, stacked. Blocks at least one pixel tall are drawn one by one; the smaller
// ones of a group are added up, so the work is bounded by the pixels and not by the events.

/**
 * What is stacked, by pixel column.
 *
 * Returns tall blocks by ascending first column, and for each group and column the bytes of all
 * smaller blocks. `look.matches` puts what does not match into one more group, the last.
 */
export function gather(record, scene, grouping, look, bytesPerPixel) {
  const { width } = scene.sampling;
  const groups = grouping.groups.length + 1;
  const row = width + 1;
  const lumps = new Float64Array(groups * row);
  const tall = { block: [], group: [], first: [], last: [] };
  const shown = grouping.groups.map((group) => group.shown);
  for (let k = 0; k < scene.length; k += 1) {
    const i = scene.block[k];
    const first = scene.first[k];
    const last = scene.freed[k];
    if (first >= last) continue; // only pending at any sample
    let group = grouping.of[i];
    if (!shown[group]) continue;
    if (look.matches && !look.matches[i]) group = groups - 1;
    const size = record.size[i];
    if (size >= bytesPerPixel) {
      tall.block.push(i);
      tall.group.push(group);
      tall.first.push(first);
      tall.last.push(last);
    } else {
      lumps[group * row + first] += size;
      lumps[group * row + last] -= size;
    }
  }
  for (let g = 0; g < groups; g += 1) {
    for (let c = g * row + 1; c < (g + 1) * row; c += 1) lumps[c] += lumps[c - 1];
  }
  return { tall, lumps, groups, row };
}

/** Paints the stack; returns the bytes on top of it in each column. */
export function paintLive(raster, record, scene, grouping, look, palette) {
  const scale = raster.height / look.top; // pixels per byte
  const gathered = gather(record, scene, grouping, look, 1 / scale);
  raster.clear(palette.ground);
  const colors = [...grouping.groups.map((group) => palette.group(group.color)), palette.muted];
  const stack = paintStack(raster, record.size, gathered, look, palette, colors, scale);
  if (look.showsCache) paintCache(raster, record, scene.sampling, palette, scale);
  raster.show();
  return stack;
}

function paintStack(raster, size, gathered, look, palette, colors, scale) {
  const { tall, lumps, groups, row } = gathered;
  const { width, height, pixels } = raster;
  const active = Array.from({ length: groups }, () => []);
  const stack = new Float64Array(width);
  let next = 0;
  for (let c = 0; c < width; c += 1) {
    for (; next < tall.first.length && tall.first[next] === c; next += 1) {
      active[tall.group[next]].push(next);
    }
    let bytes = 0;
    let y = height; // the row below what was painted last
    for (let g = 0; g < groups; g += 1) {
      const list = active[g];
      let kept = 0;
      for (let j = 0; j < list.length; j += 1) {
        const k = list[j];
        if (tall.last[k] <= c) continue;
        list[kept++] = k;
        const block = tall.block[k];
        bytes += size[block];
        const up = Math.max(height - Math.round(bytes * scale), 0);
        let color = palette.tone(colors[g], block);
        if (block === look.selected) color = palette.selected;
        const edge = y - up >= 5 ? up + 1 : up;
        for (let at = up * width + c, r = up; r < y; r += 1, at += width) {
          pixels[at] = r < edge ? colors[g].edge : color;
        }
        y = Math.min(y, up);
      }
      list.length = kept;
      const lump = lumps[g * row + c];
      if (lump < 1) continue; // rests of sums that should be zero
      bytes += lump;
      const up = Math.max(height - Math.round(bytes * scale), 0);
      const color = colors[g].tones[0];
      for (let at = up * width + c, r = up; r < y; r += 1, at += width) pixels[at] = color;
      y = Math.min(y, up);
    }
    stack[c] = bytes;
  }
  return stack;
}

/** Pending bytes hatched above the live ones, and the cache above them. */
function paintCache(raster, record, sampling, palette, scale) {
  const { width, height } = raster;
  const row = (bytes) => Math.max(height - Math.round(bytes * scale), 0);
  for (let c = 0; c < width; c += 1) {
    const p = sampling.at[c];
    const pending = row(record.live[p] + record.pending[p]);
    raster.column(c, row(record.reserved[p]), pending, palette.whole);
    if (record.pending[p]) {
      raster.hatch(c, pending, c + 1, row(record.live[p]), palette.pending, palette.pendingGround);
    }
  }
}

/**
 * The allocation drawn at so many bytes above the axis in a column; -1 above the stack.
 * Blocks smaller than a pixel are found too: they lie above the tall ones of their group.
 */
export function blockInStack(record, position, grouping, look, bytesPerPixel, bytes) {
  const groups = grouping.groups.length + 1;
  const tall = Array.from({ length: groups }, () => []);
  const small = Array.from({ length: groups }, () => []);
  for (const i of record.liveAt(position)) {
    let group = grouping.of[i];
    if (!grouping.groups[group].shown) continue;
    if (look.matches && !look.matches[i]) group = groups - 1;
    (record.size[i] >= bytesPerPixel ? tall : small)[group].push(i);
  }
  let at = 0;
  for (let g = 0; g < groups; g += 1) {
    for (const i of [...tall[g], ...small[g]]) {
      at += record.size[i];
      if (bytes < at) return i;
    }
  }
  return -1;
}

/** The most bytes that any column stacks: what the chart must have room for. */
export function mostStacked(record, scene, grouping, look, reserved) {
  const { sampling } = scene;
  if (look.showsCache) {
    let most = 1;
    for (let c = 0; c < sampling.width; c += 1) {
      const p = sampling.at[c];
      most = Math.max(most, record.live[p] + record.pending[p], reserved[c]);
    }
    return most;
  }
  if (grouping.groups.every((group) => group.shown)) {
    return sampling.at.reduce((most, p) => Math.max(most, record.live[p]), 1);
  }
  const { lumps, groups, row } = gather(record, scene, grouping, look, Infinity);
  let most = 1;
  for (let c = 0; c < sampling.width; c += 1) {
    let bytes = 0;
    for (let g = 0; g < groups; g += 1) bytes += lumps[g * row + c];
    most = Math.max(most, bytes);
  }
  return most;
}
