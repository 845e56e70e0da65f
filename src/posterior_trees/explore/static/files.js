// File formats written by hand, so that the page needs no library: TIFF stacks and ZIP archives.

const little = (size, write) => {
  const view = new DataView(new ArrayBuffer(size));
  write(view);
  return new Uint8Array(view.buffer);
};

function concatenate(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) { whole.set(part, at); at += part.length; }
  return whole;
}

// ---- TIFF 6.0, uncompressed, one page per picture -------------------------------------------

const ASCII = 2, SHORT = 3, LONG = 4;

// Pages are { width, height, channels (1 or 3), pixels, description }. A description has more than
// three letters: four bytes or less would have to stand in the directory itself.
export function makeTiff(pages) {
  const parts = [little(8, (view) => {
    view.setUint16(0, 0x4949, true);
    view.setUint16(2, 42, true);
    view.setUint32(4, 8, true);
  })];
  let at = 8;
  pages.forEach((page, i) => {
    const made = makePage(page, at, i === pages.length - 1);
    parts.push(made);
    at += made.length;
  });
  return concatenate(parts);
}

// A directory, then what it points to: description, bits per sample, pixels.
function makePage({ width, height, channels, pixels, description }, at, isLast) {
  const words = new TextEncoder().encode(`${description}\0`);
  const count = 10, directory = 2 + 12 * count + 4;
  const text = concatenate([words, new Uint8Array(words.length % 2)]); // what follows starts even
  const bitsAt = at + directory + text.length, pixelsAt = bitsAt + 2 * channels + (2 * channels) % 4;
  const size = width * height * channels, end = pixelsAt + size + (size % 2);
  const entries = [
    [256, LONG, 1, width], [257, LONG, 1, height],
    [258, SHORT, channels, channels === 1 ? 8 : bitsAt],
    [259, SHORT, 1, 1], [262, SHORT, 1, channels === 1 ? 1 : 2],
    [270, ASCII, words.length, at + directory], [273, LONG, 1, pixelsAt],
    [277, SHORT, 1, channels], [278, LONG, 1, height], [279, LONG, 1, size],
  ];
  const head = little(directory, (view) => {
    view.setUint16(0, count, true);
    entries.forEach(([tag, type, n, value], i) => {
      view.setUint16(2 + 12 * i, tag, true);
      view.setUint16(4 + 12 * i, type, true);
      view.setUint32(6 + 12 * i, n, true);
      view.setUint32(10 + 12 * i, value, true);
    });
    view.setUint32(2 + 12 * count, isLast ? 0 : end, true);
  });
  const bits = little(pixelsAt - bitsAt, (view) => {
    for (let i = 0; i < channels; i++) view.setUint16(2 * i, 8, true);
  });
  return concatenate([head, text, bits, pixels, new Uint8Array(size % 2)]);
}

// Bytes of a node without its opacity: one channel if the picture is grey.
export function plainPixels(rgba, isGrey) {
  const channels = isGrey ? 1 : 3;
  const pixels = new Uint8Array((rgba.length / 4) * channels);
  for (let i = 0; i < pixels.length; i++) {
    pixels[i] = rgba[4 * Math.floor(i / channels) + (i % channels)];
  }
  return pixels;
}

export function isGreyPicture(rgba) {
  for (let i = 0; i < rgba.length; i += 4) {
    if (rgba[i] !== rgba[i + 1] || rgba[i] !== rgba[i + 2]) return false;
  }
  return true;
}

// ---- ZIP, stored -----------------------------------------------------------------------------

const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});
const checksum = (bytes) => {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = CRC[(crc ^ byte) & 0xff] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
};

// Files are [name, bytes]; dates are the format's first day.
export function makeZip(files) {
  const parts = [], index = [];
  let at = 0;
  for (const [title, bytes] of files) {
    const filename = new TextEncoder().encode(title), crc = checksum(bytes);
    const facts = (view, from) => {
      view.setUint16(from, 20, true);
      view.setUint16(from + 2, 0x0800, true); // names are UTF-8
      view.setUint32(from + 6, 0x00210000, true);
      view.setUint32(from + 10, crc, true);
      view.setUint32(from + 14, bytes.length, true);
      view.setUint32(from + 18, bytes.length, true);
      view.setUint16(from + 22, filename.length, true);
    };
    const start = at;
    const head = little(30, (view) => { view.setUint32(0, 0x04034b50, true); facts(view, 4); });
    parts.push(head, filename, bytes);
    at += 30 + filename.length + bytes.length;
    index.push(little(46, (view) => {
      view.setUint32(0, 0x02014b50, true);
      view.setUint16(4, 20, true);
      facts(view, 6);
      view.setUint32(42, start, true);
    }), filename);
  }
  const directory = concatenate(index);
  return concatenate([...parts, directory, little(22, (view) => {
    view.setUint32(0, 0x06054b50, true);
    view.setUint16(8, files.length, true);
    view.setUint16(10, files.length, true);
    view.setUint32(12, directory.length, true);
    view.setUint32(16, at, true);
  })]);
}

export function bytesOfUrl(url) {
  return Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (c) => c.charCodeAt(0));
}
