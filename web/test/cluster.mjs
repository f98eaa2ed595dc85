// The page of a cluster of real processes. internal/e2e starts it, kills nodes and supervisors when it asks for that, and answers with a line.
// LOFAMO_KILLS is how often a node is killed.
import { asker, ended, opened, say } from './chromium.mjs'

const kills = Number(process.env.LOFAMO_KILLS ?? 1)
const ask = asker()
const { context, close } = await opened()
const page = await context.newPage()
const wait = { timeout: 30_000 }
const count = (state, n) => page.waitForFunction(([s, v]) => document.querySelector(`[data-count="${s}"]`)?.textContent === v, [state, String(n)], wait)

/** dies: from the moment before a node's halves get signal 9 to the node's row in the page's table, by the one clock of this machine. */
async function dies(node) {
  const gone = page.waitForFunction((n) => document.querySelector(`tr[data-node="${n}"]`)?.dataset.state === 'FAILED' && Date.now(), node, { ...wait, polling: 'raf' })
  const killed = Number(await ask('kill ' + node))
  return (await (await gone).jsonValue()) - killed
}

await ended(close, async () => {
  await page.goto(await ask('login'))
  await page.waitForSelector('#status.live', wait)
  await page.click('#tab-nodes')
  await count('NORMAL', 4)
  const took = []
  for (let i = 0; i < kills; i++) {
    took.push(await dies('n1-0-0'))
    await ask('heal n1-0-0')
    await count('NORMAL', 4)
  }
  took.sort((a, b) => a - b)
  say(`a killed node is on the page after ${took.map((t) => Math.round(t)).join(', ')} ms: median ${Math.round(took[took.length >> 1])}, worst ${Math.round(took.at(-1))}`)
  if (took.at(-1) > 10_000) throw new Error(`a killed node was on the page after ${took.at(-1)} ms: want a second, and ten at most`)

  // Two of three supervisors are gone: what the page shows is as old as it says, and is still shown.
  await ask('alone')
  await page.waitForFunction(() => /^stale for .*no leader/.test(document.querySelector('#status.stale')?.textContent), undefined, wait)
  await count('NORMAL', 4)
  await ask('together')
  await page.waitForSelector('#status.live', wait)
})
