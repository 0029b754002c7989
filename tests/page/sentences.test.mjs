import assert from "node:assert/strict";
import { test } from "node:test";
import { sentence } from "../../src/tenure/reports/page/elements.js";

/** Just enough of a document for text and buttons. */
class Node {
  constructor(tag) {
    this.tag = tag;
    this.children = [];
    this.acts = {};
  }

  append(...children) {
    this.children.push(...children);
  }

  addEventListener(name, act) {
    this.acts[name] = act;
  }

  setAttribute(name, value) {
    this[name] = value;
  }

  get text() {
    return this.children.map((child) => child.text ?? child).join("");
  }
}

test("events in a sentence lead to the moment after them, and the text stays as it was", () => {
  globalThis.Node = Node;
  globalThis.document = { createElement: (tag) => new Node(tag) };
  const text = "failed at event 15,752, at events 9,128, 15,730 and 7 (event 3) of 12 events";
  const gone = [];
  const element = sentence(text, (position) => gone.push(position));
  assert.equal(element.text, text);
  for (const part of element.children) part.acts?.click?.();
  assert.deepEqual(gone, [15753, 9129, 15731, 8, 4]);
});
