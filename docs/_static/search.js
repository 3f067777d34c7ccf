// The search of Sphinx finds a page that has every word of a question, and nothing where no page has.  This one adds up
// what the question, each word of it and each two in a row find.

"use strict";

if (typeof Search !== "undefined") {
  const find = Search._performSearch;
  const API = "reference/api/"; // has half of all words in its names

  Search._performSearch = (question) => {
    const said = question.toLowerCase().split(/[^\p{L}\p{N}_.]+/u).filter((word) => word && word !== "iris");
    const words = said.filter((word) => !stopwords.has(word));
    const pairs = said.slice(1).map((word, before) => `${said[before]} ${word}`);
    const whole = said.join(" ");
    if (!pairs.length) return find(...Search._parseQuery(whole || question));
    const pages = new Map();
    for (const part of new Set([whole, ...words, ...pairs])) {
      const best = new Map(); // of each page
      for (const result of find(...Search._parseQuery(part))) {
        const [page, , , , score, , kind] = result;
        if (part !== whole && (kind === SearchResultKind.object || (kind === SearchResultKind.index && page.startsWith(API)))) continue;
        if (score > (best.get(page)?.[4] ?? 0)) best.set(page, result);
      }
      const rarity = 1 - Math.log(Math.max(best.size, 1)) / Math.log(Search._index.docnames.length + 1);
      for (const [page, result] of best) {
        const score = result[6] === SearchResultKind.index ? result[4] : result[4] * rarity;
        const shown = pages.get(page);
        if (!shown) pages.set(page, { score, most: score, result });
        else {
          shown.score += score;
          if (score > shown.most) Object.assign(shown, { most: score, result });
        }
      }
    }
    Search._parseQuery(question); // keeps the words to highlight
    const ranked = [...pages.values()].sort((one, other) => one.score - other.score); // the best one is the last
    return ranked.slice(-20).map(({ score, result }) => [...result.slice(0, 4), score, ...result.slice(5)]);
  };
}
