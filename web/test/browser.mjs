// The page in a real browser, against a real supervisor. internal/supervisor's TestBrowser starts it, makes the faults that it asks for by a line of
// standard output, and answers with a line. Everything waits for what is to be seen, with a bound.
import { AxeBuilder } from '@axe-core/playwright'
import { join } from 'node:path'
import { asker, ended, opened, say } from './chromium.mjs'

const { LOFAMO_URL: url, LOFAMO_SHOTS: shots } = process.env
const ask = asker()
const check = (ok, what) => { if (!ok) throw new Error(what) }
const wait = { timeout: 20_000 }

const { context, close } = await opened()
const page = await context.newPage()
const wrong = []
page.on('pageerror', (e) => wrong.push(String(e)))
page.on('console', (m) => { if (/Content Security|Trusted|Refused to/.test(m.text())) wrong.push(m.text()) })
const outside = []
const ours = [url]
page.on('request', (r) => { if (!ours.some((u) => r.url().startsWith(u)) && !r.url().startsWith('data:')) outside.push(r.url()) })
const count = (state, n) => page.waitForFunction(([s, v]) => document.querySelector(`[data-count="${s}"]`)?.textContent === v, [state, String(n)], wait)
const live = (kind) => page.waitForSelector(`#status.${kind}`, wait)
const shot = async (name) => { if (shots) await page.screenshot({ path: join(shots, name + '.png') }) }
const axe = async (where) => {
  // Of a long list some lines tell of all.
  const found = (await new AxeBuilder({ page }).options({ resultTypes: ['violations'] }).exclude('#panel li:nth-child(n+6)').exclude('#panel tr:nth-child(n+6)').analyze()).violations.filter((v) => v.impact === 'serious' || v.impact === 'critical')
  check(!found.length, `axe, ${where}: ${found.map((v) => `${v.id} (${v.impact}): ${v.nodes.map((n) => n.html.slice(0, 120)).join(' | ')}`).join('; ')}`)
}

const drawn = () => page.waitForFunction(() => Number(document.querySelector('#torus')?.dataset.frames) > 0, undefined, wait)

/** refuse has the next question for a path answered as one of too many; done ends that, and says that it was asked again. */
async function refuse(path) {
  let asked = 0
  await page.route(path, (route) => asked++ ? route.continue() : route.fulfill({ status: 503, json: { error: 'too many questions at once' } }))
  return async () => {
    check(asked > 1, `${path} was asked ${asked} times: want it asked again after it was refused`)
    await page.unroute(path)
  }
}

/** names are those that the drawing shows beside its signs. */
const names = () => page.evaluate(() => (document.querySelector('#names').dataset.names ?? '').split('|').filter(Boolean))
/** axes are the axes that the drawing has along the edges of the torus, each with its coordinates. */
const axes = () => page.evaluate(() => document.querySelector('#names').dataset.axes)
const named = (all) => page.waitForFunction((want) => {
  const have = (document.querySelector('#names')?.dataset.names ?? '').split('|')
  return want.every((w) => have.includes(w))
}, all, wait)

/** readable: no text on the page is smaller than 16 px. */
async function readable(where) {
  const small = await page.evaluate(() => {
    const out = new Set(), walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    for (let t = walk.nextNode(); t; t = walk.nextNode()) {
      const e = t.parentElement, size = parseFloat(getComputedStyle(e).fontSize)
      if (t.data.trim() && e.checkVisibility() && size < 16) out.add(`${size} px: ${e.tagName} ${t.data.trim().slice(0, 30)}`)
    }
    return [...out]
  })
  check(!small.length, `text of less than 16 px, ${where}: ${small.slice(0, 5).join('; ')}`)
}

