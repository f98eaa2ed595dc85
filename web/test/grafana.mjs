// Renders the dashboards of a running Grafana in Chromium, and says which panels show no data or an error. Run by hack/screenshots.
// LOFAMO_GRAFANA: its address; LOFAMO_SHOTS: a folder for the pictures; LOFAMO_CHROMIUM: the browser;
// LOFAMO_NODE: the node that the dashboard Node is to show.
import { readdir, readFile, writeFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { chromium } from 'playwright-core'

const address = process.env.LOFAMO_GRAFANA, out = process.env.LOFAMO_SHOTS
const dashboards = new URL('../../deploy/grafana/', import.meta.url).pathname
const width = 1440, cell = 38 // px that a unit of a panel's height takes, its gap included
const settled = 20_000 // ms that a dashboard is given to draw itself

const browser = await chromium.launch({
  executablePath: process.env.LOFAMO_CHROMIUM ?? '/usr/bin/chromium', headless: true,
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
})
let bad = 0
const complain = (text) => { bad++; console.log(`BAD ${text}`) }
for (const file of (await readdir(dashboards)).filter((f) => f.endsWith('.json')).sort()) {
  if (process.env.LOFAMO_ONLY && !file.includes(process.env.LOFAMO_ONLY)) continue
  const d = JSON.parse(await readFile(join(dashboards, file), 'utf8'))
  const height = 130 + cell * Math.max(...d.panels.map((p) => p.gridPos.y + p.gridPos.h))
  const page = await browser.newPage({ viewport: { width, height } })
  page.on('response', async (r) => {
    if (!r.url().includes('/api/ds/query') || r.status() === 200) return
    complain(`${d.uid}: a query was answered with ${r.status()}: ${(await r.text().catch(() => '')).slice(0, 300)}`)
  })
  page.on('pageerror', (e) => complain(`${d.uid}: ${e.message.slice(0, 200)}`))
  const node = d.uid === 'lofamo-node' && process.env.LOFAMO_NODE ? `&var-node=${process.env.LOFAMO_NODE}` : ''
  await page.goto(`${address}/d/${d.uid}?kiosk&from=now-${process.env.LOFAMO_SINCE ?? '15m'}&to=now&refresh=${node}`)
  const panels = d.panels.filter((p) => p.type !== 'row')
  await page.waitForFunction((n) => document.querySelectorAll('[data-panelid] section, [data-panelid] [data-testid*="Panel header"]').length >= n, panels.length, { timeout: settled }).catch(() => {})
  await page.waitForLoadState('networkidle', { timeout: settled }).catch(() => {})
  // Drawings that are laid out, the node graph first of all, are still for a while when they are done.
  for (let last = '', same = 0; same < 4;) {
    const now = await page.evaluate(() => [...document.querySelectorAll('[data-panelid]')].map((e) => e.innerHTML.length).join())
    same = now === last ? same + 1 : 0
    last = now
    await page.waitForTimeout(500)
  }
  const seen = await page.evaluate(() => [...document.querySelectorAll('[data-panelid]')].map((e) => ({
    id: Number(e.dataset.panelid), text: e.innerText,
    error: e.querySelector('[aria-label="Panel status"], [data-testid="data-testid Panel status error"], [data-testid*="Panel status error"]') !== null,
    drawn: e.querySelector('canvas, svg, table, [role="table"], [class*="big-value"], [data-testid*="Bar gauge"], [data-testid*="value"]') !== null,
  })))
  for (const p of panels) {
    const s = seen.find((s) => s.id === p.id)
    if (!s) complain(`${d.uid}: ${p.title}: not drawn at all`)
    else if (s.error) complain(`${d.uid}: ${p.title}: an error`)
    else if (/No data|Data is missing|Unable to render|Error/.test(s.text)) complain(`${d.uid}: ${p.title}: ${s.text.replace(/\s+/g, ' ').slice(0, 120)}`)
    else if (!s.drawn) complain(`${d.uid}: ${p.title}: empty`)
  }
  const cdp = await page.context().newCDPSession(page)
  const { data } = await cdp.send('Page.captureScreenshot', { format: 'webp', quality: 70 })
  await writeFile(join(out, `grafana-${basename(file, '.json').replace('lofamo-', '')}.webp`), Buffer.from(data, 'base64'))
  console.log(`${d.uid}: ${panels.length} panels`)
  await page.close()
}
await browser.close()
process.exit(bad ? 1 : 0)
