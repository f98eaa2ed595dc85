import { api } from './api'
import { clock, h, put } from './dom'
import { Change, FAILED, Model, SICK, UNKNOWN, course, ends, merged, past, step } from './model'

const keep = 10_000 // events that the page remembers: as many as one answer has

/** Timeline is the course of the map, as far back as events are kept, and the way to one of its moments. */
export class Timeline {
  readonly element: HTMLElement
  events: Change[] = []
  at: number | undefined // the moment that is shown; undefined: now
  onChange: () => void = () => {}
  private readonly canvas = h('canvas', { 'aria-hidden': 'true' })
  private readonly slider = h('input', { type: 'range', min: 0, max: 1, step: 'any', value: 1, 'aria-label': 'Time of the map that is shown', oninput: () => this.moved(), onkeydown: (e: KeyboardEvent) => this.key(e) }) // milliseconds since 1970
  private readonly when = h('div', { class: 'when' })
  private live: Model | undefined
  private known = 0 // the revision of the newest event at the last catchUp
  private from = 0
  private to = 0

  /** clock is the supervisor's clock, in milliseconds since 1970: events carry its time. */
  constructor(private readonly clock: () => number) {
    this.element = h('section', { id: 'past', 'aria-label': 'Timeline' }, h('div', { class: 'chart' }, this.canvas), this.slider, this.when)
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement!)
  }

  /** load reads the newest stored events. It forgets those from before the last catchUp, since events after them may be missing. The stream may have sent newer changes meanwhile. */
  async load(): Promise<void> {
    this.events = this.events.filter((c) => (c.rev ?? 0) > this.known)
    this.events = merged(this.events, (await api.events(keep)).events)
    this.refresh()
  }

  /** catchUp reads the missed events up to a revision: the stream continues from a map that was read again. If an answer leaves a gap after the known events, or its store is older than they are, it loads the newest ones instead. */
  async catchUp(revision: number): Promise<void> {
    const last = this.known = this.events.at(-1)?.rev ?? 0
    if (!last) return this.load()
    if (last === revision) return
    const page = await (last < revision ? api.events(keep, last) : api.events(1))
    if (last > page.revision || (page.oldest ?? 0) > last + 1 || (last < revision && page.more)) return this.load()
    if (last < revision) this.events = merged(this.events, page.events)
  }

  /** add takes changes that the stream tells. */
  add(changes: Change[]): void {
    const last = this.events.at(-1)?.rev ?? 0
    this.events.push(...changes.filter((c) => (c.rev ?? 0) > last)) // events that the list already had are not repeated
    if (this.events.length > 1.5 * keep) this.events.splice(0, this.events.length - keep)
  }

  setLive(m: Model): void { this.live = m }

  /** shown is the map of the moment that is chosen. */
  shown(): Model | undefined {
    return this.live && this.at !== undefined ? past(this.live, this.events, this.at) : this.live
  }

  now(): void { this.go(undefined) }

  private go(at: number | undefined): void {
    this.at = at
    this.refresh()
    this.onChange()
  }

  refresh(): void {
    [this.from, this.to] = ends(this.events, this.clock())
    this.slider.min = String(this.from)
    this.slider.max = String(this.to)
    this.slider.value = String(this.at ?? this.to)
    this.say()
    this.draw()
  }

  private moved(): void {
    const v = Number(this.slider.value)
    this.at = v >= this.to ? undefined : v
    this.say()
    this.draw()
    this.onChange()
  }

  /** key: left and right go by one change, for a chart of a day has several a pixel. */
  private key(e: KeyboardEvent): void {
    const by = e.key === 'ArrowLeft' ? -1 : e.key === 'ArrowRight' ? 1 : 0
    if (!by || e.ctrlKey || e.metaKey || e.altKey) return
    e.preventDefault()
    this.go(step(this.events, this.at, by))
  }

  private say(): void {
    this.element.classList.toggle('then', this.at !== undefined)
    const text = this.at === undefined ? 'now' : `as of ${clock(new Date(this.at))}`
    this.slider.setAttribute('aria-valuetext', text)
    put(this.when, h('div', {}, h('b', {}, text)), this.at === undefined ? h('span', { class: 'soft' }, `since ${clock(new Date(this.from))}`) : h('button', { onclick: () => this.now() }, 'Back to now'))
  }

  private draw(): void {
    const box = this.canvas.parentElement!.getBoundingClientRect(), g = this.canvas.getContext('2d')
    if (!g || !this.live || !box.width) return
    const ratio = Math.min(devicePixelRatio, 2), w = box.width, high = box.height
    this.canvas.width = w * ratio
    this.canvas.height = high * ratio
    g.scale(ratio, ratio)
    const style = getComputedStyle(document.documentElement), colour = (n: string) => style.getPropertyValue(n).trim()
    const samples = course(this.live, this.events), x = (t: number) => ((t - this.from) / (this.to - this.from)) * w
    const first = samples.length ? undefined : this.live.counts()
    const most = Math.max(1, ...(first ? [total(first)] : samples.map((s) => total(s.counts))))
    g.strokeStyle = colour('--rule')
    g.strokeRect(0.5, 0.5, w - 1, high - 1)
    for (let i = 0; i < samples.length; i++) {
      const a = x(samples[i].time), b = i + 1 < samples.length ? x(samples[i + 1].time) : w
      let y = high - 1
      for (const [s, name] of [[FAILED, '--failed'], [SICK, '--sick'], [UNKNOWN, '--unknown']] as const) {
        const up = samples[i].counts[s] ? Math.max(3, (samples[i].counts[s] / most) * (high - 4)) : 0
        g.fillStyle = colour(name)
        g.fillRect(a, y - up, Math.max(1, b - a), up)
        y -= up
      }
    }
    if (this.at !== undefined) {
      g.fillStyle = colour('--accent')
      g.fillRect(Math.round(x(this.at)) - 1, 0, 2, high)
    }
  }
}

const total = (c: number[]) => c[FAILED] + c[SICK] + c[UNKNOWN]
