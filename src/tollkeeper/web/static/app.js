// What every page of the dashboard does beyond its HTML: nothing is lost without it.
// A form that was sent is not sent again by a second click.
addEventListener("submit", ({ target }) => {
  setTimeout(() => { for (const one of target.querySelectorAll("button")) one.disabled = true; });
});
addEventListener("pageshow", ({ persisted }) => { if (persisted) location.reload(); });
