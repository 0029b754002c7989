// The four charts on one axis: painted at most once a frame, marked and asked about by pointer.
import { Sampling, mostPerColumn } from "./axis.js";
import { Scene } from "./scene.js";
import { Palette } from "./palette.js";
import { Plot, GUTTER } from "./plot.js";
import { paintLive, blockInStack, mostStacked } from "./live_chart.js";
import { paintAddresses } from "./address_chart.js";
import { laneLevels, paintLanes } from "./lanes_chart.js";
import { paintOverview } from "./overview.js";
import { byteTicks, formatBytes, formatSeconds, momentName } from "./units.js";

const LANE = 56; // CSS pixels
const MOST_LANES = 12;
const MARK_NAMES = { peak: "peak live", reserved: "peak reserved", oom: "out of memory" };

/** Draws a view into the figures of the page. */
export class Stage {
  constructor(view, page) {
    this.view = view;
    this.record = view.record;
    this.hover = null; // position under the pointer
    this.spanned = null; // pixels of a range being drawn
    this.pending = null;
    this.lastDraw = 0; // milliseconds
    this.overview = new Plot(page.overview, 40, this.#overviewActs(), { axis: false, above: 4 });
    this.live = new Plot(page.live, 340, this.#acts("live"), { above: 36 });
    this.addresses = new Plot(page.addresses, 360, this.#acts("addresses"));
    this.lanes = new Plot(page.lanes, LANE, this.#acts("lanes"), { above: 4 });
    this.laneNames = page.laneNames;
    this.takeTheme();
  }

  takeTheme() {
    this.palette = new Palette(document.documentElement);
    const { css } = this.palette;
    const family = getComputedStyle(document.body).fontFamily;
    this.ink = {
      small: `11px ${family}`,
      strong: `600 11px ${family}`,
      faint: css("--ink-faint"),
      ink: css("--ink"),
      line: css("--line-strong"),
      grid: css("--grid"),
      accent: css("--accent"),
      alarm: css("--alarm"),
      reserved: css("--reserved"),
      veil: css("--veil"),
    };
    this.request();
  }

  /** Paints everything before the next frame; several requests are one. */
  request() {
    this.dirty = true;
    this.#hideTips();
    this.#schedule();
  }

  /** Draws only what lies over the pictures. */
  requestOver() {
    this.#schedule();
  }

  #schedule() {
    this.pending ??= requestAnimationFrame(() => {
      this.pending = null;
      if (this.dirty) this.draw();
      this.#drawOver();
    });
  }

  /** Paints what is in sight; the rest soon after, when nothing else is asked for. */
  draw(everything = false) {
    const begin = performance.now();
    this.dirty = false;
    clearTimeout(this.rest);
    const { view, record } = this;
    const ratio = Math.min(devicePixelRatio || 1, 2);
    const order = this.#laneOrder();
    this.lanes.height = LANE * Math.max(order.length, 1);
    const width = this.live.measure(ratio);
    for (const plot of [this.overview, this.addresses, this.lanes]) plot.measure(ratio);
    this.sampling = new Sampling(view.axis, view.x0, view.x1, width, record.livePeaks);
    this.reserved = mostPerColumn(view.axis, view.x0, view.x1, width, record.reservedPeaks);
    const scene = new Scene(record, this.sampling);
    const look = view.look();
    const most = mostStacked(record, scene, view.grouping, look, this.reserved);
    this.top = most * 1.04;
    const { palette } = this;
    const high = { ...look, top: this.top };
    paintLive(this.live.raster, record, scene, view.grouping, high, palette);
    const [addresses, lanes] = [this.addresses, this.lanes].map(
      (plot) => everything || plot.inSight(),
    );
    if (addresses) {
      paintAddresses(this.addresses.raster, record, scene, view.grouping, look, palette);
    }
    if (lanes) this.#drawLanes(scene, order);
    this.missed = !addresses || !lanes;
    if (this.missed) this.rest = setTimeout(() => this.draw(true), 200);
    this.#drawOverview(width);
    this.lastDraw = performance.now() - begin;
  }

  /** Paints what came into sight since it was left out. */
  scrolled() {
    if (this.missed) this.request();
  }

  #laneOrder() {
    const { view, record } = this;
    const names = view.lanes === "stream" ? record.head.streams : record.head.pools;
    const owner = view.lanes === "stream" ? record.spanStream : record.spanPool;
    const of = view.lanes === "stream" ? record.stream : record.pool;
    if (this.orderFor !== view.lanes) {
      const weight = new Float64Array(names.length);
      for (let s = 0; s < record.spans; s += 1) weight[owner[s]] += record.spanSize[s];
      const used = new Uint8Array(names.length);
      for (let i = 0; i < record.count; i += 1) used[of[i]] = 1;
      this.order = [...weight.keys()]
        .filter((lane) => used[lane] || weight[lane])
        .sort((a, b) => weight[b] - weight[a])
        .slice(0, MOST_LANES);
      this.orderFor = view.lanes;
    }
    return this.order;
  }

  #drawLanes(scene, order) {
    const { view, record } = this;
    const names = view.lanes === "stream" ? record.head.streams : record.head.pools;
    const levels = laneLevels(record, scene, view.lanes, names.length);
    const colored = view.grouping.kind === view.lanes;
    const color = (lane) => this.palette.group(colored ? lane : 0);
    const { raster } = this.lanes;
    const most = paintLanes(raster, levels, order, LANE, color, this.palette);
    this.laneNames(order, names, most, LANE, this.lanes.above);
  }

  #drawOverview(width) {
    const { view, record } = this;
    const key = `${width} ${view.axis.kind} ${document.documentElement.dataset.theme}`;
    if (this.overviewFor === key) return;
    this.overviewFor = key;
    const live = mostPerColumn(view.axis, 0, view.axis.end, width, record.livePeaks);
    const reserved = mostPerColumn(view.axis, 0, view.axis.end, width, record.reservedPeaks);
    const top = [...live, ...reserved].reduce((a, b) => Math.max(a, b), 1);
    const { palette } = this;
    paintOverview(this.overview.raster, live, reserved, top, palette.reserved, palette);
  }

