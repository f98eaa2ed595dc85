// Says whether this Node.js is one that the page can be built by: exit 0; or 1 and why not. The versions are those of "engines" in package.json, which are those of
// what it is built by. It is itself for any Node.js.
import { readFileSync } from 'node:fs';

const want = JSON.parse(readFileSync(new URL('package.json', import.meta.url), 'utf8')).engines.node;
const given = process.argv[2] ?? process.version;
const numbers = (v) => v.match(/(\d+)\.(\d+)\.(\d+)/).slice(1).map(Number);
const least = (v, w) => v[0] - w[0] || v[1] - w[1] || v[2] - w[2];
const is = numbers(given);
const good = want.split('||').some((range) => {
  const from = numbers(range);
  switch (range.trim().match(/^\D*/)[0]) {
    case '^': return is[0] === from[0] && least(is, from) >= 0;
    case '>=': return least(is, from) >= 0;
    default: throw new Error(`engines.node: ${range}: want ^a.b.c or >=a.b.c`);
  }
});
if (!good) {
  console.error(`Node.js ${given} is too old, or of a line that was not kept up: the page for browsers wants ${want} (web/package.json)`);
  process.exit(1);
}
