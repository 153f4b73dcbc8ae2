// Try-it of the API's page, in a sandbox: each operation gets a form, made of the description that the page is made of.
const main = document.querySelector("main");
const make = (tag, properties, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};
const described = await (await fetch("openapi.json")).json();
const [gate] = (await (await fetch("api/v1/paygates?limit=1")).json()).data ?? [];
// A PayGate of the sandbox, so that the forms can be sent as they stand.
const known = { gate_id: gate?.id, slug: gate?.slug, targetUrl: gate?.targetUrl, paygateId: gate?.id, price: "0.01", network: gate?.network };
const examples = { createPayGate: { targetUrl: known.targetUrl, price: "0.01", credits: 10, title: "Weather" }, updatePayGate: { title: "Weather" }, testTarget: {} };

function example(schema, name = "") {
  if (schema.$ref) return example(described.components.schemas[schema.$ref.split("/").pop()], name);
  if (known[name] !== undefined) return known[name];
  if (schema.anyOf) return example(schema.anyOf[0], name);
  if (schema.type === "object") {
    return Object.fromEntries((schema.required ?? []).map((one) => [one, example(schema.properties[one], one)]));
  }
  return schema.const ?? schema.default ?? schema.enum?.[0] ?? { integer: 1, number: 1, boolean: false, array: [] }[schema.type] ?? "";
}

let fields = 0;
function field(label, input) {
  input.id = `try-${fields += 1}`;
  return [make("label", { htmlFor: input.id, textContent: label }), input];
}

const token = make("input", { autocomplete: "off", spellcheck: false });
main.querySelector("h2").before(make("section", {},
  make("h2", { textContent: "Try it" }),
  make("p", { textContent: "Each operation below has a form that asks this sandbox, with play money. Without a token you manage the PayGates that nobody owns." }),
  ...field("Access token of a login, or management token of one PayGate", token)));

function form(method, path, operation) {
  const inputs = (operation.parameters ?? []).map((parameter) => {
    const wanted = parameter.required ? example(parameter.schema, parameter.name) : "";
    return { parameter, input: make("input", { value: wanted, required: parameter.required, autocomplete: "off", spellcheck: false }) };
  });
  const schema = operation.requestBody?.content["application/json"]?.schema;
  const takesAny = path === "/{slug}" && !["get", "head"].includes(method);
  const given = schema && JSON.stringify(examples[operation.operationId] ?? example(schema), null, 1);
  const body = schema || takesAny ? make("textarea", { rows: 6, value: given ?? "", spellcheck: false }) : null;
  const told = make("pre", { tabIndex: 0, hidden: true, role: "region", ariaLabel: "The answer" });
  const made = make("form", {}, ...inputs.flatMap(({ parameter, input }) => field(`${parameter.name} (${parameter.in})`, input)),
    ...(body ? field("Body", body) : []), make("button", { textContent: "Send" }), told);
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    const query = new URLSearchParams(), headers = new Headers();
    let place = path.slice(1);
    for (const { parameter: { name, in: where }, input: { value } } of inputs) {
      if (where === "path") place = place.replace(`{${name}}`, encodeURIComponent(value));
      else if (value && where === "query") query.set(name, value);
      else if (value) headers.set(name, value);
    }
    if (token.value) headers.set("Authorization", `Bearer ${token.value.trim()}`);
    if (body?.value) headers.set("Content-Type", "application/json");
    told.hidden = false;
    told.textContent = "Sent";
    try {
      const url = query.size ? `${place}?${query}` : place;
      const answer = await fetch(url, { method: method.toUpperCase(), headers, body: body?.value || undefined });
      let text = await answer.text();
      try { text = JSON.stringify(JSON.parse(text), null, 1); } catch { /* no JSON: shown as it is */ }
      const more = [...answer.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
      told.textContent = `${method.toUpperCase()} /${url}\nHTTP ${answer.status}\n${more}\n\n${text}`;
    } catch (error) {
      told.textContent = `The request could not be sent: ${error.message}`;
    }
    told.focus();
  });
  return made;
}

for (const shown of main.querySelectorAll("details[data-path]")) {
  const { method, path } = shown.dataset;
  shown.addEventListener("toggle", () => shown.append(form(method, path, described.paths[path][method])), { once: true });
}
document.documentElement.dataset.try = "ready";