/** seen: the map of 3x3x3, the one in the middle by a click, others by keys. */
async function seen() {
  await page.goto(url + '/')
  await page.waitForSelector('h1')
  check((await page.textContent('body')).includes('lofamoctl web'), 'a stranger is not told how to log in')
  await axe('login')
  // A link of a dashboard in a new tab, to a supervisor that has no room just then.
  await page.goto('about:blank')
  const again = await refuse('**/api/map')
  await page.goto((await ask('login viewer')) + '&node=n1-0-2')
  await page.waitForFunction(() => document.querySelector('#panel h2')?.textContent.startsWith('n1-0-2'), undefined, wait)
  await again()
  // Somebody else's login in the same tab.
  check(await page.locator('header:has-text("viewer/someone")').count(), 'who looks is not told')
  await page.evaluate((link) => { location.href = link }, await ask('login approver'))
  await page.waitForSelector('header:has-text("approver/someone")', wait)
  await live('live')
  check(!page.url().includes('login'), 'the login stays in the address')
  await count('NORMAL', 27)
  await drawn()
  await page.waitForSelector('#tab-incidents[aria-selected="true"]', wait)
  await page.waitForFunction(() => /No incident is open/.test(document.querySelector('#panel').textContent), undefined, wait)
  await named(Array.from({ length: 27 }, (_, r) => `n${r % 3}-${Math.floor(r / 3) % 3}-${Math.floor(r / 9)}`))
  check(/X\+ X-.*Y\+ Y-.*Z\+ Z-.*next/.test(await page.textContent('#legend')), 'the legend does not have the directions and keys')
  check(await page.locator('#offer').isHidden(), 'a plane of a small torus is offered')
  await readable('the map')
  const box = await page.locator('#torus').boundingBox()
  await page.keyboard.press('Tab')
  await page.selectOption('select', '2')
  await page.locator('#tools input[type=range]').fill('1')
  await page.mouse.click(box.x + box.width / 2, box.y + box.height / 2)
  await page.waitForFunction(() => document.querySelector('#panel h2')?.textContent.startsWith('n1-1-1'), undefined, wait)
  await page.waitForFunction(() => /Why/.test(document.querySelector('#panel').textContent) && document.querySelectorAll('#panel table').length >= 2, undefined, wait)
  await page.focus('#torus')
  await page.keyboard.press('ArrowRight')
  await page.keyboard.press('Enter')
  await page.waitForFunction(() => document.querySelector('#panel h2')?.textContent.startsWith('n2-1-1'), undefined, wait)
  check(await page.evaluate(() => document.activeElement.id === 'panel'), 'Enter does not lead to the page that it opens')
  await page.keyboard.press('Escape')
  check(await page.evaluate(() => document.activeElement.tagName === 'CANVAS'), 'Escape does not lead back to the map')
  await keys()
  // A dashboard's link in a tab where the page is.
  await page.evaluate(() => { location.hash = '#node=n0-2-1' })
  await page.waitForFunction(() => document.querySelector('#panel h2')?.textContent.startsWith('n0-2-1'), undefined, wait)
  await page.selectOption('select', '-1')
}

/** keys: along Z, nearer, farther, and back to where all is seen; the map has the focus and n2-1-1 is chosen. */
async function keys() {
  const chosen = (id) => page.waitForFunction((n) => document.querySelector('#chosen')?.textContent.startsWith(n), id, wait)
  await page.keyboard.press('PageUp')
  await chosen('n2-1-2')
  await page.keyboard.press('PageDown')
  await page.keyboard.press('PageDown')
  await chosen('n2-1-0')
  const distance = () => page.evaluate(() => Number(document.querySelector('#torus').dataset.distance))
  const pressed = async (key, ok) => {
    const was = await distance()
    await page.keyboard.press(key)
    await page.waitForFunction(([w, sign]) => Math.sign(Number(document.querySelector('#torus').dataset.distance) - w) === sign, [was, ok], wait)
  }
  const home = await distance()
  await pressed('+', -1)
  await pressed('+', -1)
  await pressed('-', 1)
  await page.keyboard.press('0')
  await page.waitForFunction((d) => Math.abs(Number(document.querySelector('#torus').dataset.distance) - d) < 0.01, home, wait)
}

