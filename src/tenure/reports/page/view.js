// What is shown: the range of the axis, the moment, the selected block, the colours. No drawing.
import { EventAxis, TimeAxis } from "./axis.js";
import { GROUPINGS, bestGrouping } from "./grouping.js";

/** The state of the page; `changed(what)` is called with "range", "look", "moment" or "pick". */
export class View {
  constructor(record, changed) {
    this.record = record;
    this.changed = changed;
    this.axis = new EventAxis(record);
    this.x0 = 0;
    this.x1 = this.axis.end;
    this.low = 0; // places at the foot and the top of the address picture
    this.high = Math.max(record.height, 1);
    this.moment = record.peak;
    this.selected = -1;
    this.matches = null;
    this.showsCache = true;
    this.lanes = "stream";
    this.grouping = null;
    this.groupBy(bestGrouping(record));
  }

  groupBy(kind) {
    this.grouping = GROUPINGS[kind](this.record);
    this.changed("look");
  }

  /** Shows one group alone, or all of them if it was alone already. */
  isolate(index) {
    const { groups } = this.grouping;
    const alone = groups.every((group) => group.shown === (group.index === index));
    for (const group of groups) group.shown = alone || group.index === index;
    this.changed("look");
  }

  /** Moves to the axis of events or of time, keeping what is in view. */
  useAxis(kind) {
    if (kind === this.axis.kind || (kind === "time" && !this.record.time)) return;
    const from = this.axis.from(this.x0);
    const to = this.axis.from(this.x1);
    const whole = this.x0 <= 0 && this.x1 >= this.axis.end;
    this.axis = kind === "time" ? new TimeAxis(this.record) : new EventAxis(this.record);
    if (whole) this.show(0, this.axis.end);
    else this.show(this.axis.x(from), this.axis.x(to));
  }

  /** Shows a range of the axis, moved and widened as far as it must be. */
  show(x0, x1) {
    const { end, least } = this.axis;
    const width = Math.min(Math.max(x1 - x0, least), end);
    const middle = (x0 + x1) / 2;
    this.x0 = Math.min(Math.max(middle - width / 2, 0), end - width);
    this.x1 = this.x0 + width;
    this.changed("range");
  }

  /** Zooms by a factor (below 1: closer), keeping x where it is on the screen. */
  zoom(factor, x = (this.x0 + this.x1) / 2) {
    const { end, least } = this.axis;
    const width = Math.min(Math.max((this.x1 - this.x0) * factor, least), end);
    const share = (x - this.x0) / (this.x1 - this.x0);
    const from = Math.min(Math.max(x - share * width, 0), end - width);
    this.x0 = from;
    this.x1 = from + width;
    this.changed("range");
  }

  /** Moves by a share of what is in view. */
  pan(share) {
    const width = this.x1 - this.x0;
    const from = Math.min(Math.max(this.x0 + share * width, 0), this.axis.end - width);
    this.x0 = from;
    this.x1 = from + width;
    this.changed("range");
  }

  fit() {
    this.low = 0;
    this.high = Math.max(this.record.height, 1);
    this.show(0, this.axis.end);
  }

  /** Zooms in the address picture, keeping a place where it is on the screen. */
  zoomPlaces(factor, place) {
    const most = Math.max(this.record.height, 1);
    const height = Math.min(Math.max((this.high - this.low) * factor, Math.min(4096, most)), most);
    const share = (place - this.low) / (this.high - this.low);
    this.low = Math.min(Math.max(place - share * height, 0), most - height);
    this.high = this.low + height;
    this.changed("range");
  }

  panPlaces(share) {
    const height = this.high - this.low;
    const most = Math.max(this.record.height, 1);
    this.low = Math.min(Math.max(this.low + share * height, 0), most - height);
    this.high = this.low + height;
    this.changed("range");
  }

  /** Shows a stretch of the address picture with some room around it. */
  showPlaces(foot, top) {
    const most = Math.max(this.record.height, 1);
    const room = Math.max((top - foot) * 0.08, 2048);
    this.low = Math.max(foot - room, 0);
    this.high = Math.min(top + room, most);
    this.changed("range");
  }

  /** Chooses a moment; the panel speaks of it. */
  goTo(position, reveal = true) {
    this.moment = Math.min(Math.max(position, 0), this.record.positions - 1);
    if (reveal) this.reveal(this.moment);
    this.changed("moment");
  }

  /** Moves the view, as little as is needed, until a position is in it. */
  reveal(position) {
    const x = this.axis.x(position);
    const width = this.x1 - this.x0;
    if (x < this.x0 || x >= this.x1) this.show(x - width / 2, x + width / 2);
  }

  /** Selects a block, or none with -1. */
  select(allocation) {
    this.selected = allocation;
    if (allocation >= 0) {
      const { born, done } = this.record;
      const held = this.moment >= born[allocation] && this.moment < done[allocation];
      if (!held) this.goTo(born[allocation]);
    }
    this.changed("look");
  }

  /** Chooses a moment and whatever block was pointed at there; -1 for none. */
  pick(position, allocation) {
    this.moment = position;
    this.selected = allocation;
    this.changed("pick");
  }

  /** Shows the whole life of a block, and its segment's addresses. */
  showLife(allocation) {
    const { record, axis } = this;
    const from = axis.x(record.born[allocation]);
    const to = axis.x(Math.min(record.done[allocation], record.positions));
    const room = Math.max((to - from) * 0.25, axis.least / 2);
    this.show(from - room, to + room);
    const span = record.spanAt(record.place[allocation], record.born[allocation]);
    if (span >= 0) {
      const foot = record.spanPlace[span];
      this.showPlaces(foot, foot + record.spanSize[span]);
    }
  }

  find(matches) {
    this.matches = matches;
    this.changed("look");
  }

  /** The block above (+1) or below (-1) the selected one in memory; the largest one without. */
  step(direction) {
    const blocks = this.record.blocksAt(this.moment).filter((i) => this.record.place[i] >= 0);
    if (!blocks.length) return;
    const at = blocks.indexOf(this.selected);
    if (at < 0) {
      const { size } = this.record;
      this.select(blocks.reduce((a, b) => (size[b] > size[a] ? b : a)));
    } else if (blocks[at + direction] !== undefined) {
      this.select(blocks[at + direction]);
    }
  }

  /** What the charts need to know beside the data. */
  look() {
    const { selected, matches, showsCache } = this;
    const alone = this.grouping.groups.some((group) => !group.shown);
    return { selected, matches, showsCache: showsCache && !alone, low: this.low, high: this.high };
  }
}
