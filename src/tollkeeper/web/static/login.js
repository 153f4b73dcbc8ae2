// Logging in: the wallet signs a message of the gateway; the answer to the signature sets the session's cookie.
import { Told } from "./shared.js";

const $ = (id) => document.getElementById(id);
const given = JSON.parse($("given").textContent);
const told = (text) => new Told(text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : "."));

async function asked(path, options) {
  const answer = await fetch(path, options).catch(() => { throw new Told("The gateway cannot be reached. Try again."); });
  const text = await answer.text();
  if (answer.ok) return JSON.parse(text);
  const page = new DOMParser().parseFromString(text, "text/html");
  throw told(page.querySelector("main p")?.textContent ?? `the gateway answered with status ${answer.status}`);
}

async function logIn(wallet) {
  $("error").textContent = "";
  for (const one of document.querySelectorAll("#wallets button")) one.disabled = true;
  try {
    const account = await wallet.connect();
    $("say").textContent = "Sign the message in your wallet. It costs nothing.";
    const { message } = await asked(`/app/login/message?walletAddress=${encodeURIComponent(account)}`);
    const signature = await wallet.signText(message);
    await asked("/app/login", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ message, signature }) });
    location.assign(given.next);
  } catch (error) {
    $("say").textContent = "";
    $("error").textContent = (error instanceof Told ? error : Told.of(error)).message.replaceAll(" Nothing was charged.", "");
    for (const one of document.querySelectorAll("#wallets button")) one.disabled = false;
  }
}

function add(wallet) {
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: `Log in with ${wallet.name}` });
  if (/^data:image\//.test(wallet.icon)) button.prepend(Object.assign(new Image(24, 24), { src: wallet.icon, alt: "" }));
  button.addEventListener("click", () => logIn(wallet));
  $("wallets").append(button);
  $("no-wallet").hidden = true;
}

for (const family of given.families) (await import(`./${family}.js`)).discover(add);
setTimeout(() => { $("no-wallet").hidden = $("wallets").childElementCount > 0; }, 1000);