/** dies: a node's neighbours say that it is dead. From the commit to the page it takes less than a second, and thrice that at most where the one processor draws and decides. */
async function dies() {
  await page.click('#tab-nodes')
  const gone = page.waitForFunction(() => {
    const row = document.querySelector('tr[data-node="n1-1-2"]')
    return row && row.dataset.state !== 'NORMAL' && Date.now()
  }, undefined, { ...wait, polling: 'raf' })
  await count('NORMAL', 27) // one that was late just then would be sick before it is dead
  await ask('kill n1-1-2')
  const at = await (await gone).jsonValue()
  const committed = Number(await ask('when n1-1-2'))
  say(`a killed node is on the page ${at - committed} ms after the commit`)
  check(at - committed <= 3000, `a killed node was on the page ${at - committed} ms after the commit: want a second, and three at most`)
  await count('NORMAL', 26)
  await ask('sick n0-0-2')
  await count('SICK', 1)
  await page.waitForFunction(() => document.querySelector('tr[data-node="n0-0-2"]')?.dataset.state === 'SICK', undefined, wait)
  await page.focus('#torus')
  const found = new Set()
  for (let i = 0; i < 10 && !(found.has('n1-1-2') && found.has('n0-0-2')); i++) { // one that is late beside the browser is between them
    await page.keyboard.press('n')
    found.add(await page.locator('#chosen button').textContent())
  }
  check(found.has('n1-1-2') && found.has('n0-0-2'), `n leads to ${[...found]}: want the dead node and the sick one`)
  await named(['n1-1-2', 'n0-0-2'])
  check(await axes() === 'X+ 0 1 2|Y+ 0 1 2|Z+ 0 1 2', `the axes are ${await axes()}: want three, with the coordinates 0 to 2`)
  await shot('laptop-light')
  await readable('nodes')
  await axe('nodes')
}

const incident = (name) => `[data-incident][aria-label="${name}"]`

