// The paywall: connect, sign, wait for the settlement, show what was bought. A payment is kept in this browser before
// it is sent, and none is signed while one is kept; so neither a reload nor a lost answer makes anybody pay twice.
import { Told, render, sleep } from "./shared.js";

const gate = JSON.parse(document.getElementById("gate").textContent);
const $ = (id) => document.getElementById(id);
const KEY = `tollkeeper:${gate.slug}`;
const LOGIN = "tollkeeper:login";
const STEPS = { connect: "Connect your wallet", login: "Sign in", network: "Choose the network",
  sign: "Sign the payment", settle: "Wait for the settlement", result: "Get the result" };
const NOT = "Nothing was charged.";
const SAID = {
  CREDITS_EXHAUSTED: "Your credits are used up. Pay again to go on.",
  FORBIDDEN: `You are signed in with another wallet than the one that pays. ${NOT} Choose the account that pays in your wallet, and try again.`,
  INSUFFICIENT_AMOUNT: `The price has changed. ${NOT} Reload the page to see the new one.`,
  INSUFFICIENT_FUNDS: `Your wallet holds too little USDC on this network. ${NOT} Add USDC or choose another account, and pay again.`,
  INVALID_NETWORK: `This is not paid on that network any more. ${NOT} Reload the page.`,
  INVALID_SIGNATURE: `Your wallet's signature does not fit its account. ${NOT} Choose the account again in your wallet, and pay again.`,
  NOT_FOUND: `Nothing is sold here at present. ${NOT} Ask the seller, or come back later.`,
  PAYMENT_EXPIRED: `The payment ran out while you signed it. ${NOT} Pay again, and sign sooner. If it happens again, check this device's clock.`,
};

const read = (store, key) => { try { return JSON.parse(store.getItem(key)) ?? {}; } catch { return {}; } };
const write = (store, key, value) => { try { store.setItem(key, JSON.stringify(value)); } catch { /* kept in memory */ } };
let kept = read(localStorage, KEY);
let login = read(sessionStorage, LOGIN);
const keep = (change) => write(localStorage, KEY, kept = { ...kept, ...change });
const drop = () => write(localStorage, KEY, kept = {});
// A page that is left lets go of its request at once, so that the gateway spends no credit for an answer to nobody.
const leaving = new AbortController();
addEventListener("pagehide", () => leaving.abort());
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
let account;

function show(id, isShown = true) { $(id).hidden = !isShown; }
function say(text) { $("say").textContent = text; }
const sentence = (text) => text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
function step(name) {
  const names = Object.keys(STEPS), at = names.indexOf(name);
  show("steps");
  $("steps").replaceChildren(...names.filter((one) => one !== "login" || wantsLogin()).map((one) => {
    const item = document.createElement("li"), place = names.indexOf(one);
    item.textContent = STEPS[one];
    item.className = place < at ? "done" : place === at ? "now" : "";
    if (place < at) item.append(Object.assign(document.createElement("span"), { className: "sr", textContent: " (done)" }));
    if (place === at) item.setAttribute("aria-current", "step");
    return item;
  }));
}

const wantsLogin = () => gate.requireAuth || gate.binding === "wallet" || kept.wantsLogin;
const isLoggedIn = () => login.until > Date.now() && (!account || login.wallet === account);
const offer = () => gate.offers[$("network").value];

function request() {
  const form = new FormData($("form")), method = form.get("method") ?? gate.methods[0];
  const query = form.has("query") ? form.get("query").replace(/^\?/, "") : location.search.slice(1);
  const isSent = !["GET", "HEAD"].includes(method) && form.get("body");
  return { url: location.pathname + (query && `?${query}`), method,
    ...(isSent ? { body: form.get("body"), type: form.get("type") } : {}) };
}

// What the gateway is shown: everything that is kept. It takes the first that holds a credit.
function proof() {
  const headers = {};
  if (kept.payment) headers["X-PAYMENT"] = kept.payment;
  if (kept.token && gate.binding !== "wallet") headers["X-Credit-Token"] = kept.token;
  if (wantsLogin() && login.until > Date.now()) headers.Authorization = `Bearer ${login.token}`;
  return headers;
}

async function asked(path, options = {}) {
  const answer = await fetch(gate.root + path, options).catch(() => { throw new Told(`The gateway cannot be reached. ${NOT} Try again.`); });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Told(sentence(body.error?.message ?? `the gateway answered with status ${answer.status}; try again later`));
  return body;
}

