// Addresses over time: segments without the gaps between them, and the blocks inside.

/** Paints segments and blocks between two places, `look.low` at the foot of the chart. */
export function paintAddresses(raster, record, scene, grouping, look, palette) {
  raster.clear(palette.ground);
  const scale = raster.height / (look.high - look.low); // pixels per byte
  const row = (place) => Math.round(raster.height - (place - look.low) * scale);
  for (const visible of visibleSpans(record, scene.sampling, look)) {
    paintSpan(raster, record, scene.sampling, visible, row, palette);
  }
  paintBlocks(raster, record, scene, grouping, look, palette, row);
  raster.show();
}

/** The spans in view, with the columns they cover. */
function visibleSpans(record, sampling, look) {
  const spans = [];
  for (let s = 0; s < record.spans; s += 1) {
    const top = record.spanPlace[s] + record.spanSize[s];
    if (top <= look.low || record.spanPlace[s] >= look.high) continue;
    const first = sampling.column(record.spanBorn[s]);
    const last = sampling.column(record.spanDied[s]);
    if (first < last) spans.push({ span: s, first, last });
  }
  return spans;
}

/**
 * One span: its cached bytes look pinned while it holds any block, since only a whole segment can
 * be returned. Arenas give back single chunks; the recording holds no ranges for them.
 */
function paintSpan(raster, record, sampling, { span, first, last }, row, palette) {
  const top = Math.max(row(record.spanPlace[span] + record.spanSize[span]), 0);
  const bottom = Math.min(row(record.spanPlace[span]), raster.height);
  if (top >= bottom) return;
  const outlined = bottom - top >= 6;
  const paint = (from, to, color, edge) => {
    raster.fill(from, top, to, bottom, color);
    if (outlined) raster.fill(from, top, to, top + 1, edge);
  };
  paint(first, last, palette.whole, palette.wholeEdge);
  const held = record.held[span];
  let from = first;
  let to = first; // columns that hold a block, painted once the next gap is met
  for (let at = record.firstHeld(span, sampling.low); at < held.length; at += 2) {
    if (held[at] > sampling.high) break;
    const begin = Math.max(sampling.column(held[at]), first);
    const end = Math.min(sampling.column(held[at + 1]), last);
    if (begin > to) {
      if (from < to) paint(from, to, palette.pinned, palette.pinnedEdge);
      from = begin;
    }
    to = Math.max(to, end);
  }
  if (from < to) paint(from, to, palette.pinned, palette.pinnedEdge);
  if (outlined && first > 0) raster.fill(first, top, first + 1, bottom, palette.wholeEdge);
}

function paintBlocks(raster, record, scene, grouping, look, palette, row) {
  const { place, size } = record;
  const { low, high, selected, matches } = look;
  const { of } = grouping;
  const colors = grouping.groups.map(({ shown, color }) =>
    shown ? palette.group(color) : palette.muted,
  );
  for (let k = 0; k < scene.length; k += 1) {
    const i = scene.block[k];
    const foot = place[i];
    const head = foot + size[i];
    if (foot >= high || head <= low || foot < 0) continue;
    const group = matches && !matches[i] ? palette.muted : colors[of[i]];
    const top = row(head);
    let bottom = row(foot);
    let color = palette.tone(group, i);
    if (i === selected) {
      color = palette.selected;
      bottom = Math.max(bottom, top + 3 * raster.ratio);
    }
    const first = scene.first[k];
    const last = scene.gone[k];
    const end = scene.freed[k];
    if (bottom - top < 2 && end === last) {
      raster.line(first, last, top, color);
      continue;
    }
    bottom = Math.max(bottom, top + 1);
    raster.fill(first, top, end, bottom, color);
    if (end < last) raster.hatch(end, top, last, bottom, palette.pending, group.tones[0]);
    if (bottom - top >= 5) raster.fill(first, top, last, top + 1, group.edge);
  }
}
