// The front page's button: one real request without a payment, and the real 402.
const ask = document.getElementById("ask"), told = document.getElementById("told");
ask?.addEventListener("click", async () => {
  told.hidden = false;
  try {
    const answer = await fetch(new URL(ask.dataset.url).pathname, { headers: { Accept: "application/json" } });
    told.textContent = `HTTP ${answer.status}\n${JSON.stringify(await answer.json(), null, 2)}`;
  } catch {
    told.textContent = "The gateway cannot be reached.";
  }
});
