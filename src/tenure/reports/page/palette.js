// Colours of the charts, taken from the style sheet so that both themes are defined in one place.

const TONES = 3; // shades of a group, so that neighbouring blocks can be told apart

/** `#rrggbb` as red, green and blue. */
export function parseColor(css) {
  const value = parseInt(css.trim().slice(1), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

/** One pixel of an ImageData on a little-endian machine. */
export function pixelOf([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** A colour between two others. */
export function mixed(from, to, share) {
  return from.map((part, i) => Math.round(part + (to[i] - part) * share));
}

/** The theme's colours as pixels and as text. */
export class Palette {
  constructor(element) {
    const style = getComputedStyle(element);
    const read = (name) => parseColor(style.getPropertyValue(name));
    const ground = read("--plot");
    const edge = read("--block-edge");
    this.css = (name) => style.getPropertyValue(name).trim();
    this.groups = [];
    for (let i = 0; style.getPropertyValue(`--group-${i}`); i += 1) {
      this.groups.push(this.#shades(read(`--group-${i}`), edge));
    }
    this.muted = this.#shades(read("--muted-block"), edge);
    this.ground = pixelOf(ground);
    this.selected = pixelOf(read("--selected"));
    this.whole = pixelOf(read("--whole"));
    this.pinned = pixelOf(read("--pinned"));
    this.wholeEdge = pixelOf(mixed(read("--whole"), edge, 0.14));
    this.pinnedEdge = pixelOf(mixed(read("--pinned"), edge, 0.14));
    this.reserved = pixelOf(read("--reserved"));
    this.pending = pixelOf(read("--pending"));
    this.pendingGround = pixelOf(mixed(ground, read("--pending"), 0.28));
  }

  #shades(color, edge) {
    const tones = [];
    for (let t = 0; t < TONES; t += 1) tones.push(pixelOf(mixed(color, edge, t * 0.075)));
    return { css: `rgb(${color.join(" ")})`, tones, edge: pixelOf(mixed(color, edge, 0.38)) };
  }

  /** The shade in which an allocation of a group is drawn. */
  tone(group, allocation) {
    return group.tones[allocation % TONES];
  }

  /** The colours of a group by its number; the last ones repeat for whatever comes after. */
  group(index) {
    return this.groups[Math.min(index, this.groups.length - 1)];
  }
}
