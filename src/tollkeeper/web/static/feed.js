// The live feed: what happens at the owner's PayGates, as the database has it, whichever node was asked.
const feed = document.getElementById("feed"), state = document.getElementById("feed-state");
const make = (tag, properties, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};
const events = new EventSource(`/app/events?since=${feed.dataset.since}`);
events.addEventListener("open", () => { state.textContent = "Live"; });
events.addEventListener("error", () => { if (events.readyState === EventSource.CLOSED) state.textContent = "Not live: reload the page"; });
events.addEventListener("message", ({ data }) => {
  const one = JSON.parse(data);
  if (feed.querySelector(`a[href$="${CSS.escape(one.requestId)}"]`)) return; // the page had it already
  const time = make("time", { dateTime: one.at, textContent: one.at.slice(11, 19) });
  const link = make("a", { href: `/app/requests/${one.requestId}` }, time);
  feed.prepend(make("li", {}, link, " ", one.title || one.slug, ": ", make("strong", { className: one.outcome === "served" ? "good" : "bad", textContent: !one.sale ? one.outcome : `sold for ${one.sale} USDC${one.outcome === "served" ? "" : `, ${one.outcome}`}` })));
  while (feed.childElementCount > 50) feed.lastElementChild.remove();
  document.getElementById("feed-empty")?.remove();
});
addEventListener("pagehide", () => events.close());
