// The whole recording in one strip: live bytes below the line of reserved ones.

/** Paints the strip. */
export function paintOverview(raster, live, reserved, top, color, palette) {
  raster.clear(palette.ground);
  const scale = (raster.height - 2) / top;
  for (let c = 0; c < raster.width; c += 1) {
    const row = (bytes) => raster.height - Math.round(bytes * scale);
    raster.column(c, row(reserved[c]), row(live[c]), palette.whole);
    raster.column(c, row(live[c]), raster.height, color);
  }
  raster.show();
}
