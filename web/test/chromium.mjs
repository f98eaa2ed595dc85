// What the tests' and pictures' browsers have in common.
import { chromium } from 'playwright-core'
import { createInterface } from 'node:readline'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** opened is Chromium, where a processor draws, with a profile of its own that close takes away. */
export async function opened(options = {}) {
  const profile = mkdtempSync(join(tmpdir(), 'lofamo-browser-'))
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.LOFAMO_CHROMIUM ?? '/usr/bin/chromium', viewport: { width: 1280, height: 800 }, colorScheme: 'light', ...options,
    args: ['--no-sandbox', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--use-angle=swiftshader', '--enable-unsafe-swiftshader'],
  })
  const close = async () => {
    // A page whose supervisor was lost may keep the browser from closing.
    await Promise.race([context.close(), new Promise((done) => setTimeout(done, 5000))])
    rmSync(profile, { recursive: true, force: true })
  }
  return { context, close }
}

/** asker puts questions to the test that has started this program, a line each way: "ask WHAT" and the answer. */
export function asker() {
  const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
  return async (what) => {
    console.log('ask ' + what)
    return (await answers.next()).value
  }
}

/** say is for people who read the test's output. */
export const say = (text) => console.log('say ' + text)

/** ended says how a test came to its end, and ends the program. */
export async function ended(close, run, failed = async () => {}) {
  try {
    await run()
    console.log('done')
  } catch (e) {
    await failed()
    console.log('fail ' + String(e?.message ?? e).replaceAll('\n', ' / '))
  } finally {
    await close()
    process.exit()
  }
}
