// What the colours mean: category, line of code, stream or pool.

const LINES = 11; // lines with a colour of their own; all others share one

/** Allocations by what they are for. */
export function byCategory(record) {
  return makeGrouping("category", record.head.categories, record.category, record);
}

/** Allocations by the line that made them: those with most live bytes get their own colour. */
export function byLine(record) {
  const weight = new Float64Array(record.head.sites.length);
  for (let i = 0; i < record.count; i += 1) {
    // bytes times how long they were live: what covers the picture is told apart
    weight[record.site[i]] += record.size[i] * (record.freed[i] - record.born[i]);
  }
  for (const i of record.liveAt(record.peak)) {
    weight[record.site[i]] += record.size[i] * record.positions;
  }
  const order = [...weight.keys()].sort((a, b) => weight[b] - weight[a]);
  const chosen = order.slice(0, LINES);
  const group = new Uint8Array(record.head.sites.length).fill(chosen.length);
  chosen.forEach((site, rank) => (group[site] = rank));
  const names = chosen.map((site) => record.head.sites[site]);
  if (order.length > LINES) names.push(`${order.length - LINES} other lines`);
  const of = Uint8Array.from(record.site, (site) => group[site]);
  return makeGrouping("line", names, of, record);
}

/** Allocations by the stream they were made for. */
export function byStream(record) {
  const names = record.head.streams.map((name) => `stream ${name}`);
  return makeGrouping("stream", names, record.stream, record);
}

/** Allocations by the pool that served them. */
export function byPool(record) {
  return makeGrouping("pool", record.head.pools, record.pool, record);
}

const CLASSES = [
  [2 ** 16, "below 64 KiB", 8],
  [2 ** 20, "64 KiB to 1 MiB", 6],
  [10 * 2 ** 20, "1 to 10 MiB", 0],
  [100 * 2 ** 20, "10 to 100 MiB", 3],
  [2 ** 30, "100 MiB to 1 GiB", 4],
  [Infinity, "1 GiB and more", 1],
];

/** Allocations by the bytes of their block: all that is known of them without stacks. */
export function bySize(record) {
  const names = CLASSES.map(([, name]) => name);
  const classOf = (size) => CLASSES.findIndex(([below]) => size < below);
  const of = Uint8Array.from(record.size, classOf);
  const grouping = makeGrouping("size", names, of, record);
  for (const group of grouping.groups) group.color = CLASSES[group.index][2];
  return grouping;
}

/** Groups that have any allocation, with their colours and their bytes at the peak. */
function makeGrouping(kind, names, of, record) {
  const atPeak = new Float64Array(names.length);
  for (const i of record.liveAt(record.peak)) atPeak[of[i]] += record.size[i];
  const used = new Uint8Array(names.length);
  for (let i = 0; i < record.count; i += 1) used[of[i]] = 1;
  const groups = names.map((name, index) => ({
    name,
    index,
    color: index,
    atPeak: atPeak[index],
    used: used[index] === 1,
    shown: true,
  }));
  return { kind, of, groups };
}

export const GROUPINGS = {
  category: byCategory,
  line: byLine,
  size: bySize,
  stream: byStream,
  pool: byPool,
};

/** What tells most apart: categories, or sizes where nearly all of the peak has none. */
export function bestGrouping(record) {
  const unknown = record.head.categories.indexOf("unknown");
  let bytes = 0;
  for (const i of record.liveAt(record.peak)) {
    if (record.category[i] === unknown) bytes += record.size[i];
  }
  return bytes > 0.8 * record.live[record.peak] && bytes > 0 ? "size" : "category";
}