/** incidents: the page opens on them, the worst first, with consequences folded and what to do; an operator acknowledges one. */
async function incidents() {
  const as = async (role) => {
    await page.evaluate((link) => { location.href = link }, await ask('login ' + role))
    await page.waitForSelector(`header:has-text("${role}/someone")`, wait)
    await live('live')
  }
  await as('operator')
  await page.waitForSelector('#tab-incidents[aria-selected="true"]', wait)
  await page.waitForSelector(incident('node n1-1-2') + '.CRITICAL', wait)
  await page.waitForSelector(incident('memory of n0-0-2'), wait)
  const order = await page.$$eval('[data-incident]', (all) => all.map((e) => e.getAttribute('aria-label')))
  check(order[0] === 'node n1-1-2', `the incidents are ${order}: want the dead node first`)
  const card = page.locator(incident('node n1-1-2'))
  const text = await card.textContent()
  for (const want of [/since .*, for /, /Cause: both halves of the node are dead/, /Verdict: ./, /Being done:/, /What to do: runbook LofamoNodeFailed/]) check(want.test(text), `the dead node's incident is ${text}: want ${want}`)
  const folded = Number(/(\d+) consequences/.exec(text)?.[1])
  check(folded >= 6 && !/link\/X/.test(text), `the dead node's incident has ${folded} consequences: want its six links at least, folded`) // their number still grows
  await card.locator('summary:has-text("consequences")').click()
  await page.waitForFunction((sel) => document.querySelectorAll(sel + ' .fold li').length === parseInt(document.querySelector(sel + ' summary')?.textContent), incident('node n1-1-2'), wait)
  check(await page.evaluate(async () => (await fetch('/runbooks/LofamoNodeFailed')).ok), 'the runbook does not open')
  await shot('incidents')
  await axe('incidents')
  await readable('incidents')
  await card.locator('button:has-text("Acknowledge…")').click()
  const longest = Number(await card.locator('input[data-keep$="/note"]').getAttribute('maxlength'))
  check(longest > 0 && 4 * longest <= 4096, `the page takes notes of ${longest} characters: want as many as fit into 4096 bytes, of up to 4 bytes each`)
  await page.keyboard.type('<b>looking</b>')
  await page.keyboard.press('Enter')
  // A supervisor that lost its lead under load refuses: the page keeps the note, and the person tries again.
  for (let tries = 0; tries < 10 && await Promise.race([card.locator('[role=alert]').waitFor(wait).then(() => true), card.locator('.note').waitFor(wait).then(() => false)]); tries++) {
    await live('live')
    await card.locator('button:has-text("Acknowledge")').click()
    await card.locator('[role=alert]').waitFor({ ...wait, state: 'detached' }).catch(() => {})
  }
  await page.waitForFunction((sel) => /has been dealing with it/.test(document.querySelector(sel)?.textContent) && document.querySelector(sel + ' .note')?.textContent.includes('<b>looking</b>'), incident('node n1-1-2'), wait)
  check(await card.locator('.fold[open]').count(), 'the list that changes folds what a person has unfolded')
  await page.focus('#torus')
  const seen = new Set()
  for (let k = 0; k < 10 && !(seen.has('n1-1-2') && seen.has('n0-0-2')); k++) {
    await page.keyboard.press('i')
    seen.add(await page.locator('#chosen button').textContent())
  }
  check(seen.has('n1-1-2') && seen.has('n0-0-2'), `i leads to ${[...seen]}: want the dead node and the sick one`)
  await as('approver')
  await page.waitForSelector(incident('node n1-1-2'), wait)
  check(!(await page.locator('[data-incident] button:has-text("Acknowledge")').count()), 'who may not acknowledge has a button for it')
  await page.click('#tab-nodes')
}

/** hostile: what people and nodes write is text. */
async function hostile() {
  await ask('mark n0-0-0')
  await page.waitForFunction(() => document.querySelector('tr[data-node="n0-0-0"]'), undefined, wait)
  await page.click('tr[data-node="n0-0-0"] button')
  await page.waitForFunction(() => document.querySelector('#panel').textContent.includes('<img src=x onerror='), undefined, wait)
  check(!(await page.locator('img').count()), 'markup of a reason was taken for markup')
}

/** absent: a part that the node does not have is folded, and is neither evidence nor unknown. */
async function absent() {
  await ask('lacks n2-0-1')
  await page.evaluate(() => { location.hash = '#node=n2-0-1' })
  await page.waitForFunction(() => document.querySelector('#panel h2')?.textContent.startsWith('n2-0-1') && document.querySelector('#absent'), undefined, wait)
  const row = page.locator('#absent [data-part="peripheral/0"]')
  check(!(await row.isVisible()), 'a part that the node does not have is shown at once')
  check(!(await page.locator('#panel td:text-is("ABSENT")').count()), 'a part that the node does not have is among the evidence')
  await page.click('#absent summary')
  await row.waitFor(wait)
  check(/ABSENT/.test(await row.textContent()) && await row.locator('.mark.ABSENT').count(), `the row of an absent part is ${await row.textContent()}`)
  await axe('absent')
  await row.locator('button').click()
  await page.waitForFunction(() => /peripheral.0 of n2-0-1 is ABSENT/.test(document.querySelector('#panel').textContent), undefined, wait)
}

