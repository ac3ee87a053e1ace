// Typesets with KaTeX the formulas that pymdownx.arithmatex has marked: \(...\) in a line, \[...\] on its own.
// The table of contents repeats the text of headings without its marks: there, formulas are what is between \( and \).
document.addEventListener("DOMContentLoaded", () => {
  const typeset = (formula, place, displayMode) => katex.render(formula, place, {displayMode, throwOnError: false});
  for (const place of document.querySelectorAll(".arithmatex"))
    typeset(place.textContent.trim().slice(2, -2), place, place.tagName === "DIV");
  for (const entry of document.querySelectorAll("nav .md-ellipsis")) {
    const parts = entry.textContent.trim().split(/\\\((.+?)\\\)/); // words and formulas in turn
    if (parts.length === 1) continue;
    entry.replaceChildren(
      ...parts.map((part, k) => {
        const place = document.createElement("span");
        if (k % 2) typeset(part, place, false);
        else place.textContent = part;
        return place;
      }),
    );
  }
});
