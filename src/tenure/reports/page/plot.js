// A chart's frame: two canvases, one painted rarely and one on every move; axes and pointer.
import { Raster } from "./raster.js";
import { make } from "./elements.js";
import { formatCount, plainTicks } from "./units.js";

export const GUTTER = 86; // CSS pixels left of the picture, for the labels of its axis
const RIGHT = 10;
const ABOVE = 22; // for marks
const BELOW = 24; // for the labels of the axis
const SLACK = 4; // pixels that a click may move

/** One chart. `act` holds hover(x, y), leave(), pick(x, y), pan(dx, dy), zoom(...), span(a, b). */
export class Plot {
  constructor(figure, height, act, { axis = true, above = ABOVE } = {}) {
    this.figure = figure;
    this.height = height;
    this.above = above;
    this.below = axis ? BELOW : 4;
    this.act = act;
    this.base = make("canvas", "base", { ariaHidden: "true" });
    this.over = make("canvas", "over", { ariaHidden: "true" });
    this.tip = make("div", "tip", { ariaHidden: "true", hidden: true });
    this.stage = figure.querySelector(".stage");
    this.stage.append(this.base, this.over, this.tip);
    this.raster = new Raster(this.base);
    this.context = this.over.getContext("2d");
    this.#listen();
  }

  /** Takes the width of the page; returns the width of the picture in device pixels. */
  measure(ratio) {
    const width = Math.max(this.stage.clientWidth, GUTTER + RIGHT + 50);
    const full = this.above + this.height + this.below;
    this.width = width - GUTTER - RIGHT;
    this.ratio = ratio;
    this.stage.style.height = `${full}px`;
    this.base.style.left = `${GUTTER}px`;
    this.base.style.top = `${this.above}px`;
    this.raster.resize(this.width, this.height, ratio);
    this.base.style.width = `${this.raster.width / ratio}px`;
    this.base.style.height = `${this.raster.height / ratio}px`;
    const [wide, tall] = [Math.round(width * ratio), Math.round(full * ratio)];
    if (this.over.width !== wide || this.over.height !== tall) {
      this.over.width = wide;
      this.over.height = tall;
      this.over.style.width = `${width}px`;
      this.over.style.height = `${full}px`;
    }
    return this.raster.width;
  }

  /** Whether any of it can be seen: what is out of sight is not painted. */
  inSight() {
    const box = this.stage.getBoundingClientRect();
    return box.bottom > -200 && box.top < innerHeight + 200;
  }