/** word: a person approves a response, and denies another one. */
async function word() {
  await page.click('#tab-responses')
  await page.click('[data-response] button:has-text("Approve…")')
  await shot('responses')
  await axe('responses')
  await page.keyboard.type('seen in the browser')
  await page.click('button:has-text("Approve now")')
  await page.waitForFunction(() => !document.querySelector('#panel')?.textContent.includes('wants your word'), undefined, wait)
  check((await ask('audit approved')) === 'approver/someone: seen in the browser', 'the approval is not in the audit')
  await ask('sick n0-0-1')
  await page.click('[data-response] button:has-text("Deny…")')
  await page.keyboard.type('not this one')
  await page.click('button:has-text("Deny now")')
  await page.waitForFunction(() => !document.querySelector('#panel')?.textContent.includes('wants your word'), undefined, wait)
  check((await ask('audit denied')) === 'approver/someone: not this one', 'the denial is not in the audit')
}

/** back: the timeline shows the map as it was before the faults, and then that of now. */
async function back() {
  const slider = page.locator('#past input')
  await slider.fill(String(Number(await ask('when n1-1-2')) - 1))
  await page.waitForSelector('#past.then', wait)
  await count('FAILED', 0)
  await count('UNKNOWN', 0)
  await shot('past')
  await slider.focus()
  await page.keyboard.press('ArrowRight') // one change on: the dead node's
  await page.waitForFunction(() => document.querySelector('[data-count="FAILED"]').textContent !== document.querySelector('[data-count="UNKNOWN"]').textContent, undefined, wait)
  await page.click('#past button')
  await count('NORMAL', 24)
  await page.click('#tab-nodes')
  await slider.focus()
  await page.keyboard.press('ArrowLeft') // before the last change, and after somebody marked n0-0-0
  await page.waitForSelector('#past.then', wait)
  await page.waitForFunction(() => /maintenance/.test(document.querySelector('tr[data-node="n0-0-0"]')?.textContent), undefined, wait)
  await page.click('#past button')
  await count('NORMAL', 24)
  await page.click('#tab-events')
  await axe('events')
}

/** group: a row dies; the page names it, frames it, and says why. */
async function group() {
  await page.click('#tab-nodes')
  await page.focus('tr[data-node="n1-1-2"] button')
  check(!(await page.locator('#groups').count()), 'a group fault before there is one')
  const again = await refuse('**/api/groups*')
  await ask('kill n0-1-2 n2-1-2')
  await page.waitForSelector('[data-group="row/Y=1,Z=2"]', wait)
  await again()
  check((await page.textContent('[data-group]')).includes('3 of 3 nodes'), 'how many members the group has is not told')
  check(await page.evaluate(() => document.activeElement.closest('tr')?.dataset.node === 'n1-1-2'), 'the table that changes takes the focus away')
  await shot('group')
  await page.click('#tab-incidents')
  await page.waitForSelector(incident('row Y=1,Z=2') + '.CRITICAL', wait)
  await page.waitForFunction(() => ![...document.querySelectorAll('[data-incident]')].some((e) => /^node n\d-1-2$/.test(e.getAttribute('aria-label'))), undefined, wait)
  await shot('incidents-group')
  await page.click('#tab-nodes')
  await page.focus('#torus')
  await page.keyboard.press('g')
  await page.waitForFunction(() => document.querySelector('#panel h2')?.textContent.startsWith('row Y=1,Z=2') && /because/.test(document.querySelector('#panel').textContent), undefined, wait)
  await axe('group')
  await page.click('#tab-events')
  await page.click('.events button:has-text("row Y=1,Z=2")')
  await page.waitForFunction(() => document.querySelector('#panel h2')?.textContent.startsWith('row Y=1,Z=2') && /because/.test(document.querySelector('#panel').textContent), undefined, wait)
  // Before the first of them died there was no group; now there is.
  await page.locator('#past input').fill(String(Number(await ask('when n0-1-2')) - 1))
  await page.waitForSelector('#past.then', wait)
  await page.waitForFunction(() => !document.querySelector('#groups'), undefined, wait)
  const ofNow = () => page.locator('#panel.of-now').count()
  check(await ofNow(), 'the page of the group does not say that it is of now')
  await page.click('#past button')
  await page.waitForSelector('#groups', wait)
  check(!(await ofNow()), 'the page of the group says that the map is not of now')
  await page.click('.members button:has-text("n0-1-2")')
  await page.waitForFunction(() => /One of a group/.test(document.querySelector('#panel').textContent), undefined, wait)
  // Its living neighbour's register, by field.
  await page.focus('#torus')
  await page.keyboard.press('ArrowDown')
  await page.keyboard.press('Enter')
  await page.waitForFunction(() => document.querySelector('#panel h2')?.textContent.startsWith('n0-0-2') && /Neighbour host Y\+/.test(document.querySelector('[data-register="0x00000ec0"]')?.textContent), undefined, wait)
  await page.click('[data-register="0x00000ec0"] summary')
  await shot('registers')
  await axe('registers')
  await ask('mark n0-0-2')
  await page.click('#changed button')
  await page.waitForFunction(() => /Under maintenance/.test(document.querySelector('#panel').textContent), undefined, wait)
}

