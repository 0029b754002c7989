// Bytes, counts and durations as people read them, and text from strangers made visible.

const UNITS = [
  ["TiB", 2 ** 40],
  ["GiB", 2 ** 30],
  ["MiB", 2 ** 20],
  ["KiB", 2 ** 10],
];

/** A size in the largest binary unit that leaves at least one whole: `20.54 GiB`, `512 B`. */
export function formatBytes(bytes) {
  const magnitude = Math.abs(bytes);
  for (const [unit, factor] of UNITS) {
    // Rounded first, so that 1023.999 MiB reads 1.00 GiB and not 1024.00 MiB.
    if (Math.round((magnitude * 102400) / factor) >= 102400) {
      return `${(bytes / factor).toFixed(2)} ${unit}`;
    }
  }
  return `${Math.round(bytes)} B`;
}

/** A count with a comma between thousands. */
export function formatCount(count) {
  return String(Math.round(count)).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** A duration in seconds, with three digits that matter: `1.24 s`, `310 ms`, `2 min 5 s`. */
export function formatSeconds(seconds) {
  const magnitude = Math.abs(seconds);
  if (magnitude >= 60) {
    const minutes = Math.floor(magnitude / 60);
    return `${seconds < 0 ? "-" : ""}${minutes} min ${Math.round(magnitude - minutes * 60)} s`;
  }
  if (magnitude >= 1) return `${seconds.toPrecision(3)} s`;
  if (magnitude >= 1e-3) return `${(seconds * 1e3).toPrecision(3)} ms`;
  return `${Math.round(seconds * 1e6)} µs`;
}

/** A position in words: the state after its last event, counted from 0 as everywhere in tenure. */
export function momentName(position) {
  return position > 0 ? `after event ${formatCount(position - 1)}` : "before the first event";
}

/** Bytes meant by `64MiB`, `1.5 GiB` or `512`; NaN for anything else. */
export function parseBytes(text) {
  const match = /^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*$/i.exec(text);
  if (!match) return NaN;
  const power = " kmgt".indexOf(match[2].toLowerCase() || " ");
  return Number(match[1]) * 1024 ** power;
}

/** An axis of bytes: at most about `most` ticks in [0, top], all written in one unit. */
export function byteTicks(top, most) {
  const [unit, factor] = UNITS.find(([, size]) => top >= size) ?? ["B", 1];
  const ticks = plainTicks(0, top / factor, most, factor === 1 ? 1 : 1e-3);
  return ticks.map((value) => ({
    bytes: value * factor,
    label: `${Number(value.toFixed(3))} ${unit}`,
  }));
}

/** Round steps (1, 2 or 5 times a power of ten) between two numbers. */
export function plainTicks(low, high, most, least) {
  const rough = Math.max((high - low) / most, least);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((times) => power * times >= rough * 0.999999);
  const ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high; k += 1) ticks.push(k * step);
  return ticks;
}

/** The text with control and direction characters spelled out: names come from strangers. */
export function visible(text) {
  return String(text).replace(
    // eslint-disable-next-line no-control-regex
    /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]/gu,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** The last part of a path. */
export function baseName(path) {
  return path.slice(Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1);
}
