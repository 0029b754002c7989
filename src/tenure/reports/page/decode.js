// Packed data back into typed arrays; the counterpart of packing.py.

/** The head and the columns of packed text. */
export async function decode(text) {
  const packed = new Blob([fromBase64(text)]);
  const stream = packed.stream().pipeThrough(new DecompressionStream("gzip"));
  return unpackColumns(await new Response(stream).arrayBuffer());
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text.trim());
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** The head and the columns of unzipped bytes. */
export function unpackColumns(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const columns = {};
  let at = 4 + length;
  for (const column of head.columns) {
    const size = column.count * column.width;
    columns[column.name] = unpackColumn(new Uint8Array(buffer, at, size), column);
    at += size;
  }
  return { head, columns };
}

function arrayFor(column) {
  if (column.least >= 0) {
    if (column.most < 2 ** 8) return new Uint8Array(column.count);
    if (column.most < 2 ** 16) return new Uint16Array(column.count);
    if (column.most < 2 ** 32) return new Uint32Array(column.count);
  } else if (column.most < 2 ** 31 && column.least >= -(2 ** 31)) {
    return new Int32Array(column.count);
  }
  return new Float64Array(column.count);
}

function unpackColumn(planes, column) {
  const { count, base, delta } = column;
  const values = arrayFor(column);
  let last = 0;
  for (let i = 0; i < count; i += 1) {
    let value = planes[i];
    let factor = 256;
    for (let at = count + i; at < planes.length; at += count) {
      value += planes[at] * factor;
      factor *= 256;
    }
    if (delta) {
      // zigzag: even is up, odd is down
      last += value % 2 ? -(value + 1) / 2 : value / 2;
      values[i] = last;
    } else {
      values[i] = value + base;
    }
  }
  return values;
}