  #drawOver() {
    const { view, ink, live, addresses, lanes } = this;
    const { x0, x1, axis } = view;
    live.begin(ink);
    live.labelLeft(byteTicks(this.top, 7), this.top);
    if (view.look().showsCache) this.#reservedLine();
    addresses.begin(ink);
    this.#segmentLabels();
    lanes.begin(ink);
    for (const plot of [live, addresses, lanes]) {
      plot.labelBelow(x0, x1, axis);
      this.#steps(plot);
      this.#lifeOfSelected(plot);
      this.#marks(plot);
      if (this.spanned) this.#veil(plot);
    }
    this.#overviewFrame();
  }

  #reservedLine() {
    const { live, ink, reserved } = this;
    const { context } = live;
    context.strokeStyle = ink.reserved;
    context.lineWidth = 1.5;
    context.beginPath();
    const step = live.width / reserved.length;
    for (let c = 0; c < reserved.length; c += 1) {
      const y = live.above + live.height * (1 - reserved[c] / this.top);
      context.lineTo(GUTTER + c * step, y);
      context.lineTo(GUTTER + (c + 1) * step, y);
    }
    context.stroke();
  }

  /** Sizes of the segments at the moment, where there is room for them. */
  #segmentLabels() {
    const { addresses: plot, view, record, ink } = this;
    const scale = plot.height / (view.high - view.low);
    const { context } = plot;
    context.font = ink.small;
    context.textAlign = "right";
    context.textBaseline = "middle";
    let last = Infinity;
    for (const s of record.spansAt(view.moment)) {
      const foot = Math.max(record.spanPlace[s], view.low);
      const top = Math.min(record.spanPlace[s] + record.spanSize[s], view.high);
      const middle = plot.above + plot.height - ((foot + top) / 2 - view.low) * scale;
      if (top <= foot || (top - foot) * scale < 13 || last - middle < 13) continue;
      last = middle;
      context.fillStyle = ink.faint;
      context.fillText(formatBytes(record.spanSize[s]), GUTTER - 8, middle);
    }
  }

  #steps(plot) {
    const { view, record, ink } = this;
    const count = record.steps.length;
    if (!count || (count * (view.x1 - view.x0)) / view.axis.end > plot.width / 6) return;
    plot.context.fillStyle = ink.faint;
    for (const step of record.steps) {
      const x = plot.xPixel(view.axis.x(step), view.x0, view.x1);
      if (x < GUTTER || x > GUTTER + plot.width) continue;
      plot.context.fillRect(Math.round(x), plot.above + plot.height - 5, 1, 5);
    }
  }

  /** A bar on the axis from the birth of the selected block to its free; thin while pending. */
  #lifeOfSelected(plot) {
    const { view, record, ink } = this;
    const block = view.selected;
    if (block < 0) return;
    const inside = (x) => Math.min(Math.max(x, GUTTER), GUTTER + plot.width);
    const x = (position) => inside(plot.xPixel(view.axis.x(position), view.x0, view.x1));
    const foot = plot.above + plot.height;
    const [born, freed, done] = [record.born, record.freed, record.done].map((of) => x(of[block]));
    plot.context.fillStyle = ink.accent;
    if (freed > GUTTER && born < GUTTER + plot.width) {
      plot.context.fillRect(born, foot - 2, Math.max(freed - born, 2), 5);
    }
    plot.context.fillRect(freed, foot, Math.max(done - freed, 0), 2);
  }

  #marks(plot) {
    const { view, record, ink } = this;
    const x = (position) => plot.xPixel(view.axis.x(position), view.x0, view.x1);
    for (const mark of record.head.marks) {
      if (mark.kind !== "peak" && mark.kind !== "oom") continue;
      const color = mark.kind === "oom" ? ink.alarm : ink.ink;
      const named = plot === this.live && (mark.kind === "peak" || mark === this.#firstOom());
      const label = named ? `${MARK_NAMES[mark.kind]} ${formatBytes(mark.bytes)}` : "";
      plot.rule(x(mark.position), color, { label, dashed: mark.kind === "peak" });
    }
    plot.rule(x(view.moment), ink.accent, { width: 2 });
    if (this.hover !== null) plot.rule(x(this.hover), ink.faint);
  }

  #firstOom() {
    this.oom ??= this.record.head.marks.find((mark) => mark.kind === "oom") ?? null;
    return this.oom;
  }

  #veil(plot) {
    const [from, to] = this.spanned;
    plot.context.fillStyle = this.ink.veil;
    plot.context.fillRect(
      GUTTER + Math.min(from, to),
      plot.above,
      Math.abs(to - from),
      plot.height,
    );
  }

  #overviewFrame() {
    const { overview: plot, view, ink } = this;
    plot.begin(ink);
    const { context } = plot;
    const left = plot.xPixel(view.x0, 0, view.axis.end);
    const right = Math.max(plot.xPixel(view.x1, 0, view.axis.end), left + 2);
    context.fillStyle = ink.veil;
    context.fillRect(GUTTER, plot.above, left - GUTTER, plot.height);
    context.fillRect(right, plot.above, GUTTER + plot.width - right, plot.height);
    context.strokeStyle = ink.accent;
    context.lineWidth = 1.5;
    context.strokeRect(left, plot.above, right - left, plot.height);
    plot.rule(plot.xPixel(view.axis.x(view.moment), 0, view.axis.end), ink.accent);
  }

  // --- pointer -----------------------------------------------------------------------------

  #xOf(plot, x) {
    const { view } = this;
    return view.x0 + (x / plot.width) * (view.x1 - view.x0);
  }

  #columnOf(plot, x) {
    if (!this.sampling) return -1;
    const column = Math.floor((x / plot.width) * this.sampling.width);
    return column >= 0 && column < this.sampling.width ? column : -1;
  }

  #acts(name) {
    const { view } = this;
    const plot = () => this[name];
    return {
      hover: (x, y) => this.#hovered(plot(), name, x, y),
      leave: () => this.#left(),
      pick: (x, y) => this.#picked(plot(), name, x, y),
      pan: (dx, dy, alt) => {
        if (name === "addresses" && (alt || view.high - view.low < this.record.height)) {
          view.panPlaces(dy / plot().height);
        }
        view.pan(-dx / plot().width);
      },
      zoom: (factor, x, y, alt) => {
        if (alt && name === "addresses") view.zoomPlaces(factor, this.#placeAt(y));
        else view.zoom(factor, this.#xOf(plot(), x));
      },
      spanning: (from, to) => {
        this.spanned = [from, to];
        this.requestOver();
      },
      span: (from, to) => {
        this.spanned = null;
        const ends = [this.#xOf(plot(), from), this.#xOf(plot(), to)].sort((a, b) => a - b);
        view.show(...ends);
      },
    };
  }

  #overviewActs() {
    const { view } = this;
    const xOf = (x) => (x / this.overview.width) * view.axis.end;
    const centre = (x) => {
      const half = (view.x1 - view.x0) / 2;
      view.show(xOf(x) - half, xOf(x) + half);
    };
    return {
      hover: () => {},
      leave: () => {},
      pick: centre,
      pan: (dx) => {
        const by = xOf(dx);
        view.show(view.x0 + by, view.x1 + by);
      },
      zoom: (factor, x) => view.zoom(factor, Math.min(Math.max(xOf(x), view.x0), view.x1)),
      spanning: () => {},
      span: (from, to) => view.show(...[xOf(from), xOf(to)].sort((a, b) => a - b)),
    };
  }

  #placeAt(y) {
    const { view } = this;
    return view.high - (y / this.addresses.height) * (view.high - view.low);
  }

  /** The allocation under the pointer; -1 where there is none. */
  blockUnder(name, x, y) {
    const column = this.#columnOf(this[name], x);
    if (column < 0 || y < 0 || y > this[name].height) return -1;
    const position = this.sampling.at[column];
    if (name === "addresses") return this.record.blockAt(this.#placeAt(y), position);
    if (name !== "live") return -1;
    const perPixel = this.top / this.live.raster.height;
    const bytes = this.top * (1 - y / this.live.height);
    const look = this.view.look();
    return blockInStack(this.record, position, this.view.grouping, look, perPixel, bytes);
  }

  #hovered(plot, name, x, y) {
    const column = this.#columnOf(plot, x);
    if (column < 0) {
      this.#left();
      return;
    }
    this.hover = this.sampling.at[column];
    const lines = this.#tipLines(name, x, y);
    plot.showTip(x, y, lines);
    this.requestOver();
  }

  #tipLines(name, x, y) {
    const { record, hover } = this;
    const block = this.blockUnder(name, x, y);
    const seconds = record.secondsAt(hover);
    const when = momentName(hover) + (seconds === null ? "" : `, ${formatSeconds(seconds)}`);
    const levels = `live ${formatBytes(record.live[hover])}, reserved ${formatBytes(
      record.reserved[hover],
    )}`;
    if (block < 0) return [levels, when];
    const kind = record.head.categories[record.category[block]];
    const site = record.head.sites[record.site[block]];
    return [`${formatBytes(record.size[block])} ${kind}`, site, levels, when];
  }

  #hideTips() {
    for (const plot of [this.live, this.addresses, this.lanes]) plot.showTip(0, 0, []);
  }

  #left() {
    this.hover = null;
    this.#hideTips();
    this.requestOver();
  }

  #picked(plot, name, x, y) {
    const column = this.#columnOf(plot, x);
    if (column < 0) return;
    this.view.pick(this.sampling.at[column], this.blockUnder(name, x, y));
  }
}
