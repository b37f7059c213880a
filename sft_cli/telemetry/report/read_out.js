// Shows the numbers of the step under the pointer, or under the arrow keys. Without it a page says all the same.
for (const plot of document.querySelectorAll(".plot")) {
  const svg = plot.querySelector("svg");
  const [first, last] = [Number(plot.dataset.first), Number(plot.dataset.last)];
  const curves = [...plot.querySelectorAll("polyline")].map(({ dataset }) => ({
    name: dataset.name, unit: dataset.unit, x: dataset.x.split(" ").map(Number), y: dataset.y.split(" ").map(Number),
  }));
  const longest = curves.reduce((one, other) => (other.x.length > one.x.length ? other : one));
  const cursor = document.createElement("div"), box = document.createElement("output");
  cursor.className = "cursor";
  cursor.hidden = box.hidden = true;
  plot.append(cursor, box);
  plot.tabIndex = 0;
  let shown = longest.x.length - 1;

  const nearest = (x, step) => {
    let low = 0, high = x.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (x[middle] <= step) low = middle; else high = middle;
    }
    return step - x[low] <= x[high] - step ? low : high;
  };
  const show = (at) => {
    shown = Math.min(Math.max(at, 0), longest.x.length - 1);
    const step = longest.x[shown], share = (step - first) / (last - first);
    const lines = curves.map((curve) => {
      const here = nearest(curve.x, step);
      return `${curve.name}  ${curve.y[here].toLocaleString("en", { maximumSignificantDigits: 5 })}${curve.unit}`;
    });
    box.textContent = [`step ${step.toLocaleString("en")}`, ...lines].join("\n");
    cursor.hidden = box.hidden = false;
    cursor.style.left = `${100 * share}%`;
    box.className = share < 0.5 ? "right" : "left";
  };
  const hide = () => { cursor.hidden = box.hidden = true; };
  plot.addEventListener("pointermove", (event) => {
    const { left, width } = svg.getBoundingClientRect();
    show(nearest(longest.x, first + ((event.clientX - left) / width) * (last - first)));
  });
  plot.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) { event.preventDefault(); show(shown + by); }
  });
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
}