/** lost: the supervisor goes and comes back; the page says so, goes on, and has what happened meanwhile. */
async function lost() {
  await page.click('#tab-events')
  await ask('stop')
  await live('lost')
  await shot('lost')
  let known
  const committed = new Promise((done) => { known = done })
  await page.route('**/api/map', async (route) => { await committed; await route.continue() })
  await ask('kill n2-2-0')
  await ask('start')
  await ask('when n2-2-0')
  known()
  await live('live')
  await page.unroute('**/api/map')
  await page.waitForFunction(() => document.querySelector('#banner').textContent === '', undefined, wait)
  await count('NORMAL', 21)
  await page.waitForFunction(() => [...document.querySelectorAll('.events li')].some((l) => /n2-2-0/.test(l.textContent) && /UNKNOWN|FAILED/i.test(l.textContent)), undefined, wait)
}

/** elsewhere: a page whose supervisor is gone goes on at another one, as who it was. That one has not the word of a quorum, and then has it. */
async function elsewhere() {
  const [first, second] = (await ask('pages')).split(' ')
  ours.push(new URL(first).origin, second)
  await page.goto(first + '&node=n1-1-1')
  await live('live')
  await page.waitForSelector('#panel [data-controller]', wait)
  const said = await page.textContent('#panel [data-controller]')
  for (const want of ['The controller is silent for 3 min 0 s, read 4.0 s ago: no route to host', 'check the power feed', 'CPU 1 97 °C: Critical', 'PSU 1 has lost its input']) {
    check(said.includes(want), `the management controller: ${said}: want ${want}`)
  }
  check(said.indexOf('PSU 1 has lost') < said.indexOf('System boot'), 'the newest entry of the event log is not the first')
  check(await page.locator('#panel [data-controller] li b').count() === 1, 'not exactly the sensor at fault is marked')
  await page.locator('#panel [data-controller]').scrollIntoViewIfNeeded()
  await shot('controller')
  await axe('controller')
  check(await page.locator('#breaker').isHidden(), 'a breaker that is closed has a banner')
  await ask('lose')
  await page.waitForURL(second + '/**', wait)
  await page.waitForFunction(() => /^stale for/.test(document.querySelector('#status')?.textContent), undefined, wait)
  await page.waitForFunction(() => document.querySelector('#banner').textContent.includes('p1 was lost: this page now shows p2'), undefined, wait)
  check((await page.textContent('header')).includes('viewer/someone'), 'who looks is another one there')
  await page.waitForFunction(() => /breaker is open.*14 nodes.*breaker close --reason/.test(document.querySelector('#breaker').textContent), undefined, wait)
  await axe('breaker')
  await ask('quorum')
  await live('live')
  // Who may only look has nothing to approve or deny with, and is refused where he asks for it all the same.
  await ask('sick n1-0-0')
  await page.click('#tab-responses')
  await page.waitForFunction(() => /wants your word/.test(document.querySelector('#panel').textContent), undefined, wait)
  check(!(await page.locator('#panel [data-response] button:has-text("Approve"), #panel [data-response] button:has-text("Deny")').count()), 'who may only look has buttons to approve or deny with')
  const id = await page.locator('[data-response]:has-text("wants your word")').first().getAttribute('data-response')
  for (const verb of ['approve', 'deny']) {
    const code = await page.evaluate(async ([i, v]) => (await fetch(`/api/responses/${i}/${v}`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: '{"reason":"as a viewer"}' })).status, [id, verb])
    check(code === 403, `who may only look is answered with ${code} when he wants to ${verb}: want 403`)
  }
  await page.goto(url + '/')
  await live('live')
}

