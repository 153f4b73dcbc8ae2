// An end that is told to the person in a sentence; `again` is a request that is worth asking again.
export class Told extends Error {
  constructor(message, { again } = {}) {
    super(message);
    this.again = again;
  }

  static of(error) {
    const text = String(error?.message ?? error);
    if (error?.code === 4001 || /reject|declin|denied|cancel/i.test(text)) {
      return new Told("You declined in your wallet. Nothing was charged. Press the button to try again.");
    }
    if (error?.code === -32002) return new Told("Your wallet has a request open. Nothing was charged. Open the wallet and finish it there, then try again.");
    return new Told(`Your wallet says: ${text.slice(0, 200)}. Nothing was charged. Try again, or use another wallet.`);
  }
}

export const sleep = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

// Shows an answer inside the page. What a seller sends is text, a picture, a PDF, a download, or HTML in a frame that
// may run no script and is of no origin: nothing of it can read or change this page.
const make = (tag, properties, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};
const size = (bytes) => `${bytes.toLocaleString("en")} bytes`;

async function sha256(blob) {
  if (!crypto.subtle) return "";
  const digest = await crypto.subtle.digest("SHA-256", await blob.arrayBuffer());
  return [...new Uint8Array(digest)].map((one) => one.toString(16).padStart(2, "0")).join("");
}

const facts = (...pairs) => make("dl", {}, ...pairs.filter(([, value]) => value).flatMap(([name, value]) => [
  make("dt", { textContent: name }), make("dd", { textContent: value })]));

function text(content) {
  const shown = make("pre", { textContent: content, tabIndex: 0 });
  shown.setAttribute("role", "region");
  shown.setAttribute("aria-label", "The result");
  return shown;
}

async function download(blob) {
  // Of no type that a browser would open as a page of this origin.
  const href = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
  const link = make("a", { href, download: location.pathname.split("/").pop(), textContent: "Save" });
  return [make("p", {}, link), facts(["Size", size(blob.size)], ["SHA-256", await sha256(blob)])];
}

async function shown(answer, gate) {
  if (answer.type === "opaqueredirect") return [make("p", { textContent: "The seller's answer leads to another address, which your browser does not show. One credit was used." })];
  const type = (answer.headers.get("content-type") ?? "").split(";")[0].trim().toLowerCase();
  const blob = await answer.blob();
  const isJson = type === "application/json" || type.endsWith("+json");
  if (isJson) {
    const content = await blob.text();
    let body;
    try { body = JSON.parse(content); } catch { return [text(content)]; }
    if (answer.ok && gate.file) {
      const link = make("a", { href: body.downloadUrl, textContent: `Download ${body.fileName}`, className: "button" });
      return [make("p", {}, link), facts(["Size", size(body.size)], ["Type", body.contentType], ["SHA-256", body.sha256], ["The link works until", new Date(body.expiresAt).toLocaleString()])];
    }
    return [text(JSON.stringify(body, null, 2))];
  }
  if (type === "text/html") {
    const frame = make("iframe", { title: "The result", srcdoc: await blob.text() });
    frame.setAttribute("sandbox", "");
    return [frame, ...await download(blob)];
  }
  if (type.startsWith("text/") || type === "application/xml") return [text(await blob.text())];
  if (type.startsWith("image/")) {
    return [make("img", { src: URL.createObjectURL(new Blob([blob], { type })), alt: "The result" }), ...await download(blob)];
  }
  if (type === "application/pdf") {
    return [make("iframe", { title: "The result", src: URL.createObjectURL(new Blob([blob], { type })) }), ...await download(blob)];
  }
  return blob.size ? download(blob) : [make("p", { textContent: "The answer is empty." })];
}

export async function render(place, answer, gate) {
  const status = answer.ok || answer.type === "opaqueredirect" ? [] : [make("p", { className: "status",
    textContent: `The seller's server answered with status ${answer.status}.` })];
  place.replaceChildren(...status, ...await shown(answer, gate));
}
