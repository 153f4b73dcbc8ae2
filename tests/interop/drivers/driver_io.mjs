// One JSON object from standard input, one to standard output: how tests speak to these drivers. Each runs with the
// npm environment as its working directory, because modules are looked up there and not beside this file.
import { createRequire } from "node:module";
import { join } from "node:path";

export const official = createRequire(join(process.cwd(), "package.json"));

export async function readRequest() {
  let text = "";
  for await (const chunk of process.stdin) text += chunk;
  return JSON.parse(text);
}

const plain = (_key, value) => (typeof value === "bigint" ? value.toString() : value);

export function writeAnswer(answer) {
  process.stdout.write(JSON.stringify(answer, plain) + "\n");
}

export const described = (error) => ({ type: error.name, message: error.message });

// The answer of a paying driver. `buy` takes the request and gives {response, receipt}: what it throws is the error.
// Several `calls` are made one after the other, each of the request with what that call says.
export async function pay(buy) {
  const { calls, ...request } = await readRequest();
  const answers = [];
  for (const call of calls ?? [{}]) answers.push(await payOnce(buy, { ...request, ...call }));
  writeAnswer(calls ? { answers } : answers[0]);
}

async function payOnce(buy, request) {
  try {
    const { response, receipt } = await buy(request);
    const headers = Object.fromEntries(response.headers);
    return { status: response.status, body: await response.text(), headers, receipt, error: null };
  } catch (error) {
    return { status: null, body: null, headers: {}, receipt: null, error: described(error) };
  }
}

// What axios was answered, also where it raises for it: then the error has the answer.
export function answered(asked) {
  return asked.catch((error) => {
    if (error.response === undefined) throw error;
    return error.response;
  });
}

// An axios response as `pay` takes one; its JSON was parsed already.
export const asResponse = ({ status, headers, data }) => ({
  status,
  headers: Object.entries(headers.toJSON()),
  text: async () => (typeof data === "string" ? data : JSON.stringify(data)),
});

// The answer of a facilitator driver: its calls in order; what one throws is its result and stops none of the others.
export async function facilitate(connect) {
  const request = await readRequest();
  const call = connect(request.url);
  const results = [];
  for (const asked of request.calls) {
    try {
      results.push({ answer: await call(asked) });
    } catch (error) {
      results.push({ error: described(error) });
    }
  }
  writeAnswer({ results });
}

// What fetch takes besides the URL. Plain objects only: x402-fetch loses a Headers instance on its paid retry.
export const fetchOptions = ({ method = "GET", headers = {}, body }) => ({ method, headers, body });