/** phone: the same on little room, and in the dark. */
async function phone() {
  await page.click('header button[aria-label="Light or dark"]')
  await shot('laptop-dark')
  await axe('laptop, dark')
  await page.setViewportSize({ width: 390, height: 844 })
  await page.waitForFunction(() => document.querySelector('#stage').clientWidth <= 390 && document.documentElement.scrollWidth <= 390, undefined, wait)
  await shot('phone-dark')
  await axe('phone, dark')
  await page.click('header button[aria-label="Light or dark"]')
  await shot('phone-light')
  await page.setViewportSize({ width: 1280, height: 800 })
}

/** many: 10,000 nodes turn. How many pictures a second is for people to know: here the processor draws, and others use it too. */
async function many() {
  const n = 10_000
  const states = Array.from({ length: n }, (_, r) => (r % 997 === 0 ? 'F' : r % 331 === 0 ? 'S' : r % 1499 === 0 ? 'U' : 'N')).join('')
  await page.route('**/api/map', async (route) => {
    const m = await (await route.fetch()).json()
    const links = []
    for (let r = 0; r < n; r += 97) links.push([r, r % 6, 4, 5])
    await route.fulfill({ json: { ...m, dims: [25, 20, 20], states, causes: '0'.repeat(n), flags: '0'.repeat(n), names: {}, directions: [0, 1, 2, 3, 4, 5], links, masked: [] } })
  })
  await page.reload()
  await count('FAILED', 11)
  await drawn()
  await page.waitForSelector('#offer', wait)
  const shown = await names()
  check(shown.length >= 40 && shown.includes('n0-0-0'), `of 10,000 nodes ${shown.length} have names: want 40 at least, those that are not normal`)
  await page.waitForFunction(() => /names have no room/.test(document.querySelector('#unnamed').textContent), undefined, wait)
  await shot('many')
  await page.click('#turn')
  const figure = () => page.evaluate(() => new Promise((done) => {
    const c = document.querySelector('#torus'), first = Number(c.dataset.frames), begin = performance.now()
    setTimeout(() => done((1000 * (Number(c.dataset.frames) - first)) / (performance.now() - begin)), 1000)
  }))
  await figure() // how sharply it is drawn while it moves is found meanwhile
  say(`10,000 nodes: ${(await figure()).toFixed(1)} frames a second, all of them`)
  await page.click('#offer')
  check(await page.evaluate(() => document.querySelector('#tools select').value !== '-1'), 'the offered plane is not shown')
  await page.selectOption('select', '2')
  say(`10,000 nodes: ${(await figure()).toFixed(1)} frames a second, a plane of 500`)
  await shot('many-plane')
  await page.click('#turn')
  await page.waitForFunction(() => { const c = document.querySelector('#torus'); return Math.abs(c.width - c.clientWidth * devicePixelRatio) <= 1 }, undefined, wait) // what stands still is sharp
}

