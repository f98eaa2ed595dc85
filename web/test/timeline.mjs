// The events that the page keeps for its timeline. Run by internal/supervisor's TestBrowserModel.
import ts from 'typescript'
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import test from 'node:test'

// The few parts of a document that the timeline needs.
class Element {
  classList = { toggle() {} }
  dataset = {}
  parentElement = { getBoundingClientRect: () => ({ width: 0, height: 0 }) }
  setAttribute() {}
  addEventListener() {}
  replaceChildren() {}
  append() {}
  getContext() { return null }
}
globalThis.document = { createElement: () => new Element(), createElementNS: () => new Element(), documentElement: {} }
globalThis.ResizeObserver = class { observe() {} }

const dir = mkdtempSync(join(tmpdir(), 'lofamo-timeline-'))
for (const name of ['api', 'dom', 'model', 'timeline']) {
  const { outputText } = ts.transpileModule(readFileSync(new URL(`../src/${name}.ts`, import.meta.url), 'utf8'), { compilerOptions: { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022 } })
  writeFileSync(join(dir, name + '.mjs'), outputText.replace(/from '\.\/(\w+)'/g, "from './$1.mjs'"))
}
const { Timeline } = await import(pathToFileURL(join(dir, 'timeline.mjs')))
rmSync(dir, { recursive: true })

const event = (rev) => ({ rev, time: rev, at: '0,0,0', node: 'n0-0-0', part: 'node', from: rev % 2 ? 'NORMAL' : 'FAILED', to: rev % 2 ? 'FAILED' : 'NORMAL', cause: 9 })
const events = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => event(from + i))

/** serve makes /api/events answer as a supervisor does: after a revision with the oldest events, otherwise with the newest. It returns the requests. */
function serve(all, revision, oldest = 1) {
  const asked = []
  globalThis.fetch = async (path) => {
    const q = new URL(path, 'http://x').searchParams, limit = Number(q.get('limit')), after = Number(q.get('after') ?? 0)
    asked.push(after ? `after ${after}` : `newest ${limit}`)
    const kept = all.filter((e) => e.rev >= oldest), later = kept.filter((e) => e.rev > after)
    const page = after ? { events: later.slice(0, limit), more: later.length > limit ? 'more' : undefined } : { events: kept.slice(-limit) }
    return { ok: true, status: 200, json: async () => ({ ...page, revision, oldest }) }
  }
  return asked
}

/** opened is a timeline that has loaded the events 8 to 10. */
async function opened() {
  const t = new Timeline(() => 100_000)
  serve(events(8, 10), 10)
  await t.catchUp(10)
  return t
}

const revisions = (t) => t.events.map((e) => e.rev)

test('a page that slept reads the events that it missed', async () => {
  const t = await opened(), asked = serve(events(1, 20), 20)
  await t.catchUp(20)
  t.add([event(21)])
  assert.deepEqual(revisions(t), events(8, 21).map((e) => e.rev))
  assert.deepEqual(asked, ['after 10'])
})

test('a page that slept through more events than one answer has keeps the newest, without a gap', async () => {
  const t = await opened()
  serve(events(1, 12_010), 12_010)
  await t.catchUp(12_010)
  t.add([event(12_011)])
  assert.deepEqual(revisions(t), events(2_011, 12_011).map((e) => e.rev))
})

test('a page that slept until events were trimmed forgets those before the gap', async () => {
  const t = await opened()
  serve(events(1, 30), 30, 25)
  await t.catchUp(30)
  assert.deepEqual(revisions(t), [25, 26, 27, 28, 29, 30])
  const whole = await opened()
  serve(events(1, 30), 30, 11)
  await whole.catchUp(30)
  assert.deepEqual(revisions(whole), events(8, 30).map((e) => e.rev), 'the oldest event follows the last known one')
})

test('after a restore from a snapshot the page forgets the events of the former store', async () => {
  const t = await opened()
  serve(events(4, 5), 6)
  await t.catchUp(6)
  t.add([event(7)])
  assert.deepEqual(revisions(t), [4, 5, 7])
})

test('a map from before the last event loses no event', async () => {
  const t = await opened(), asked = serve(events(8, 10), 10)
  await t.catchUp(9)
  assert.deepEqual(revisions(t), [8, 9, 10])
  assert.deepEqual(asked, ['newest 1'], 'nor does it load all of them')
})

test('a page whose first request fails loads the newest events, without a gap', async () => {
  const t = await opened()
  globalThis.fetch = async () => { throw new Error('no network yet') }
  await assert.rejects(t.catchUp(12_010))
  t.add([event(12_011)])
  serve(events(1, 12_010), 12_010)
  await t.load()
  assert.deepEqual(revisions(t), events(2_011, 12_011).map((e) => e.rev))
})

test('events that the stream tells while the page loads stay', async () => {
  const t = await opened()
  serve(events(1, 12_010), 12_010)
  const loading = t.catchUp(12_010)
  t.add([event(12_011)])
  await loading
  assert.deepEqual(revisions(t), events(2_011, 12_011).map((e) => e.rev))
})
