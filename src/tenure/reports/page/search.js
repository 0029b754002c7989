// Finds allocations by words of their stack, by size, by address and by number.
import { parseBytes } from "./units.js";

/**
 * A query as the conditions that all must hold: `words` in file, function, line, category, stream
 * or pool; sizes as `>64MiB` or `<1MiB`; an address `0x7f…` inside the block; a number `#12`.
 */
export function parseQuery(text) {
  const query = { words: [], least: 0, most: Infinity, address: null, number: null, broken: [] };
  for (const part of text.trim().toLowerCase().split(/\s+/)) {
    if (!part) continue;
    const size = /^([<>])=?(.+)$/.exec(part);
    if (size) {
      const bytes = parseBytes(size[2]);
      if (Number.isNaN(bytes)) query.broken.push(part);
      else if (size[1] === ">") query.least = Math.max(query.least, bytes);
      else query.most = Math.min(query.most, bytes);
    } else if (/^0x[0-9a-f]+$/.test(part)) {
      query.address = BigInt(part);
    } else if (/^#\d+$/.test(part)) {
      query.number = Number(part.slice(1));
    } else {
      query.words.push(part);
    }
  }
  return query;
}

/** For each allocation whether it matches; null where the query asks for nothing. */
export function matchesOf(record, query) {
  const { words, least, most, address, number } = query;
  if (!words.length && !least && most === Infinity && address === null && number === null) {
    return null;
  }
  const tables = words.map((word) => wordTables(record, word));
  const place = address === null ? null : record.placeOf(address);
  const matches = new Uint8Array(record.count);
  for (let i = 0; i < record.count; i += 1) {
    const size = record.size[i];
    if (size < least || size > most || (number !== null && i !== number)) continue;
    if (place !== null && !(record.place[i] <= place && place < record.place[i] + size)) continue;
    if (place === -1) continue;
    matches[i] = tables.every((table) => foundIn(table, record, i)) ? 1 : 0;
  }
  return matches;
}

function foundIn(table, record, i) {
  return (
    table.site[record.site[i]] ||
    table.category[record.category[i]] ||
    table.stream[record.stream[i]] ||
    table.pool[record.pool[i]] ||
    (record.stack[i] >= 0 && table.stack[record.stack[i]])
  );
}

/** Which sites, categories, streams, pools and stacks hold a word. */
function wordTables(record, word) {
  const { head } = record;
  const holds = (text) => text.toLowerCase().includes(word);
  const strings = head.strings.map(holds);
  const frames = Array.from(record.frameLine, (line, frame) => {
    if (strings[record.frameFile[frame]] || strings[record.frameName[frame]]) return true;
    return word.includes(":") && holds(`${head.strings[record.frameFile[frame]]}:${line}`);
  });
  const stack = [];
  for (let s = 0; s + 1 < record.stackOffset.length; s += 1) {
    const mine = record.stackFrame.subarray(record.stackOffset[s], record.stackOffset[s + 1]);
    stack.push(mine.some((frame) => frames[frame]));
  }
  return {
    site: head.sites.map(holds),
    category: head.categories.map(holds),
    stream: head.streams.map((name) => holds(`stream ${name}`)),
    pool: head.pools.map(holds),
    stack,
  };
}

/** How many match, their bytes live at a position, and the largest of them. */
export function summarize(record, matches, position, most) {
  let count = 0;
  const largest = []; // ascending size
  for (let i = 0; i < record.count; i += 1) {
    if (!matches[i]) continue;
    count += 1;
    if (largest.length < most || record.size[i] > record.size[largest[0]]) {
      largest.push(i);
      largest.sort((a, b) => record.size[a] - record.size[b]);
      if (largest.length > most) largest.shift();
    }
  }
  let live = 0;
  for (const i of record.liveAt(position)) if (matches[i]) live += record.size[i];
  return { count, live, largest: largest.reverse() };
}