/** tiles: an ordinary cluster has a tile for each node, on every screen. */
async function tiles() {
  await page.unroute('**/api/map')
  let n = 0, racked = false
  const id = (r) => racked ? `gpu-node-${String(r + 1).padStart(3, '0')}.hall7` : `n${r + 1}`
  await page.route('**/api/map', async (route) => {
    const m = await (await route.fetch()).json(), x = Math.ceil(Math.sqrt(n)), size = x * x, all = [...Array(size).keys()]
    await route.fulfill({ json: { ...m, ordinary: true, dims: [x, x, 1], empty: all.filter((r) => r >= n), states: all.map((r) => r >= n ? '.' : 'NNFSU'[r] ?? 'N').join(''), causes: all.map((r) => r === 2 ? '9' : r === 3 ? '2' : '0').join(''),
      flags: '2'.repeat(size), names: Object.fromEntries(all.slice(0, n).map((r) => [r, id(r)])), directions: [0, 1, 2, 3], links: [[0, 0, 4, 5], [1, 1, 4, 5]], masked: [], ...racked && { domainKey: 'rack', domains: Object.fromEntries(all.slice(0, n - 1).map((r) => [r, `r${r >> 3}`])) } } })
  })
  for (n of [5, 18, 64]) {
    racked = n > 18
    for (const [width, height] of [[1280, 800], [390, 844]]) {
      await page.setViewportSize({ width, height })
      await page.reload()
      await live('live')
      await page.waitForFunction((want) => document.querySelectorAll('.tile').length === want, n, wait)
      const where = `${n} nodes, ${width} px`
      const bad = await page.evaluate(() => {
        const all = [...document.querySelectorAll('.tile')].map((e) => [e, e.getBoundingClientRect()]), out = []
        for (const [e, a] of all) {
          if (e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight) out.push(`${e.dataset.node} has text outside its tile`)
          for (const [f, b] of all) if (e !== f && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom) out.push(`${e.dataset.node} covers ${f.dataset.node}`)
        }
        for (const e of [document.documentElement, document.querySelector('#view')]) if (e.scrollWidth > e.clientWidth) out.push(`${e.id || 'the page'} is wider than the screen`)
        return out
      })
      check(!bad.length, `${where}: ${bad.slice(0, 3).join('; ')}`)
      check(!(await page.locator('#torus, #names, #tools').count()), `${where}: there is a torus beside the tiles`)
      check(/link to .*2.* FAILED/.test(await page.textContent('.tile:first-child')), `${where}: the first tile does not name its faulty link`)
      check(await page.locator('.rack h3').count() === (racked ? 9 : 0), `${where}: want 9 racks of 64 nodes, and none of others`)
      await readable(where)
      await axe(where)
      await shot(`tiles-${n}-${width}`)
    }
  }
  await page.setViewportSize({ width: 1280, height: 800 })
  await page.reload()
  await page.waitForSelector('.tile', wait)
  const chosen = (node) => page.waitForSelector(`.tile[aria-pressed="true"][data-node="${node}"]`, wait)
  await page.focus('.tile')
  await page.keyboard.press('ArrowDown')
  await chosen(id(0))
  await page.keyboard.press('ArrowDown')
  await chosen(id(1))
  await page.keyboard.press('ArrowRight')
  await chosen(id(2))
  check(await page.evaluate(() => document.activeElement.dataset.node) === id(2), 'the keys lead away from the chosen tile')
  await page.click('#tab-nodes')
  check(!/place/.test(await page.textContent('#panel thead')), 'the table of an ordinary cluster has places')
}

await ended(close, async () => {
  for (const step of [seen, dies, incidents, hostile, absent, word, back, group, lost, elsewhere, phone, many, tiles]) {
    const begin = Date.now()
    say(`${step.name} begins`)
    await step()
    check(!wrong.length, `${step.name}: ${wrong.join('; ')}`)
    check(!outside.length, `${step.name}: asked elsewhere: ${outside.join(' ')}`)
    say(`${step.name}: ${Date.now() - begin} ms`)
  }
}, () => shot('failed'))
