import type { Change, Group, Incident, Standing, WholeMap } from './model'

/** Session has times in milliseconds since 1970, but expires in seconds; skew is how far the supervisor's clock is ahead of the browser's. */
export interface Session {
  subject: string; expires: number; now: number; skew: number; supervisor: string; cluster: string; aliveMs: number
  others: { id: string; url: string; token: string }[]; may: { approve: boolean; deny: boolean; acknowledge: boolean }
}

export interface Page { events: Change[]; revision: number; more?: string; oldest?: number; timeIn?: { state: string; ms: number; times: number }[]; from?: number }

/** Word is a register taken apart. */
export interface Word { address: string; name: string; owner: string; value: string; fields: { name: string; bits: [number, number]; value: number; text: string }[]; error?: string }

/** Refused is an answer that is none, with the supervisor's words. */
export class Refused extends Error {
  constructor(readonly status: number, message: string) { super(message) }
}

async function call<T>(path: string, init: RequestInit = {}): Promise<T> {
  const resp = await fetch(path, { ...init, signal: init.signal ?? AbortSignal.timeout(12_000), credentials: 'same-origin', cache: 'no-store' })
  if (!resp.ok) {
    let why = resp.statusText
    try { why = (await resp.json()).error ?? why } catch { /* not ours: a proxy's */ }
    throw new Refused(resp.status, why)
  }
  return (resp.status === 204 ? undefined : await resp.json()) as T
}

const post = <T>(path: string, body: unknown) => call<T>(path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) })
const query = (q: Record<string, string | number | undefined>) =>
  new URLSearchParams(Object.entries(q).filter(([, v]) => v !== undefined && v !== '').map(([k, v]) => [k, String(v)])).toString()

export const api = {
  login: (token: string) => post<void>('/api/login', { token }),
  logout: () => post<void>('/api/logout', {}),
  session: async (): Promise<Session> => {
    const s = await call<Session>('/api/session')
    return { ...s, skew: s.now - Date.now() }
  },
  map: () => call<WholeMap>('/api/map'),
  node: (node: string) => call<{ node: any; words?: Word[]; machine?: string[] }>('/api/node?' + query({ node })),
  explain: (q: { node?: string; component?: string; group?: string }) => call<any>('/api/explain?' + query(q)),
  history: (of: { node?: string; group?: string }, limit: number) => call<Page>('/api/history?' + query({ ...of, limit })),
  events: (limit: number, after?: number) => call<Page>('/api/events?' + query({ limit, after })),
  /** groups that stand, at a revision or later. */
  groups: async (after: number) => (await call<{ groups?: Group[] }>('/api/groups?' + query({ after }))).groups ?? [],
  acknowledge: (id: string, note: string) => post<unknown>(`/api/incidents/${encodeURIComponent(id)}/acknowledge`, { note }),
  approve: (id: string, reason: string) => post<any>(`/api/responses/${encodeURIComponent(id)}/approve`, { reason }),
  deny: (id: string, reason: string) => post<any>(`/api/responses/${encodeURIComponent(id)}/deny`, { reason }),
}

export interface Heard {
  changes(changes: Change[], revision: number): void
  responses(r: any, all: boolean): void
  noResponses(why: string): void
  incidents(r: { incidents?: Incident[]; gone?: string[] }, all: boolean): void
  noIncidents(why: string): void
  alive(s: Standing): void
  /** reset: the stream does not continue from the map that the page has. */
  reset(): void
  lost(): void
}

/** Stream follows the changes after a revision, and notices by itself when nothing comes any more. */
export class Stream {
  private source: EventSource | undefined
  private timer = 0
  private ended = false
  constructor(private revision: number, private readonly aliveMs: number, private readonly heard: Heard) { this.open() }

  close(): void {
    this.ended = true
    clearTimeout(this.timer)
    this.source?.close()
  }

  private open(): void {
    const s = this.source = new EventSource('/api/stream?after=' + this.revision)
    this.watch()
    const on = (name: string, f: (data: any, id: string) => void) => s.addEventListener(name, (e) => {
      if (this.ended) return
      this.watch()
      const m = e as MessageEvent<string>
      f(JSON.parse(m.data), m.lastEventId)
    })
    on('changes', (d: Change[], id) => {
      this.revision = Number(id) || this.revision
      this.heard.changes(d, this.revision)
    })
    on('alive', (d) => this.heard.alive(d))
    on('allresponses', (d) => this.heard.responses(d, true))
    on('responses', (d) => this.heard.responses(d, false))
    on('noresponses', (d) => this.heard.noResponses(d))
    on('allincidents', (d) => this.heard.incidents(d, true))
    on('incidents', (d) => this.heard.incidents(d, false))
    on('noincidents', (d) => this.heard.noIncidents(d))
    on('reset', () => { this.close(); this.heard.reset() })
    s.addEventListener('error', () => this.fail())
    on('again', () => this.fail())
  }

  /** watch takes the stream for lost after three periods of silence: a connection that is cut without a word says nothing. */
  private watch(): void {
    clearTimeout(this.timer)
    this.timer = window.setTimeout(() => this.fail(), 3 * this.aliveMs)
  }

  private fail(): void {
    if (this.ended) return
    this.close()
    this.heard.lost()
  }
}
