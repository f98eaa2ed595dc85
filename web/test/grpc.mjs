// A browser calls gRPC itself: TLS by BoringSSL, an authority that it trusts, and a viewer's certificate. internal/supervisor's
// TestBrowserCallsGRPC starts it.
import { ended, opened, say } from './chromium.mjs'

const { LOFAMO_URL: url } = process.env
const { context, close } = await opened()
const page = await context.newPage()
let why = ''
page.on('requestfailed', (r) => { why = r.failure()?.errorText ?? '' })
// The port serves no pages: this one only gives the call its origin.
await page.route(url + '/', (route) => route.fulfill({ contentType: 'text/html', body: '<!doctype html><title>gRPC</title>' }))

await ended(close, async () => {
  await page.goto(url + '/')
  const answer = await page.evaluate(async () => {
    const empty = new Uint8Array(5) // not compressed, no bytes: a request without fields
    const headers = { 'content-type': 'application/grpc' }
    const r = await fetch('/lofamo.v1.FaultSupervisor/ListNodes', { method: 'POST', headers, body: empty })
    return { status: r.status, text: new TextDecoder('latin1').decode(await r.arrayBuffer()) }
  }).catch((e) => { throw new Error(`${why} ${e.message}`) })
  for (const node of ['n0-0-0', 'n1-1-0']) {
    if (!answer.text.includes(node)) throw new Error(`status ${answer.status} without ${node}: ${JSON.stringify(answer.text)}`)
  }
  say(`${answer.text.length} bytes of nodes`)
})
