// A gate's form: what buyers will see, a test of the target beside it, and how far an upload is.
const $ = (id) => document.getElementById(id);
const form = $("gate");

form.addEventListener("input", ({ target }) => {
  const shown = document.querySelector(`#preview [data-of="${CSS.escape(target.name)}"]`);
  if (shown) shown.textContent = target.value || (target.name === "title" ? "PayGate" : "");
});

$("test")?.addEventListener("click", async (event) => {
  event.preventDefault();
  $("tested").textContent = "Asking the target …";
  try {
    const answer = await fetch("/app/paygates/test", { method: "POST", body: new FormData(form) });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    $("tested").replaceChildren(...(page.getElementById("answer") ?? page.querySelector("main p")).childNodes);
  } catch {
    $("tested").textContent = "The gateway cannot be reached. Try again.";
  }
});

// A file is sent in the background, so that the page can tell how far it is; the answer takes the page's place.
form.addEventListener("submit", (event) => {
  if (!$("file")?.files.length) return;
  event.preventDefault();
  const request = new XMLHttpRequest();
  $("progress").hidden = false;
  request.upload.addEventListener("progress", ({ loaded, total }) => { $("progress").value = loaded / total; });
  request.addEventListener("load", () => {
    const page = new DOMParser().parseFromString(request.responseText, "text/html");
    document.title = page.title;
    $("main").replaceChildren(...page.getElementById("main").childNodes);
    scrollTo(0, 0);
  });
  request.addEventListener("error", () => {
    $("progress").hidden = true;
    $("save").disabled = false;
    form.prepend(Object.assign(document.createElement("p"), { className: "bad", role: "alert", textContent: "The connection broke. Nothing was saved. Send it again." }));
  });
  request.open("POST", form.action);
  request.send(new FormData(form));
});
