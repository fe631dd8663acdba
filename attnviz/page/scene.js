/**
 * A picture as a list of what is on it, painted on a canvas or written as SVG: what is saved is what is seen.
 *
 * @typedef {{kind: "image", x: number, y: number, width: number, height: number, pixels: ImageData}} ImageItem
 * @typedef {{kind: "text", x: number, y: number, text: string, size: number, colour: string, align: CanvasTextAlign,
 *   turned?: boolean, bold?: boolean, halo?: string}} TextItem
 * @typedef {{kind: "path", points: number[], colour: string, width: number, opacity?: number, fill?: string,
 *   curve?: boolean, dashed?: boolean}} PathItem
 * @typedef {{width: number, height: number, paper: string, items: (ImageItem|TextItem|PathItem)[]}} Scene
 */

const FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', Arial, sans-serif";
const DASHES = [4, 3];

/** @param {number} x @param {number} y @param {string} said @param {number} size @param {string} colour @param {CanvasTextAlign} align @param {Partial<TextItem>} [more] @returns {TextItem} */
export const textAt = (x, y, said, size, colour, align, more) => ({ kind: "text", x, y, text: said, size, colour, align, ...more });

/** @param {number[]} points @param {string} colour @param {number} width @param {Partial<PathItem>} [more] @returns {PathItem} */
export const pathAlong = (points, colour, width, more) => ({ kind: "path", points, colour, width, ...more });

/** @param {number} x @param {number} y @param {number} width @param {number} height */
export const rectangle = (x, y, width, height) => [x, y, x + width, y, x + width, y + height, x, y + height, x, y];

/** Keeps the order of a label among others, whichever way it runs. @param {string} label */
export function isolated(label) {
  return `\u2068${label}\u2069`;
}

/** Cut in the middle: tokens often begin alike. @param {string} token @param {number} longest */
export function cutToken(token, longest) {
  const [letters, tail] = [[...token], Math.floor((longest - 1) / 2)];
  if (letters.length <= longest) return token;
  return `${letters.slice(0, longest - 1 - tail).join("")}…${letters.slice(letters.length - tail).join("")}`;
}

/** @param {ImageData} pixels @param {HTMLCanvasElement} [canvas] */
export function pixelCanvas(pixels, canvas = document.createElement("canvas")) {
  [canvas.width, canvas.height] = [pixels.width, pixels.height];
  canvas.getContext("2d")?.putImageData(pixels, 0, 0);
  return canvas;
}

/** @param {HTMLCanvasElement} canvas @param {Scene} scene @param {number} density pixels for one of the page @param {number} [larger] pixels of the page for one of the scene */
export function paint(canvas, scene, density, larger = 1) {
  density *= larger;
  canvas.width = Math.max(1, Math.round(scene.width * density));
  canvas.height = Math.max(1, Math.round(scene.height * density));
  canvas.style.width = `${scene.width * larger}px`;
  canvas.style.height = `${scene.height * larger}px`;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(density, density);
  context.fillStyle = scene.paper;
  context.fillRect(0, 0, scene.width, scene.height);
  context.imageSmoothingEnabled = false;
  for (const item of scene.items) {
    context.globalAlpha = 1;
    if (item.kind === "image") {
      context.drawImage(pixelCanvas(item.pixels), item.x, item.y, item.width, item.height);
    } else if (item.kind === "text") {
      context.save();
      context.font = `${item.bold ? "bold " : ""}${item.size}px ${FONT}`;
      context.fillStyle = item.colour;
      context.textAlign = item.align;
      context.textBaseline = "middle";
      context.direction = "ltr";
      context.translate(item.x, item.y);
      if (item.turned) context.rotate(-Math.PI / 2);
      if (item.halo) {
        context.strokeStyle = item.halo;
        context.lineWidth = 3;
        context.strokeText(item.text, 0, 0);
      }
      context.fillText(item.text, 0, 0);
      context.restore();
    } else {
      const outline = new Path2D(pathOf(item));
      context.globalAlpha = item.opacity ?? 1;
      if (item.fill) {
        context.fillStyle = item.fill;
        context.fill(outline);
      }
      context.strokeStyle = item.colour;
      context.lineWidth = item.width;
      context.setLineDash(item.dashed ? DASHES : []);
      if (item.width) context.stroke(outline);
    }
  }
}

/** @param {number} value */
const short = (value) => String(Math.round(value * 100) / 100);

/** As SVG writes it, and a canvas reads it. @param {PathItem} item */
export function pathOf({ points, curve, fill }) {
  const [x, y, toX, toY] = points.map(short);
  const middle = short((points[0] + points[2]) / 2);
  return curve ? `M${x} ${y}C${middle} ${y} ${middle} ${toY} ${toX} ${toY}` : `M${points.map(short).join(" ")}${fill ? "Z" : ""}`;
}

