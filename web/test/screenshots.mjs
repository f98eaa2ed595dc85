// screenshots.mjs OUT [FILE TITLE NAME]…: pictures of the page that LOFAMO_LINK opens, and of what programs wrote to a terminal. LOFAMO_SCENE=rack: of
// a dead rack instead of three faults. Run by hack/screenshots.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { opened } from './chromium.mjs'

const [out, ...texts] = process.argv.slice(2)
const wait = { timeout: 60_000 }
const { context, close } = await opened({ viewport: { width: 1280, height: 760 } })

/** save takes a picture of what is in the window. WebP: a third of a PNG, and shown by all that show the documentation. */
async function save(page, name) {
  const cdp = await context.newCDPSession(page)
  const { data } = await cdp.send('Page.captureScreenshot', { format: 'webp', quality: 82 })
  writeFileSync(join(out, name + '.webp'), Buffer.from(data, 'base64'))
  await cdp.detach()
  console.log(`${name}.webp: ${Math.round((data.length * 3) / 4096)} kB`)
}

/** drawn waits until nothing is drawn any more. */
const drawn = (page) => page.evaluate(() => new Promise((done) => {
  const frames = () => Number(document.querySelector('#torus').dataset.frames)
  let was = -1
  const look = () => { if (frames() > 0 && frames() === was) done(); else { was = frames(); setTimeout(look, 400) } }
  look()
}))

/** incidents takes a picture of the page as it opens, when it has so many incidents. */
async function incidents(page, n, name) {
  await page.click('#tab-incidents')
  await page.waitForFunction((want) => document.querySelectorAll('[data-incident]').length === want, n, wait)
  await drawn(page)
  await save(page, name)
}

/** rack takes a picture of a dead rack: one incident, and a frame around its nodes. */
async function rack() {
  const page = await context.newPage()
  await page.goto(process.env.LOFAMO_LINK)
  await page.waitForSelector('#status.live', wait)
  await page.waitForSelector('[data-incident][aria-label^="rack "]', wait)
  await incidents(page, 1, 'web-rack')
  await page.close()
}

async function web() {
  const page = await context.newPage()
  await page.goto(process.env.LOFAMO_LINK)
  await page.waitForSelector('#status.live', wait)
  await page.waitForFunction(() => document.querySelector('[data-count="FAILED"]')?.textContent === '1', undefined, wait)
  await page.waitForFunction(() => Number(document.querySelector('#torus').dataset.frames) > 0, undefined, wait)
  await page.click('#tab-nodes')
  await page.click('tr[data-node="n2-2-0"] button')
  await page.waitForFunction(() => /because/.test(document.querySelector('#panel').textContent), undefined, wait)
  await drawn(page)
  await save(page, 'web-light')
  await incidents(page, 3, 'web-incidents')
  await page.click('header button[aria-label="Light or dark"]')
  await page.click('#tab-events')
  await drawn(page)
  await save(page, 'web-dark')
  await page.click('header button[aria-label="Light or dark"]')
  await page.setViewportSize({ width: 390, height: 844 })
  await page.click('#tab-incidents')
  await page.evaluate(() => scrollTo(0, 0))
  await drawn(page)
  await save(page, 'web-phone')
  await page.close()
}

const plain = ['#2b313b', '#e5735f', '#7fbf7f', '#e0b040', '#6aa5e8', '#c08fe0', '#5fc0c0', '#d5dae1']
const bright = ['#7c8796', '#ff8f7a', '#9be09b', '#ffd060', '#8cc0ff', '#d9b0f5', '#80e0e0', '#ffffff']

/** colour is one of the 256 of terminals. */
function colour(n) {
  if (n < 8) return plain[n]
  if (n < 16) return bright[n - 8]
  if (n > 231) return `rgb(${Array(3).fill(8 + 10 * (n - 232))})`
  return `rgb(${[36, 6, 1].map((k) => Math.floor((n - 16) / k) % 6).map((v) => (v ? 55 + 40 * v : 0))})`
}

/** paint applies the numbers of one SGR sequence (ECMA-48 8.3.117) to a style. */
function paint(style, numbers) {
  for (let i = 0; i < numbers.length; i++) {
    const n = numbers[i]
    if (n === 0) for (const k of Object.keys(style)) delete style[k]
    else if (n === 1) style.bold = true
    else if (n === 2) style.faint = true
    else if (n === 4) style.under = true
    else if (n === 7) style.inverse = true
    else if (n === 22) style.bold = style.faint = false
    else if (n === 27) style.inverse = false
    else if (n === 38 || n === 48) {
      const c = numbers[i + 1] === 5 ? colour(numbers[i + 2]) : `rgb(${numbers.slice(i + 2, i + 5)})`
      style[n === 38 ? 'fore' : 'back'] = c
      i += numbers[i + 1] === 5 ? 2 : 4
    } else if (n === 39) delete style.fore
    else if (n === 49) delete style.back
    else if (n >= 30 && n < 38) style.fore = plain[n - 30]
    else if (n >= 40 && n < 48) style.back = plain[n - 40]
    else if (n >= 90 && n < 98) style.fore = bright[n - 90]
    else if (n >= 100 && n < 108) style.back = bright[n - 100]
  }
}

const ground = '#161b22', ink = '#d5dae1'

/** terminal is what a program wrote, as a page: each run of one style is an element. */
function terminal(text) {
  const style = {}, runs = []
  for (const [, codes, run] of text.matchAll(/(?:\x1b\[([\d;:]*)m)?([^\x1b]*)/g)) {
    if (codes !== undefined) paint(style, codes.split(/[;:]/).map(Number))
    if (run) runs.push({ text: run, ...style })
  }
  return runs.map((r) => {
    const [fore, back] = r.inverse ? [r.back ?? ground, r.fore ?? ink] : [r.fore ?? ink, r.back ?? 'transparent']
    return { text: r.text, css: `color:${fore};background:${back};${r.bold ? 'font-weight:700;' : ''}${r.faint ? 'opacity:.65;' : ''}${r.under ? 'text-decoration:underline;' : ''}` }
  })
}

async function written(file, title, name) {
  const page = await context.newPage()
  await page.setContent('<!doctype html><meta charset=utf-8><body></body>')
  const size = await page.evaluate(({ runs, title, ground, ink }) => {
    const make = (tag, css, text = '') => { const e = document.createElement(tag); e.style.cssText = css; e.textContent = text; return e }
    document.body.style.cssText = `margin:0;background:${ground};color:${ink};display:inline-block;padding:12px 18px`
    const pre = make('pre', 'margin:0;font:14px/1.25 "DejaVu Sans Mono",monospace;white-space:pre-wrap;max-width:124ch')
    pre.append(make('span', 'color:#7fbf7f', '$ '), make('b', '', title + '\n'))
    for (const r of runs) pre.append(make('span', r.css, r.text))
    document.body.append(pre)
    return [document.body.scrollWidth, document.body.scrollHeight]
  }, { runs: terminal(readFileSync(file, 'utf8').trimEnd()), title, ground, ink })
  await page.setViewportSize({ width: Math.ceil(size[0]), height: Math.ceil(size[1]) })
  await save(page, name)
  await page.close()
}

try {
  for (let i = 0; i < texts.length; i += 3) await written(texts[i], texts[i + 1], texts[i + 2])
  await (process.env.LOFAMO_SCENE === 'rack' ? rack() : web())
} finally {
  await close()
}
