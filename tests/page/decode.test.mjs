import assert from "node:assert/strict";
import { gzipSync } from "node:zlib";
import { test } from "node:test";
import { decode, unpackColumns } from "../../src/tenure/reports/page/decode.js";

function packed(head, planes) {
  const text = new TextEncoder().encode(JSON.stringify(head));
  const bytes = new Uint8Array(4 + text.length + planes.length);
  new DataView(bytes.buffer).setUint32(0, text.length, true);
  bytes.set(text, 4);
  bytes.set(planes, 4 + text.length);
  return bytes;
}

const COLUMNS = [
  { name: "plain", count: 3, width: 2, base: 0, delta: false, least: 0, most: 772 },
  { name: "signed", count: 2, width: 1, base: -1, delta: false, least: -1, most: 4 },
  { name: "wide", count: 1, width: 6, base: 0, delta: false, least: 0, most: 2 ** 40 + 5 },
  { name: "rising", count: 4, width: 1, base: 0, delta: true, least: 0, most: 7 },
  { name: "none", count: 0, width: 1, base: 0, delta: false, least: 0, most: 0 },
];
const PLANES = Uint8Array.of(1, 2, 4, 0, 1, 3, 0, 5, 5, 0, 0, 0, 0, 1, 4, 0, 10, 3);
const EXPECTED = {
  plain: [1, 258, 772],
  signed: [-1, 4],
  wide: [2 ** 40 + 5],
  rising: [2, 2, 7, 5],
  none: [],
};

test("planes become numbers of the smallest kind that holds them", () => {
  const { columns } = unpackColumns(packed({ columns: COLUMNS }, PLANES).buffer);
  for (const [name, values] of Object.entries(EXPECTED)) {
    assert.deepEqual([...columns[name]], values, name);
  }
  assert.ok(columns.plain instanceof Uint16Array);
  assert.ok(columns.signed instanceof Int32Array);
  assert.ok(columns.wide instanceof Float64Array);
});

test("text is base64 of gzip", async () => {
  const bytes = gzipSync(packed({ columns: COLUMNS, file: "</script>" }, PLANES));
  const { head, columns } = await decode(`\n${Buffer.from(bytes).toString("base64")}\n`);
  assert.equal(head.file, "</script>");
  assert.deepEqual([...columns.rising], EXPECTED.rising);
});
