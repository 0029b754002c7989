// A canvas that is painted pixel by pixel and shown in one call.

/** The pixels of one canvas; rows from the top, as in ImageData. */
export class Raster {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.resize(1, 1, 1);
  }

  /** Takes a new size in CSS pixels. */
  resize(width, height, ratio) {
    this.ratio = ratio;
    this.width = Math.max(Math.round(width * ratio), 1);
    this.height = Math.max(Math.round(height * ratio), 1);
    if (this.canvas.width !== this.width || this.canvas.height !== this.height || !this.image) {
      this.canvas.width = this.width;
      this.canvas.height = this.height;
      this.image = this.context.createImageData(this.width, this.height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
  }

  clear(color) {
    this.pixels.fill(color);
  }

  /** Fills columns [left, right) of rows [top, bottom), clipped to the canvas. */
  fill(left, top, right, bottom, color) {
    const { width, pixels } = this;
    const from = Math.max(left, 0);
    const to = Math.min(right, width);
    if (from >= to) return;
    const last = Math.min(bottom, this.height);
    for (let row = Math.max(top, 0); row < last; row += 1) {
      const end = row * width + to;
      if (to - from > 16) pixels.fill(color, row * width + from, end);
      else for (let at = row * width + from; at < end; at += 1) pixels[at] = color;
    }
  }

  /** Fills rows [top, bottom) of one column; both must lie on the canvas. */
  column(c, top, bottom, color) {
    const { width, pixels } = this;
    for (let at = top * width + c, end = bottom * width; at < end; at += width) pixels[at] = color;
  }

  /** Fills columns [left, right) of one row; the columns must lie on the canvas. */
  line(left, right, row, color) {
    if (row < 0 || row >= this.height) return;
    const { pixels } = this;
    const end = row * this.width + right;
    for (let at = row * this.width + left; at < end; at += 1) pixels[at] = color;
  }

  /** Fills a slanted pattern of two colours. */
  hatch(left, top, right, bottom, color, ground) {
    const { width, pixels } = this;
    const pitch = Math.round(6 * this.ratio);
    const thick = Math.max(Math.round(1.5 * this.ratio), 1);
    const to = Math.min(right, width);
    const last = Math.min(bottom, this.height);
    for (let row = Math.max(top, 0); row < last; row += 1) {
      for (let c = Math.max(left, 0); c < to; c += 1) {
        pixels[row * width + c] = (c + row) % pitch < thick ? color : ground;
      }
    }
  }

  show() {
    this.context.putImageData(this.image, 0, 0);
  }
}
