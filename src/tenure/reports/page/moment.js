// One moment taken apart: what is live, by whom; what is cached, and which blocks pin it.

/** The reserved bytes of a position by what they are; the parts add up to reserved. */
export function splitAt(record, position) {
  const spans = segmentsAt(record, position);
  const split = {
    live: record.live[position],
    pending: record.pending[position],
    whole: 0, // in segments without any block: can be returned
    pinned: 0, // beside blocks of the same segment
    arena: 0, // in expandable segments, which give back single chunks
    reserved: record.reserved[position],
  };
  for (const segment of spans) {
    if (segment.arena) split.arena += segment.cached;
    else if (segment.blocks.length) split.pinned += segment.cached;
    else split.whole += segment.cached;
  }
  return split;
}

/** The spans of a position, each with its blocks and the bytes between them. */
export function segmentsAt(record, position) {
  const blocks = record.blocksAt(position);
  const spans = record.spansAt(position);
  let next = 0;
  return spans.map((span) => {
    const foot = record.spanPlace[span];
    const top = foot + record.spanSize[span];
    const mine = [];
    let used = 0;
    while (next < blocks.length && record.place[blocks[next]] < foot) next += 1;
    for (let at = next; at < blocks.length && record.place[blocks[at]] < top; at += 1) {
      mine.push(blocks[at]);
    }
    // A block of an arena may reach into the next spans, or come from the ones before.
    for (let at = Math.max(next - 1, 0); at < blocks.length; at += 1) {
      const begin = record.place[blocks[at]];
      if (begin >= top) break;
      const end = begin + record.size[blocks[at]];
      used += Math.max(Math.min(end, top) - Math.max(begin, foot), 0);
    }
    const arena = record.spanArena[span] === 1;
    return { span, arena, blocks: mine, cached: Math.max(record.spanSize[span] - used, 0) };
  });
}

/** Segments that cannot be returned though much of them is cached, most cached bytes first. */
export function pinnedAt(record, position, most) {
  return segmentsAt(record, position)
    .filter((segment) => !segment.arena && segment.blocks.length && segment.cached > 0)
    .sort((a, b) => b.cached - a.cached)
    .slice(0, most);
}

/** Live bytes of a position by site, most first. */
export function linesAt(record, position, matches) {
  const bytes = new Map();
  for (const i of record.liveAt(position)) {
    if (matches && !matches[i]) continue;
    const known = bytes.get(record.site[i]) ?? { site: record.site[i], bytes: 0, blocks: 0 };
    known.bytes += record.size[i];
    known.blocks += 1;
    bytes.set(record.site[i], known);
  }
  return [...bytes.values()].sort((a, b) => b.bytes - a.bytes);
}

/** The largest live blocks of a position. */
export function largestAt(record, position, most, matches) {
  return record
    .liveAt(position)
    .filter((i) => !matches || matches[i])
    .sort((a, b) => record.size[b] - record.size[a])
    .slice(0, most);
}

/**
 * What lies directly below and above a block at a position: a block, cached bytes, or the edge
 * of its segment. `allocation` is -1 for what is no block.
 */
export function neighboursOf(record, allocation, position) {
  const foot = record.place[allocation];
  if (foot < 0) return { below: null, above: null };
  const top = foot + record.size[allocation];
  const span = record.spanAt(foot, position);
  const floor = span < 0 ? foot : arenaEdge(record, span, position, -1);
  const roof = span < 0 ? top : arenaEdge(record, span, position, +1);
  let below = -1;
  let above = -1;
  for (const i of record.blocksAt(position)) {
    const at = record.place[i];
    if (at >= floor && at < foot) below = i; // ascending: the last one stays
    if (at >= top && at < roof && above < 0) above = i;
  }
  const end = below < 0 ? floor : record.place[below] + record.size[below];
  const begin = above < 0 ? roof : record.place[above];
  return {
    below: neighbour(below, foot - end, below < 0 && foot <= floor),
    above: neighbour(above, begin - top, above < 0 && begin <= top),
  };
}

function neighbour(allocation, cached, edge) {
  if (edge) return { kind: "edge", allocation: -1, cached: 0 };
  if (cached > 0) return { kind: "cached", allocation, cached };
  return { kind: "block", allocation, cached: 0 };
}

/** Where the run of touching spans of one arena ends; of another segment its own edge. */
function arenaEdge(record, span, position, direction) {
  let low = record.spanPlace[span];
  let high = low + record.spanSize[span];
  if (!record.spanArena[span]) return direction < 0 ? low : high;
  const spans = record.spansAt(position);
  let at = spans.indexOf(span) + direction;
  for (; at >= 0 && at < spans.length && record.spanArena[spans[at]]; at += direction) {
    const other = spans[at];
    if (direction < 0 && record.spanPlace[other] + record.spanSize[other] === low) {
      low = record.spanPlace[other];
    } else if (direction > 0 && record.spanPlace[other] === high) {
      high += record.spanSize[other];
    } else break;
  }
  return direction < 0 ? low : high;
}