const posted = (body) => ({ method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

async function logIn(wallet) {
  step("login");
  say("Sign the message in your wallet. It costs nothing.");
  const { message } = await asked(`/api/v1/auth/message?walletAddress=${encodeURIComponent(account)}`);
  const signature = await wallet.signText(message);
  const { accessToken } = await asked("/api/v1/auth/login", posted({ message, signature }));
  login = { token: accessToken, wallet: account, until: Date.now() + 14 * 60_000 };
  write(sessionStorage, LOGIN, login);
}

// One call with what is kept. True: it was served. False: nothing is held, so it is to be paid for.
async function call(wanted) {
  step("settle");
  for (let tries = 1; ; tries += 1) {
    const headers = { ...proof(), ...(wanted.type ? { "Content-Type": wanted.type } : {}) };
    const isPaid = Boolean(headers["X-PAYMENT"] ?? headers["X-Credit-Token"]);
    let answer;
    try {
      answer = await fetch(wanted.url, { method: wanted.method, headers, body: wanted.body, redirect: "manual", cache: "no-store", signal: leaving.signal });
    } catch {
      throw new Told(isPaid ? "The connection broke. Your payment is kept in this browser: ask again, and do not pay again."
        : `The connection broke. ${NOT} Try again.`, { again: wanted });
    }
    const token = answer.headers.get("x-credit-token");
    if (token) keep({ token });
    if (answer.type === "opaqueredirect" || answer.headers.has("x-credits-remaining")) return served(answer);
    const { error, errorDetail } = await answer.json().catch(() => ({}));
    const isUnpaid = answer.status === 402 && !errorDetail && !error?.code;
    if (isUnpaid && !isPaid) return false;
    const other = isUnpaid ? { code: "CREDITS_EXHAUSTED" } : { message: `The gateway answered with status ${answer.status}.` };
    const problem = errorDetail ?? (error?.code ? error : other);
    const isPending = problem.code === "SETTLEMENT_PENDING";
    if (answer.status === 503 && isPaid && (isPending || tries < 6)) {
      say(isPending ? "The payment is being settled, and this takes longer than usual. Wait, and do not pay again. You may reload this page."
        : "The gateway is busy. It is asked again; do not pay again.");
      await sleep(Math.min(10, Number(answer.headers.get("retry-after")) || 2) * 1000);
      continue;
    }
    refuse(answer, problem, wanted);
  }
}

function refuse(answer, problem, wanted) {
  const { code, message, details } = problem;
  if (code === "CREDIT_TOKEN_REQUIRED") {
    keep({ wantsLogin: true });
    throw new Told("You have credits here. Sign in with the wallet that paid to use them; nothing more is charged.");
  }
  if (answer.status === 401) {
    login = {};
    throw new Told(`Sign in with your wallet. ${NOT}`);
  }
  // What failed in a transaction that anybody can read may be carried out yet: the same is sent, and no other signed.
  const isOpen = code === "PAYMENT_INVALID" && details?.transaction && Date.now() < kept.until || answer.status === 429 || answer.status >= 500;
  if (!isOpen && code !== "FORBIDDEN") drop();
  const wait = answer.status === 429 ? ` Wait ${answer.headers.get("retry-after") ?? "some"} seconds, and ask again.` : "";
  throw new Told((SAID[code] ?? sentence(message)) + wait, isOpen ? { again: wanted } : {});
}

async function served(answer) {
  const header = answer.headers.get("x-payment-response");
  const receipt = header ? JSON.parse(atob(header)) : {};
  const left = answer.headers.get("x-credits-remaining");
  keep({ pending: false, left: Number(left ?? (kept.left ?? 1) - 1), total: Number(answer.headers.get("x-credits-total") ?? kept.total), receipt });
  if (gate.binding === "wallet" || !kept.left) keep({ payment: undefined, token: undefined });
  step("result");
  say("Loading the result.");
  await render($("body"), answer, gate).catch(() => {
    throw new Told("The answer broke off on its way. One credit was used for it. Call again where credits are left.");
  });
  step();
  show("steps", false);
  say("");
  show("result");
  tellHeld();
  $("result").focus();
  return true;
}

function tellHeld() {
  const isHeld = kept.left > 0;
  $("credits").textContent = kept.total ? `${kept.left} of ${kept.total} credits left.` : "";
  const { transaction, network } = kept.receipt ?? {};
  const link = gate.offers.find((one) => one.network === network)?.explorer?.replace("{}", encodeURIComponent(transaction));
  $("receipt").replaceChildren();
  if (transaction) {
    const shown = Object.assign(document.createElement(link ? "a" : "span"), { textContent: transaction });
    if (link) Object.assign(shown, { href: link, target: "_blank", rel: "noopener noreferrer" });
    $("receipt").append("Receipt: transaction ", shown);
  }
  show("held", Boolean(kept.total));
  show("again", isHeld);
  show("offer", !isHeld || Boolean(kept.wantsLogin));
}

async function use(wallet) {
  step("connect");
  say("Open your wallet and connect it.");
  account = await wallet.connect();
  const wanted = kept.pending && kept.call || request();
  if (wantsLogin() && !isLoggedIn()) await logIn(wallet);
  if (kept.wantsLogin) await learnToken();
  if ((kept.payment || kept.token || gate.binding === "wallet") && await call(wanted)) return;
  const chosen = offer();
  step("network");
  say(`Your wallet is asked for ${chosen.label}.`);
  await wallet.choose(chosen);
  step("sign");
  say(`Sign the payment of ${gate.price} USDC in your wallet.`);
  const until = Date.now() + wallet.seconds * 1000;
  const payment = await wallet.pay(chosen, Math.floor(until / 1000), (path, wish) => asked(path, posted({ slug: gate.slug, ...wish })));
  if (Date.now() > until - 10_000) throw new Told(SAID.PAYMENT_EXPIRED);
  keep({ payment, until, token: undefined, pending: true, call: wanted, left: undefined, total: undefined, receipt: undefined });
  say("The payment is being settled. You may reload this page: nothing is lost.");
  if (!await call(wanted)) throw new Told(`The payment was not taken. ${NOT} Reload the page, and pay again.`);
}

// The payer is told the token that holds the credits, which counts wherever the payment does not.
async function learnToken() {
  const { data } = await asked("/api/v1/credits", { headers: proof() });
  const token = data[0]?.creditToken;
  if (!token) throw new Told("These credits are another wallet's. Choose the account that paid in your wallet, and sign in again.");
  keep({ token, wantsLogin: undefined });
}

// After a reload: what became of the payment is asked, which is free; what was not served yet is asked for again.
async function resume() {
  const answer = await fetch(`${gate.root}/api/v1/credits`, { headers: proof() }).catch(() => undefined);
  const [held] = answer?.ok ? (await answer.json()).data : [];
  if (held) keep({ left: held.remaining, total: held.granted });
  const wasServed = held && held.remaining > 0 && held.used > 0;
  if (!kept.pending || wasServed) {
    keep({ pending: false });
    if (held && !held.remaining || answer?.ok && !held) drop();
    if (wasServed || kept.total) tellHeld();
  } else if (kept.call.method === "GET") {
    say("You have paid here before the page was reloaded. It goes on where it was.");
    await call(kept.call);
  } else {
    throw new Told("You have paid here before the page was reloaded. Send your request again: it is not charged twice.", { again: kept.call });
  }
}

// Does one thing at a time, and says in a sentence what keeps it from its end.
async function run(work) {
  if (document.body.dataset.busy) return;
  document.body.dataset.busy = "yes";
  $("error").textContent = "";
  $("next").replaceChildren();
  for (const one of document.querySelectorAll("button")) one.disabled = true;
  try {
    await work();
  } catch (error) {
    say("");
    const told = error instanceof Told ? error : Told.of(error);
    $("error").textContent = told.message;
    if (told.again) button($("next"), "Ask again", () => call(told.again));
    tellHeld();
  } finally {
    for (const one of document.querySelectorAll("#wallets button")) one.lastChild.data = verb(one.wallet);
    delete document.body.dataset.busy;
    for (const one of document.querySelectorAll("button")) one.disabled = false;
  }
}

function button(place, text, work) {
  const made = Object.assign(document.createElement("button"), { type: "button", textContent: text });
  made.addEventListener("click", () => run(work));
  place.append(made);
  return made;
}

const verb = (wallet) => `${kept.wantsLogin ? "Sign in" : `Pay ${gate.price} USDC`} with ${wallet.name}`;

function addWallet(wallet) {
  const made = Object.assign(button($("wallets"), verb(wallet), () => use(wallet)), { wallet });
  if (/^data:image\//.test(wallet.icon)) made.prepend(Object.assign(new Image(24, 24), { src: wallet.icon, alt: "" }));
  showWallets();
}

function showWallets() {
  let shown = 0;
  for (const one of $("wallets").children) shown += !(one.hidden = one.wallet.family !== offer().family);
  show("no-wallet", !shown);
}

async function begin() {
  show("pay");
  show("no-script", false);
  gate.offers.forEach((one, place) => $("network").append(new Option(one.label, place)));
  $("network").addEventListener("change", showWallets);
  const { query } = $("form").elements;
  if (query) query.value = location.search.slice(1);
  $("form").addEventListener("submit", (event) => event.preventDefault());
  $("again").addEventListener("click", () => run(() => call(request())));
  for (const family of new Set(gate.offers.map((one) => one.family))) {
    (await import(`./${family}.js`)).discover(addWallet);
  }
  setTimeout(showWallets, 1000);
  if (kept.payment || kept.token) await run(resume);
}

begin();