/** @param {string} text */
function escaped(text) {
  return text.replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "");
}

/** @param {Scene} scene */
function svg(scene) {
  const items = scene.items.map((item) => {
    if (item.kind === "image") {
      return `<image x="${short(item.x)}" y="${short(item.y)}" width="${short(item.width)}" height="${short(item.height)}" `
        + `preserveAspectRatio="none" style="image-rendering:pixelated" href="${pixelCanvas(item.pixels).toDataURL()}"/>`;
    }
    if (item.kind === "text") {
      const anchor = { left: "start", start: "start", center: "middle", right: "end", end: "end" }[item.align];
      const turned = item.turned ? ` transform="rotate(-90 ${short(item.x)} ${short(item.y)})"` : "";
      return `<text x="${short(item.x)}" y="${short(item.y)}" font-size="${item.size}" fill="${item.colour}" dy="0.35em" `
        + `text-anchor="${anchor}"${item.halo ? ` stroke="${item.halo}" stroke-width="3" paint-order="stroke"` : ""}${item.bold ? ' font-weight="bold"' : ""}${turned}>${escaped(item.text)}</text>`;
    }
    return `<path d="${pathOf(item)}" fill="${item.fill ?? "none"}" stroke="${item.width ? item.colour : "none"}" `
      + `stroke-width="${short(item.width)}"${item.dashed ? ` stroke-dasharray="${DASHES}"` : ""} opacity="${short(item.opacity ?? 1)}"/>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${short(scene.width)}" height="${short(scene.height)}" `
    + `viewBox="0 0 ${short(scene.width)} ${short(scene.height)}" font-family="${FONT.replaceAll('"', "")}">`
    + `<rect width="100%" height="100%" fill="${scene.paper}"/>${items.join("")}</svg>\n`;
}

/** @param {Scene} scene @param {"svg"|"png"} format @returns {Promise<Blob>} */
export async function fileOf(scene, format) {
  if (format === "svg") return new Blob([svg(scene)], { type: "image/svg+xml" });
  const canvas = document.createElement("canvas");
  paint(canvas, scene, Math.max(1, Math.min(2, 8000 / Math.max(scene.width, scene.height))));
  return new Promise((done, failed) => canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("too large"))), "image/png"));
}

/** Outlines of the marks of families, by the names that matplotlib gives them. */
const SHAPES = /** @type {Record<string, number[]>} */ ({
  o: ring(16), h: ring(6), "^": [0, -1.1, 1, 0.8, -1, 0.8], ">": [1.1, 0, -0.8, 1, -0.8, -1], v: [0, 1.1, 1, -0.8, -1, -0.8], s: [-0.8, -0.8, 0.8, -0.8, 0.8, 0.8, -0.8, 0.8],
  D: [0, -1.1, 1.1, 0, 0, 1.1, -1.1, 0], d: [0, -1.1, 0.7, 0, 0, 1.1, -0.7, 0], p: ring(5),
  P: [-0.35, -1, 0.35, -1, 0.35, -0.35, 1, -0.35, 1, 0.35, 0.35, 0.35, 0.35, 1, -0.35, 1, -0.35, 0.35, -1, 0.35, -1, -0.35, -0.35, -0.35],
  X: [-1, -0.5, -0.5, -1, 0, -0.5, 0.5, -1, 1, -0.5, 0.5, 0, 1, 0.5, 0.5, 1, 0, 0.5, -0.5, 1, -1, 0.5, -0.5, 0],
  ".": ring(10).map((value) => value / 2),
});

/** @param {number} corners */
function ring(corners) {
  return Array.from({ length: 2 * corners }, (_, at) => {
    const angle = (2 * Math.PI * (at >> 1)) / corners - Math.PI / 2;
    return at % 2 ? Math.sin(angle) : Math.cos(angle);
  });
}

/**
 * The mark of a family: filled, or where it is not seen hollow, or half where that is not known.
 * @param {import("./patterns.js").Family} family @param {number} x @param {number} y @param {number} radius
 * @param {string} ink @param {string} paper @param {boolean|null} seen @returns {PathItem[]}
 */
export function mark(family, x, y, radius, ink, paper, seen = true) {
  const shape = SHAPES[family.marker] ?? SHAPES.o;
  const points = shape.map((value, at) => (at % 2 ? y : x) + radius * value);
  const outline = pathAlong(points, ink, 1, { fill: seen ? family.colour : paper });
  if (seen !== null) return [outline];
  const half = points.map((value, at) => (at % 2 ? value : Math.min(value, x)));
  return [outline, { ...outline, points: half, width: 0, fill: family.colour }];
}
