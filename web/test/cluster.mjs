// The page of a cluster of real processes, as internal/e2e has it look: a line of standard input says what to do or to wait for, and is answered by
// "ok" with what was found, or "fail" with the reason.
import { createInterface } from 'node:readline'
import { opened } from './chromium.mjs'

const { context, close } = await opened()
const page = await context.newPage()
const wait = { timeout: 60_000 } // this machine may be busy with other tests
page.setDefaultTimeout(wait.timeout)
page.setDefaultNavigationTimeout(wait.timeout)
const status = (kind) => page.waitForSelector(`#status.${kind}`, wait)
let turned

const does = {
  /** open a login; then the table of nodes. */
  open: async (link) => {
    await page.goto(link)
    await status('live')
    await page.click('#tab-nodes')
  },
  normal: (n) => page.waitForFunction((v) => document.querySelector('[data-count="NORMAL"]')?.textContent === v, n, wait),
  /** look at a node from now on, picture by picture. */
  look: async (node) => { turned = page.waitForFunction((n) => document.querySelector(`tr[data-node="${n}"]`)?.dataset.state === 'FAILED' && Date.now(), node, { ...wait, polling: 'raf' }) },
  /** turned is when the node's row was FAILED, in milliseconds since 1970. */
  turned: async () => (await turned).jsonValue(),
  live: () => status('live'),
  /** stale: it says how old what it shows is, and why, and shows it still. */
  stale: () => page.waitForFunction(() => /^stale for .*no leader/.test(document.querySelector('#status.stale')?.textContent) && document.querySelector('[data-count="NORMAL"]')?.textContent !== '0', undefined, wait),
}

for await (const line of createInterface({ input: process.stdin })) {
  const [verb, arg] = line.split(' ')
  try {
    const found = await does[verb](arg)
    console.log('ok ' + (typeof found === 'number' ? found : ''))
  } catch (e) {
    console.log('fail ' + String(e?.message ?? e).replaceAll('\n', ' / '))
  }
}
await close()
process.exit()