  begin(ink) {
    const { context } = this;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width + GUTTER + RIGHT, this.above + this.height + this.below);
    this.ink = ink;
    this.flags = []; // where labels stand already
  }

  /** Lines and labels for ticks of bytes between 0, at the foot, and `top`. */
  labelLeft(ticks, top) {
    const { context, ink } = this;
    context.font = ink.small;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const { bytes, label } of ticks) {
      const y = this.above + this.height * (1 - bytes / top);
      context.fillStyle = ink.grid;
      context.fillRect(GUTTER, Math.round(y), this.width, 1);
      context.fillStyle = ink.faint;
      context.fillText(label, GUTTER - 8, y);
    }
  }

  labelBelow(x0, x1, axis) {
    const { context, ink } = this;
    const time = axis.kind === "time";
    const shift = time ? 0 : 1; // event 0 is what leads to position 1
    const most = Math.max(this.width / 110, 2);
    const ticks = plainTicks(x0 - shift, x1 - shift, most, time ? 1e-6 : 1);
    context.font = ink.small;
    context.textAlign = "center";
    context.textBaseline = "top";
    const foot = this.above + this.height;
    const digits = ticks.length > 1 ? Math.max(-Math.floor(Math.log10(ticks[1] - ticks[0])), 0) : 3;
    for (const tick of ticks) {
      const x = this.xPixel(tick + shift, x0, x1);
      context.fillStyle = ink.line;
      context.fillRect(Math.round(x), foot, 1, 4);
      context.fillStyle = ink.faint;
      const text = time ? `${tick.toFixed(Math.min(digits, 6))} s` : formatCount(tick);
      const half = context.measureText(text).width / 2;
      context.fillText(
        text,
        Math.min(Math.max(x, half), GUTTER + this.width - half + RIGHT),
        foot + 7,
      );
    }
    context.fillStyle = ink.line;
    context.fillRect(GUTTER, foot, this.width, 1);
  }

  xPixel(x, x0, x1) {
    return GUTTER + ((x - x0) / (x1 - x0)) * this.width;
  }

  /** An upright line, with a label above it if there is one. */
  rule(x, color, { label = "", dashed = false, width = 1 } = {}) {
    const { context } = this;
    if (x < GUTTER - 1 || x > GUTTER + this.width + 1) return;
    context.strokeStyle = color;
    context.lineWidth = width;
    context.setLineDash(dashed ? [3, 3] : []);
    context.beginPath();
    const at = Math.round(x) + (width % 2) / 2;
    context.moveTo(at, label ? this.above - 4 : this.above);
    context.lineTo(at, this.above + this.height);
    context.stroke();
    context.setLineDash([]);
    if (label) this.#flag(x, label, color);
  }

  /** A label beside a dot above the line; one row higher where another label is in the way. */
  #flag(x, label, color) {
    const { context, ink } = this;
    context.font = ink.strong;
    context.textBaseline = "middle";
    const wide = context.measureText(label).width + 12;
    const right = x + wide > GUTTER + this.width + RIGHT;
    const [from, to] = right ? [x - wide, x + 5] : [x - 5, x + wide];
    const row = this.flags.some((flag) => flag.from < to && from < flag.to) ? 1 : 0;
    this.flags.push({ from, to });
    const y = this.above - 10 - row * 14;
    context.textAlign = right ? "right" : "left";
    context.fillStyle = color;
    context.fillText(label, right ? x - 7 : x + 7, y);
    context.beginPath();
    context.arc(Math.round(x) + 0.5, y, 3.5, 0, 2 * Math.PI);
    context.fill();
  }

  showTip(x, y, lines) {
    this.tip.hidden = !lines.length;
    if (!lines.length) return;
    this.tip.replaceChildren(...lines.map((line, i) => make("div", i ? "" : "first", {}, line)));
    const left = x + GUTTER + 14;
    const flip = left + this.tip.offsetWidth > this.stage.clientWidth;
    this.tip.style.left = `${flip ? x + GUTTER - 14 - this.tip.offsetWidth : left}px`;
    this.tip.style.top = `${Math.max(y + this.above - this.tip.offsetHeight - 8, 0)}px`;
  }

  #listen() {
    const at = (event) => {
      const box = this.stage.getBoundingClientRect();
      return [event.clientX - box.left - GUTTER, event.clientY - box.top - this.above];
    };
    let from = null;
    let moved = false;
    this.stage.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      from = { at: at(event), last: at(event), span: event.shiftKey };
      moved = false;
      this.stage.setPointerCapture(event.pointerId);
    });
    this.stage.addEventListener("pointermove", (event) => {
      const [x, y] = at(event);
      if (!from) {
        this.act.hover(x, y);
        return;
      }
      moved ||= Math.hypot(x - from.at[0], y - from.at[1]) > SLACK;
      if (!moved) return;
      this.stage.classList.add("dragging");
      if (from.span) this.act.spanning(from.at[0], x);
      else this.act.pan(x - from.last[0], y - from.last[1], event.altKey);
      from.last = [x, y];
    });
    const end = (event) => {
      if (!from) return;
      const [x, y] = at(event);
      const { span, at: begin } = from;
      from = null;
      this.stage.classList.remove("dragging");
      if (!moved && event.type === "pointerup") this.act.pick(x, y);
      else if (span) this.act.span(begin[0], x);
    };
    this.stage.addEventListener("pointerup", end);
    this.stage.addEventListener("pointercancel", end);
    this.stage.addEventListener("pointerleave", () => this.act.leave());
    this.stage.addEventListener("dblclick", (event) => this.act.zoom(0.25, ...at(event), false));
    this.stage.addEventListener("wheel", (event) => this.#wheel(event, at(event)), {
      passive: false,
    });
  }

  /** Ctrl and wheel, or a pinch, zooms; so does the wheel alone once the chart has the focus. */
  #wheel(event, [x, y]) {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (sideways) {
      event.preventDefault();
      this.act.pan(-event.deltaX, 0, false);
      return;
    }
    const focused = this.stage.contains(document.activeElement);
    if (!event.ctrlKey && !event.metaKey && !event.altKey && !focused) return;
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    const factor = Math.exp(Math.max(-120, Math.min(event.deltaY * lines, 120)) * 0.0035);
    this.act.zoom(factor, x, y, event.altKey);
  }
}
